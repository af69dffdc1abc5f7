"""Laws of reading /proc: a descendant is never overlooked, though strangers are not looked at again each time."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from fluxguard.supervisor.sensing import procfs
from fluxguard.supervisor.sensing.procfs import Tree

pytestmark = pytest.mark.skipif(not procfs.LINUX, reason="only Linux has /proc")


def plant(folder: Path, **parents: int) -> None:
    """Write processes, p1=0 for the one with number 1 and no parent; whatever else was there is gone."""
    for path in folder.iterdir():
        (path / "stat").unlink()
        path.rmdir()
    for name, parent in parents.items():
        path = folder / name[1:]
        path.mkdir()
        (path / "stat").write_text(f"{name[1:]} (a) b)) S {parent} " + "0 " * 17 + "77 0 0\n")


@pytest.fixture
def proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give a folder in place of /proc."""
    monkeypatch.setattr(procfs, "_FOLDER", str(tmp_path))
    return tmp_path


def test_a_process_is_read_whatever_its_name_is(proc: Path) -> None:
    """Brackets and spaces in it too."""
    plant(proc, p5=1)
    assert procfs.stat(5) == procfs.Stat("S", 1, 77)
    with pytest.raises(FileNotFoundError):
        procfs.stat(6)


def test_descendants_are_found_when_they_come_and_lost_when_they_go(proc: Path) -> None:
    """At any depth, beside strangers with children of their own."""
    tree = Tree()
    plant(proc, p1=0, p10=1, p20=1, p21=20)
    assert tree.below(10) == []
    plant(proc, p1=0, p10=1, p20=1, p21=20, p22=20, p11=10, p12=11)
    assert tree.below(10) == [11, 12]
    plant(proc, p1=0, p10=1, p20=1, p13=12, p12=10)
    assert tree.below(10) == [12, 13]


def test_strangers_are_not_read_again(proc: Path) -> None:
    """Of a machine with many processes that is most of what a look costs."""
    tree = Tree()
    plant(proc, p1=0, p10=1, p20=1)
    tree.below(10)
    (proc / "20" / "stat").write_text("no more")
    plant_one = proc / "30"
    plant_one.mkdir()
    (plant_one / "stat").write_text("30 (a) S 20 " + "0 " * 17 + "77 0 0\n")
    assert tree.below(10) == []
    assert 30 in tree._strangers


def test_one_whose_parent_was_not_seen_is_no_stranger_yet(proc: Path) -> None:
    """A list of processes is not of one moment: its parent may have begun meanwhile."""
    tree = Tree()
    plant(proc, p1=0, p10=1, p12=11)
    assert tree.below(10) == []
    plant(proc, p1=0, p10=1, p12=11, p11=10)
    assert tree.below(10) == [11, 12]


def test_the_number_of_a_stranger_may_come_to_one_of_ours(proc: Path) -> None:
    """It is looked at afresh now and then."""
    tree = Tree()
    plant(proc, p1=0, p10=1, p20=1)
    tree.below(10)
    plant(proc, p1=0, p10=1, p20=10)
    found = [tree.below(10) for _ in range(procfs._AFRESH)]
    assert found[-1] == [20]


def test_it_finds_what_psutil_finds() -> None:
    """Of real processes."""
    program = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'input()'])"
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE) as child:
        try:
            me, tree = psutil.Process(), Tree()
            while len(me.children(recursive=True)) < 2 and child.poll() is None:
                pass
            assert tree.below(os.getpid()) == sorted(one.pid for one in me.children(recursive=True))
        finally:
            assert child.stdin is not None
            child.stdin.close()
            child.wait()
