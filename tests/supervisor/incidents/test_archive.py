"""Laws of the archive: what explains a run is in it, what is private or heavy is not, and it is always the same."""

from __future__ import annotations

import io
import json
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from fluxguard.clock import FakeClock
from fluxguard.errors import InputError
from fluxguard.manifest import Manifest
from fluxguard.manifest import write as write_manifest
from fluxguard.rundir import RunDir, write_json
from fluxguard.supervisor.causes.diagnosis import Evidence
from fluxguard.supervisor.incidents import archive, versions
from fluxguard.supervisor.incidents import incident as incidents
from fluxguard.supervisor.incidents.archive import Cleaner
from fluxguard.supervisor.incidents.scene import Scene
from fluxguard.supervisor.ledger import Ledger
from tests.supervisor.incidents.made import EVIL, incident

ENV = {"HOME": "/home/jane"}


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    """A run with a script, a data set, a log, a state and an incident."""
    made = RunDir(tmp_path / "out")
    made.create()
    dataset = tmp_path / "dataset.toml"
    dataset.write_text("[general]\nimage_dir = '/home/jane/pictures'\n")
    script = made.output_dir / "train.sh"
    argv = [
        "python",
        "sd-scripts/flux_train_network.py",
        "--dataset_config",
        str(dataset),
        "--huggingface_token",
        "hidden-token",
    ]
    script.write_text(" ".join(argv) + "\n")
    job = {
        "argv": [*argv[:-1], "***"],
        "cwd": str(tmp_path),
        "source": str(script),
        "secrets": [],
        "interpreter": sys.executable,
    }
    write_json(made.job, {**job, "hardened": True, "trained_in": str(tmp_path / "copy")})
    (tmp_path / "copy").mkdir()
    write_json(tmp_path / "copy" / ".fluxguard-stamp.json", {"digest": "abc", "whole": True, "report": {"rules": []}})
    made.log.write_text("the token is hidden-token\nof jane.doe@example.org in /home/jane/x and /home/joe/y\n")
    Ledger(made.ledger, FakeClock()).add("job", hardened=True, weights="w")
    state = made.states / "step-00000012"
    state.mkdir()
    (state / "model.safetensors").write_bytes(b"tensor-bytes" * 50)
    write_manifest(
        state,
        Manifest(
            true_step=12, epoch=1, batch=12, world_size=1, batches_per_epoch=20, files={"model.safetensors": (600, "d")}
        ),
    )
    (made.states / "step-00000013").mkdir()
    (made.output_dir / "out.safetensors").write_bytes(b"weights")
    (made.output_dir / "sample_prompts.txt").write_text("a portrait of jane")
    incidents.write(made, incident(), Evidence(lines=["last"], stacks={1: "s"}), Scene(), (), frozenset())
    return made


def texts(packed: archive.Packed) -> dict[str, str]:
    """Return what is in an archive."""
    with zipfile.ZipFile(io.BytesIO(packed.data)) as opened:
        assert opened.testzip() is None
        return {name: opened.read(name).decode() for name in opened.namelist()}


def test_what_explains_a_run_is_in_it(run: RunDir) -> None:
    """The incident in every form, the command, the versions, the rules, the states, the ledger, the log."""
    found = texts(archive.pack(run, ENV))
    assert list(found)[:3] == ["README.txt", "issue.md", "versions.json"]
    assert {
        "job.json", "ledger.jsonl", "rules.json", "states.json", "log-tail.txt", "command/train.sh",
        "command/dataset_config.toml", "incidents/0002/report.json", "incidents/0002/report.md",
        "incidents/0002/report.html", "incidents/0002/stacks.txt", "incidents/0002/last-lines.txt",
    } <= set(found)  # fmt: skip
    assert json.loads(found["rules.json"])["digest"] == "abc"
    whole, torn = json.loads(found["states.json"])
    assert (whole["true_step"], whole["files"]) == (12, {"model.safetensors": 600})
    assert torn == {"name": "step-00000013", "aside": False, "unusable": "has no manifest"}
    assert json.loads(found["versions.json"])["trainer"]["python"].startswith("3.")
    assert "no progress (step)" in found["issue.md"]
    assert all(name in found["README.txt"] for name in found if name != "README.txt")


def test_what_is_private_or_heavy_is_not(run: RunDir) -> None:
    """No secret, no e-mail address, no name of a user, no weights, no prompts."""
    packed = archive.pack(run, ENV)
    found = texts(packed)
    joined = "\n".join([*found, *found.values()])
    for private in ("hidden-token", "jane", "joe", "example.org", "portrait", "tensor-bytes"):
        assert private not in joined, private
    assert "~/pictures" in found["command/dataset_config.toml"]
    assert "/home/***/y" in found["log-tail.txt"]
    assert sum(packed.sizes.values()) < 20 << 20


def test_the_same_run_makes_the_same_archive(run: RunDir) -> None:
    """Byte by byte, so that two of them can be compared."""
    assert archive.pack(run, ENV).data == archive.pack(run, ENV).data


def test_what_is_too_long_is_cut_at_its_beginning_and_says_so(run: RunDir) -> None:
    """The end of a log is what tells; a log that hides a variable that is not set here is left out."""
    run.log.write_text("old line\n" * 100_000 + "the end\n")
    found = texts(archive.pack(run, ENV))["log-tail.txt"]
    assert found.startswith("[the first ")
    assert found.endswith("the end\n")
    assert len(found) <= (256 << 10) + 100
    write_json(run.job, {"secrets": ["WANDB_API_KEY"]})
    assert "log-tail.txt" in archive.pack(run, ENV).left_out
    assert "log-tail.txt" not in archive.pack(run, {**ENV, "WANDB_API_KEY": "abcdefgh"}).left_out


def test_a_damaged_run_is_packed_as_far_as_it_goes(run: RunDir) -> None:
    """That is when somebody wants to send it."""
    run.job.write_text("{")
    (run.incidents / "0002" / "report.json").write_text("{")
    run.log.unlink()
    packed = archive.pack(run, ENV)
    assert {"job.json", "ledger.jsonl", "incidents/0002/report.json", "issue.md"} <= set(packed.sizes)
    assert packed.left_out["log-tail.txt"] == "No such file or directory"
    assert "There was no incident" in texts(packed)["issue.md"]


def test_where_there_is_no_run_there_is_no_archive(tmp_path: Path) -> None:
    """And nothing is made there."""
    with pytest.raises(InputError, match="holds no run"):
        archive.pack(RunDir(tmp_path), ENV)
    assert list(tmp_path.iterdir()) == []


def test_an_issue_is_no_place_for_markup(run: RunDir) -> None:
    """Of whoever wrote the log."""
    incidents.write(
        run, incident(number=3, cause=EVIL, words=EVIL, lines=(EVIL, "```")), Evidence(), Scene(), (), frozenset()
    )
    text = texts(archive.pack(run, ENV))["issue.md"]
    assert text.startswith("## What happened: \\<script>")
    assert "<img" not in text.split("## Last lines")[0].replace("\\<img", "")


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("/home/jane/a /home/jane", "~/a ~"),
        (r"C:\Users\Jane Doe\a C:\\Users\\jo\\a", r"C:\Users\***\a C:\\Users\\***\\a"),
        ("/home/janet/a", "/home/***/a"),
        ("/Users/jo/x:/home/al/y", "/Users/***/x:/home/***/y"),
        ("/media/jo/disk", "/media/***/disk"),
        ("mail a.b+c@d-e.co.uk now", "mail ***@*** now"),
        ("git@github.com:a/b torch@2.1.0", "git@github.com:a/b torch@2.1.0"),
        ("\x1b[31mred\x1b[0m", "red"),
    ],
)
def test_names_of_people_are_taken_out(text: str, clean: str) -> None:
    """In paths and addresses."""
    assert Cleaner(frozenset(), "/home/jane")(text) == clean


def test_versions_are_read_without_running_anything(tmp_path: Path) -> None:
    """From a virtual environment, and from the one below it when it sees that too."""
    base, venv = tmp_path / "base", tmp_path / "venv"
    for home, names in ((base, {"torch": "2.4.0", "accelerate": "0.33.0"}), (venv, {"accelerate": "0.25.0"})):
        for name, version in names.items():
            info = home / "lib" / "python3.10" / "site-packages" / f"{name}-{version}.dist-info"
            info.mkdir(parents=True)
            (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    said: dict[str, Any] = {"home": base / "bin", "include-system-site-packages": "true", "version": "3.10.12"}
    (venv / "pyvenv.cfg").write_text("".join(f"{name} = {value}\n" for name, value in said.items()))
    found = versions.of_trainer(venv / "bin" / "python")
    assert (found["python"], found["torch"], found["accelerate"]) == ("3.10.12", "2.4.0", "0.25.0")
    assert found["diffusers"] == ""
    assert versions.of_trainer(base / "bin" / "python3")["python"] == "3.10"
    assert versions.of_trainer(tmp_path / "nothing" / "python")["python"] == ""
