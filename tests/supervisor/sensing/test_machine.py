"""Laws of the sensors of memory and disk."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from fluxguard.clock import FakeClock
from fluxguard.supervisor.sensing import cgroups, disk, host
from fluxguard.supervisor.sensing.disk import Disk

GIB = 1 << 30


def write(folder: Path, **files: object) -> None:
    """Write files of a control group; `__` in a name is a dot."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(f"{text}\n")


def process_in(tmp_path: Path, *lines: str) -> Path:
    """Return a /proc in which this process is in these groups."""
    write(tmp_path / "proc" / "self", cgroup="\n".join(lines))
    return tmp_path / "proc"


def test_version_2_counts_the_process_s_own_group_and_those_around_it(tmp_path: Path) -> None:
    """The tightest limit counts, without the cache of files; the kills are those of its own group."""
    root = tmp_path / "cgroup"
    stat = f"anon {GIB}\nfile {2 * GIB}\nshmem {GIB // 2}"
    write(root, memory__current=50 * GIB, memory__max="max", memory__stat=stat, memory__events="oom 9\noom_kill 9")
    write(root / "job", memory__current=4 * GIB, memory__max=8 * GIB, memory__stat=stat, memory__events="oom_kill 7")
    write(root / "job" / "me", memory__current=3 * GIB, memory__max="max", memory__events="low 0\noom_kill 2")
    groups = cgroups.of_process(proc=process_in(tmp_path, "0::/job/me"), root=root)
    assert [group.folder for group in groups] == [root / "job" / "me", root / "job", root]
    assert cgroups.tightest(groups) == (int(2.5 * GIB), 8 * GIB)
    assert cgroups.oom_kills(groups) == 2


def test_version_1_is_counted_too(tmp_path: Path) -> None:
    """With its own names; a very large limit is none."""
    root = tmp_path / "cgroup"
    write(root / "memory", memory__usage_in_bytes=9 * GIB, memory__limit_in_bytes=9223372036854771712)
    write(
        root / "memory" / "docker",
        memory__usage_in_bytes=6 * GIB,
        memory__limit_in_bytes=10 * GIB,
        memory__stat=f"total_cache {3 * GIB}\ntotal_shmem {GIB}",
        memory__oom_control="oom_kill_disable 0\nunder_oom 0\noom_kill 3",
    )
    groups = cgroups.of_process(proc=process_in(tmp_path, "5:cpu:/", "4:memory:/docker", "0::/"), root=root)
    assert cgroups.tightest(groups) == (4 * GIB, 10 * GIB)
    assert cgroups.oom_kills(groups) == 3


def test_a_container_that_is_told_the_path_of_the_host_is_the_outermost_folder(tmp_path: Path) -> None:
    """The path leads nowhere inside."""
    root = tmp_path / "cgroup"
    write(root, memory__current=GIB, memory__max=2 * GIB, memory__events="oom_kill 1")
    groups = cgroups.of_process(proc=process_in(tmp_path, "0::/../../system.slice/docker-abc.scope"), root=root)
    assert cgroups.tightest(groups) == (GIB, 2 * GIB)


@pytest.mark.parametrize("text", ["", "garbage", "0", "::", "0::"])
def test_what_cannot_be_read_is_unknown(tmp_path: Path, text: str) -> None:
    """No group, a torn line, an empty folder."""
    groups = cgroups.of_process(proc=process_in(tmp_path, text), root=tmp_path / "none")
    assert (cgroups.tightest(groups), cgroups.oom_kills(groups)) == ((None, None), None)
    assert cgroups.of_process(proc=tmp_path / "nowhere") == ()


def test_this_machine_has_memory() -> None:
    """The real one."""
    seen = host.look(cgroups.of_process())
    assert seen.available is not None
    assert seen.total is not None
    assert 0 < seen.available <= seen.total


def answered(sensor: Disk) -> None:
    """Wait until the open question is answered."""
    assert sensor._open is not None
    assert sensor._open.done.wait(10)


def test_free_space_is_known_when_it_was_told(tmp_path: Path) -> None:
    """Never at the look that asks; for a while afterwards."""
    clock = FakeClock()
    sensor = Disk(tmp_path, clock, ask=lambda _: 5 * GIB)
    assert sensor.look(ask=True) is None
    answered(sensor)
    assert sensor.look() == 5 * GIB
    clock.jump(1000)
    assert sensor.look() is None


def test_a_share_that_does_not_answer_blocks_nobody(tmp_path: Path) -> None:
    """It is unknown and said to be silent; nobody asks a second time meanwhile. It may come back."""
    clock, back, asked = FakeClock(), threading.Event(), []

    def ask(folder: object) -> int:
        asked.append(folder)
        back.wait(10)
        return GIB

    sensor = Disk(tmp_path, clock, ask=ask)
    began = time.monotonic()
    for _ in range(100):
        sensor.look(ask=True)
        clock.sleep(1)
    assert time.monotonic() - began < 2
    assert (len(asked), sensor.look(), sensor.silent) == (1, None, True)
    back.set()
    answered(sensor)
    clock.jump(-90)
    assert (sensor.look(), sensor.silent) == (GIB, False)


def test_a_folder_that_is_gone_has_no_known_space(tmp_path: Path) -> None:
    """An error is no number."""
    assert disk.free(tmp_path / "gone", 5) is None
    assert (disk.free(tmp_path, 5) or 0) > 0
