"""Laws of the scan of a folder, and of its command."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fluxguard import cli, patching
from fluxguard.cli import rendering
from fluxguard.errors import InputError
from fluxguard.patching import scanning

WAITS = "def work(future):\n    future.result()\n"
DEMO = Path(__file__).parents[2] / "fluxguard" / "demo"


def put(root: Path, **files: str) -> Path:
    """Write files; two underscores in a name stand for a slash."""
    for name, text in files.items():
        path = root / f"{name.replace('__', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_tests_and_environments_are_left_out(tmp_path: Path) -> None:
    """And so is the guard that hardening puts into a checkout."""
    put(
        tmp_path, a=WAITS, tests__b=WAITS, test_c=WAITS, venv__d=WAITS, mine__e=WAITS, fluxguard__guard__deadlines=WAITS
    )
    (tmp_path / "mine" / "pyvenv.cfg").write_text("")
    assert [(one.file, one.line, one.function) for one in scanning.scan(tmp_path).findings] == [("a.py", 2, "work")]


def test_a_finding_outside_of_any_function_is_in_none(tmp_path: Path) -> None:
    """And nothing stands behind it."""
    lines = list(rendering.scan(scanning.scan(put(tmp_path, a="future.result()\n"))))
    assert lines[0] == "  a.py:1  future (high)"


def test_what_does_not_parse_is_named_and_hides_nothing(tmp_path: Path) -> None:
    """One bad file among good ones."""
    found = scanning.scan(put(tmp_path, a=WAITS, b="future.result(\n"))
    assert len(found.findings) == 1
    assert list(found.skipped) == ["b.py"]


def test_the_lora_path_is_told_from_the_rest(tmp_path: Path) -> None:
    """By imports, from the entry point on."""
    put(tmp_path, flux_train_network="from library import used\n", library__used=WAITS, other=WAITS)
    assert [(one.file, one.on_path) for one in scanning.scan(tmp_path).findings] == [
        ("library/used.py", True),
        ("other.py", False),
    ]
    assert [one.file for one in scanning.scan(tmp_path, path="lora").findings] == ["library/used.py"]


def test_a_wait_that_a_rule_knows_as_guarded_is_silent(tmp_path: Path) -> None:
    """Each rule's `guarded` counts, not only what this scan knows."""
    edits = [edit for rule in patching.load_rules() for edit in rule.edits if edit.guarded]
    assert edits
    text = "def _wait_blocks_move(self):\n    future.result(timeout=limit)\n"
    assert scanning._guarded_lines(text, edits) == {2}


@pytest.mark.parametrize("path", ["lora", "other"])
def test_bad_input_is_refused(tmp_path: Path, path: str) -> None:
    """No folder, no Python, no FLUX, no such path."""
    with pytest.raises(InputError, match="no folder"):
        scanning.scan(tmp_path / "none")
    with pytest.raises(InputError, match="no Python"):
        scanning.scan(tmp_path)
    with pytest.raises(InputError, match="--path"):
        scanning.scan(put(tmp_path, a=WAITS), path=path)


def test_the_command_answers_by_its_exit_code(tmp_path: Path) -> None:
    """0 nothing, 1 something; a table or JSON."""
    put(tmp_path, a=WAITS)
    shown = CliRunner().invoke(cli.app, ["scan", str(tmp_path)])
    assert (shown.exit_code, "a.py:2" in shown.output, "1 unguarded in 1 files: 1 future" in shown.output) == (
        1,
        True,
        True,
    )
    as_json = CliRunner().invoke(cli.app, ["scan", str(tmp_path), "--json"])
    assert json.loads(as_json.output)["findings"][0]["severity"] == "high"
    put(tmp_path, a="future.result(timeout=5)\n")
    assert CliRunner().invoke(cli.app, ["scan", str(tmp_path)]).exit_code == 0


def test_the_command_explains_what_to_write_instead(tmp_path: Path) -> None:
    """Once for each kind that was found, also in JSON."""
    put(tmp_path, a="import torch.distributed as dist\nif rank == 0:\n    dist.barrier()\n    dist.barrier()\n")
    shown = CliRunner().invoke(cli.app, ["scan", str(tmp_path), "--explain"])
    assert shown.output.count('+with distributed.on_main("the download") as is_main:') == 1
    assert "+with" not in CliRunner().invoke(cli.app, ["scan", str(tmp_path)]).output
    as_json = json.loads(CliRunner().invoke(cli.app, ["scan", str(tmp_path), "--json"]).output)
    assert list(as_json["examples"]) == ["barrier on some ranks"]


def test_another_file_may_set_the_epoch(tmp_path: Path) -> None:
    """Of a sampler that is made where no epochs are."""
    made = "from torch.utils.data import DistributedSampler\nsampler = DistributedSampler(images)\n"
    assert scanning.scan(put(tmp_path, a=made)).counts() == {"set_epoch": 1}
    assert scanning.scan(put(tmp_path, b="sampler.set_epoch(epoch)\n")).counts() == {}


def test_hardening_the_miniature_takes_findings_away_and_adds_none(tmp_path: Path) -> None:
    """What the rules guard is what the scan no longer names."""
    shutil.copytree(DEMO, tmp_path / "demo", ignore=shutil.ignore_patterns("__pycache__"))
    before = scanning.scan(tmp_path / "demo", path="lora")
    report = patching.apply(tmp_path / "demo", to=tmp_path / "hardened")
    after = scanning.scan(report.checkout, path="lora")
    assert {"future", "loader", "cache read", "state"} <= set(before.counts())
    assert not {"loader", "cache read", "state"} & set(after.counts())
    assert all(count <= before.counts()[kind] for kind, count in after.counts().items())


def test_a_large_repository_takes_a_moment(tmp_path: Path) -> None:
    """2 MB in 160 files, every third with a wait; processor time, because other tests run beside this one."""
    filler = (
        "def f(x, y):\n    if x:\n        return [x + y * 2, x.name, {'a': (x, y)}]\n    return g(x, key=y)\n\n\n" * 120
    )
    put(tmp_path, **{f"m{number}": filler + (WAITS if number % 3 == 0 else "") for number in range(160)})
    began = time.process_time()
    found = scanning.scan(tmp_path)
    assert time.process_time() - began < 2
    assert len(found.findings) == 54
