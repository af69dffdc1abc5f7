"""A job can be written down, holds no secret, and knows whether it is still the same."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fluxguard.errors import InputError
from fluxguard.launch.flags import Flags
from fluxguard.launch.job import Job, changed, planned
from fluxguard.launch.masking import masked

ARGV = "accelerate launch --num_processes 1 sd/train_network.py --learning_rate 1e-4 --fp8_base --seed 42"
JOB = Job(
    argv=tuple(ARGV.split()),
    cwd=Path("/c"),
    interpreter=Path("/v/bin/python"),
    checkout=Path("/c/sd"),
    output_dir=Path("/o"),
    output_name="x",
    planned={"dataset_config": "1"},
    env={"PATH": "/bin"},
    secrets=("HF_TOKEN",),
    source="/o/train.sh",
)


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        ("a --wandb_api_key s3cret --b", "a --wandb_api_key *** --b"),
        ("a --wandb_api_key=s3cret b", "a --wandb_api_key=*** b"),
        ("a --wandb_api s3cret", "a --wandb_api ***"),
        ("a --huggingface_token s3cret", "a --huggingface_token ***"),
        (
            "a --aws_secret_access_key s3cret --aws-access-key-id s3cret",
            "a --aws_secret_access_key *** --aws-access-key-id ***",
        ),
        ("a --keep_tokens 1 --max_token_length 225 --tokenizer_cache_dir t", "same"),
        ("a --wandb_api_key --b c", "same"),
    ],
)
def test_the_value_of_a_secret_flag_is_never_shown(words: str, shown: str) -> None:
    assert " ".join(masked(words.split())) == (words if shown == "same" else shown)


def test_a_job_never_holds_a_secret() -> None:
    job = replace(JOB, argv=(*JOB.argv, "--huggingface_token", "s3cret"))
    assert "s3cret" not in repr(job) + json.dumps(job.to_mapping())


def test_a_job_that_was_written_is_read_back_equal() -> None:
    written = json.loads(json.dumps({"version": 1, "limits": {}, **JOB.to_mapping()}))
    assert Job.from_mapping(written) == JOB
    assert Job.from_mapping(replace(JOB, output_name=None).to_mapping()).output_name is None


@pytest.mark.parametrize(
    ("field", "value"),
    [("argv", "a b"), ("argv", [1]), ("cwd", 3), ("env", []), ("planned", {"a": 1}), ("output_name", 3)],
)
def test_a_broken_job_is_an_error_that_names_the_field(field: str, value: object) -> None:
    values = {**JOB.to_mapping(), field: value}
    with pytest.raises(InputError, match=rf"job\.json: {field}: "):
        Job.from_mapping(values)
    del values[field]
    with pytest.raises(InputError, match=rf"job\.json: {field}: is missing"):
        Job.from_mapping(values)


def words(text: str) -> dict[str, Any]:
    return {"argv": tuple(text.split())}


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"env": {"PATH": "/other"}},
        {"secrets": ()},
        {"source": "command line"},
        words(ARGV.replace("--fp8_base --seed 42", "--seed 42 --fp8_base")),
        words(ARGV.replace("--seed 42", "--seed 1 --seed 42")),
    ],
)
def test_the_same_job_in_another_terminal_is_the_same(change: dict[str, Any]) -> None:
    assert changed(JOB, replace(JOB, **change)) is None


def test_another_secret_is_no_other_job() -> None:
    first, second = (replace(JOB, argv=(*JOB.argv, "--wandb_api_key", key)) for key in ("one", "two"))
    assert changed(first, second) is None


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"output_dir": Path("/p")}, "output_dir: was /o, is /p"),
        ({"output_name": None}, "output_name: was x, is None"),
        ({"interpreter": Path("/w")}, "interpreter: was /v/bin/python, is /w"),
        (words(ARGV.replace("1e-4", "2e-4")), "argv: --learning_rate was 1e-4, is 2e-4"),
        (words(ARGV.replace("--fp8_base ", "")), "argv: --fp8_base was there, is gone"),
        (words(ARGV + " --sdpa"), "argv: --sdpa is new"),
        (words(ARGV.replace("processes 1", "processes 2")), "argv: --num_processes was 1, is 2"),
        (
            words(ARGV.replace("sd/train", "sd/flux_train")),
            "argv: the command was sd/train_network.py, is sd/flux_train",
        ),
        ({"planned": {"dataset_config": "2"}}, "dataset_config: the file says something else"),
        ({"planned": {}}, "dataset_config: the file says something else"),
    ],
)
def test_another_job_is_told_by_the_first_field_that_differs(change: dict[str, Any], says: str) -> None:
    assert (changed(JOB, replace(JOB, **change)) or "").startswith(says)


def test_a_comment_in_a_named_file_changes_nothing_and_a_value_does(tmp_path: Path) -> None:
    flags = Flags(("--dataset_config", "d.toml"), tmp_path)
    digests = []
    for text in ("a = 1", "# why\na=1", "a = 2"):
        (tmp_path / "d.toml").write_text(text)
        digests.append(planned(flags))
    assert digests[0] == digests[1] != digests[2]
    assert list(digests[0]) == ["dataset_config"]


def test_a_folder_reached_by_another_path_is_the_same_job(tmp_path: Path) -> None:
    """A link does not make it another one."""
    (tmp_path / "out").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "out")
    old, new = (replace(JOB, output_dir=tmp_path / name) for name in ("out", "link"))
    assert changed(old, new) is None
    assert changed(old, replace(JOB, output_dir=tmp_path / "other")) is not None
