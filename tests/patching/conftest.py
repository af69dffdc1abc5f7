"""A small checkout with every kind of file, and rules for it."""

from __future__ import annotations

import codecs
import stat
from pathlib import Path

import pytest

from fluxguard.patching import Edit, Rule, hardening, planning

GUARD = {"__init__.py": b"", "guard/saves.py": b"# guard\n"}
TRAINER = 'import os\nfrom library import (\n    util as helpers,\n)\n\nif __name__ == "__main__":\n    wait()\n'


def waits(name: str, *, required: bool = True, unless_without: str = "", find: str = "wait()") -> Rule:
    edit = Edit(find={"pattern": find}, needs=find[:4], action="replace", text=f"fluxguard.{find}")
    return Rule(
        id=name,
        title="",
        why="",
        issue="",
        severity="high",
        order=1,
        required=required,
        unless_without=unless_without,
        edits=(edit,),
    )


@pytest.fixture
def rules(monkeypatch: pytest.MonkeyPatch) -> list[Rule]:
    """The rules in force; a test may add to them."""
    known = [waits("waits")]
    monkeypatch.setattr(planning, "load_rules", lambda: tuple(known))
    monkeypatch.setattr(hardening, "our_digest", lambda: repr(known))
    monkeypatch.setattr(hardening, "vendored", lambda kind: {f"fluxguard/{name}": data for name, data in GUARD.items()})
    return known


@pytest.fixture
def checkout(tmp_path: Path, rules: list[Rule]) -> Path:
    """A small checkout with every kind of file."""
    root = tmp_path / "sd-scripts"
    files = {
        "flux_train_network.py": TRAINER.encode(),
        "train_network.py": b"pass\n",
        "library/__init__.py": b"",
        "library/util.py": codecs.BOM_UTF8 + "# é\r\nx = wait()\r\n".encode(),
        "library/broken.py": b"x = = wait()\n",
        "library/tests/test_x.py": b"wait()\n",
        "tools/tool.py": b"wait()\n",
        "model.safetensors": b"weights",
        "venv/lib.py": b"wait()\n",
        ".git/HEAD": b"ref",
        "LICENSE.md": b"text",
    }
    for name, data in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    (root / "library/util.py").chmod(0o755)
    return root


def snapshot(root: Path) -> dict[str, tuple[int, bytes]]:
    """Every path of a tree, folders too: its permissions and what it holds."""
    return {
        path.relative_to(root).as_posix(): (
            stat.S_IMODE(path.lstat().st_mode),
            path.read_bytes() if path.is_file() else b"",
        )
        for path in sorted(root.rglob("*"))
    }
