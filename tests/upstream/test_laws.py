"""What hardening promises, held against a checkout the user has."""

from __future__ import annotations

import hashlib
import json
import os
import stat
import subprocess
import warnings
from pathlib import Path

import pytest

from fluxguard import patching
from fluxguard.errors import CheckoutChanged
from fluxguard.patching import scanning
from fluxguard.patching.checkout import FLUX

pytestmark = [pytest.mark.upstream, pytest.mark.timeout(300)]

IMPORT_AND_COUNT = """
import contextlib, io, json, threading
import torch, accelerate, diffusers, transformers  # what they print and start is theirs
before = threading.active_count()
with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
    import train_network
print(json.dumps([threading.active_count() - before, out.getvalue() + err.getvalue()]))
"""


def tree(folder: Path) -> dict[str, tuple[str, int]]:
    """Every path below a folder, folders included: digest of the content and permissions."""
    return {
        path.relative_to(folder).as_posix(): (
            hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "",
            stat.S_IMODE(path.lstat().st_mode),
        )
        for path in sorted(folder.rglob("*"))
    }


def run(python: str, *words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the trainer's interpreter in a checkout."""
    env = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "COLUMNS": "120", "CUDA_VISIBLE_DEVICES": ""}
    return subprocess.run([python, *words], cwd=folder, env=env, capture_output=True, text=True, timeout=240)


def test_every_required_rule_finds_what_it_protects(original: Path) -> None:
    planned = patching.plan(original)
    assert not planned.missed
    assert planned.changes


def test_every_changed_file_compiles(original: Path) -> None:
    warnings.simplefilter("ignore")  # their strings may hold invalid escapes
    for change in patching.plan(original).changes:
        compile(change.after, change.path, "exec", dont_inherit=True)


def test_a_second_apply_changes_nothing(copied: Path) -> None:
    patching.apply(copied)
    hardened = tree(copied)
    assert patching.check(copied).hardened
    patching.apply(copied)
    assert tree(copied) == hardened


def test_revert_gives_the_tree_back_byte_for_byte(copied: Path) -> None:
    before = tree(copied)
    patching.apply(copied)
    assert tree(copied) != before
    patching.revert(copied)
    assert tree(copied) == before


def test_an_edited_file_is_refused_and_nothing_is_lost(copied: Path) -> None:
    report = patching.apply(copied)
    edited = copied / report.changed[0]
    kept = edited.read_bytes() + b"\n# my own\n"
    edited.write_bytes(kept)
    with pytest.raises(CheckoutChanged, match=edited.name):
        patching.revert(copied)
    assert edited.read_bytes() == kept


def test_nothing_on_the_way_of_a_lora_waits_unguarded(copied: Path) -> None:
    if not (copied / FLUX).is_file():
        pytest.skip("a checkout without FLUX")
    assert scanning.scan(copied, path=scanning.LORA).findings
    patching.apply(copied)
    assert not scanning.scan(copied, path=scanning.LORA).findings


@pytest.mark.parametrize("script", [FLUX, "train_network.py"])
def test_help_prints_the_same(original: Path, copied: Path, python: str, script: str) -> None:
    if not (original / script).is_file():
        pytest.skip(f"a checkout without {script}")
    patching.apply(copied)
    plain, hardened = (run(python, script, "--help", folder=folder) for folder in (original, copied))
    assert plain.returncode == hardened.returncode == 0, hardened.stderr
    assert hardened.stdout == plain.stdout


def test_importing_the_trainer_starts_nothing_and_says_nothing(original: Path, copied: Path, python: str) -> None:
    patching.apply(copied)
    plain, hardened = (run(python, "-c", IMPORT_AND_COUNT, folder=folder) for folder in (original, copied))
    assert json.loads(hardened.stdout.splitlines()[-1]) == json.loads(plain.stdout.splitlines()[-1]), hardened.stderr
