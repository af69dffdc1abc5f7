"""Laws of what flight recorders say together: dumps as torch writes them, and what only looks like one."""

from __future__ import annotations

import os
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from fluxguard.supervisor.checkpoints import plain
from fluxguard.supervisor.incidents import collectives

TORCH = {
    "name": "wrapper",
    "filename": "/env/lib/python3.11/site-packages/torch/distributed/c10d_logger.py",
    "line": 83,
}


def entry(sequence: int, op: str = "nccl:all_reduce", caller: str = "train", **more: Any) -> dict[str, Any]:
    """Return one entry of a dump of version 2.10, as it is read."""
    mine = {"name": caller, "filename": "/home/me/sd-scripts/train_network.py", "line": 100 + sequence}
    return {
        "frames": [{**TORCH, "name": op.partition(":")[2]}, TORCH, mine],
        "record_id": sequence, "pg_id": 0, "process_group": ("0", "default_pg"), "thread_id": "140604902816640",
        "collective_seq_id": sequence, "p2p_seq_id": 0, "op_id": sequence, "profiling_name": op,
        "time_created_ns": 1795294242750306529, "input_sizes": [[4]], "input_dtypes": ["Float"], "output_sizes": [[4]],
        "output_dtypes": ["Float"], "state": "completed", "time_discovered_started_ns": None, "retired": True,
        "time_discovered_completed_ns": None, "timeout_ms": 3000, "is_p2p": False, **more,
    }  # fmt: skip


def dump(folder: Path, rank: int, entries: Sequence[dict[str, Any]], ranks: str = "[0, 1]") -> Path:
    """Write the dump of a rank, as torch names it."""
    values = {
        "version": "2.10",
        "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": ranks}},
        "comm_lib_version": "",
        "pg_status": {"0": {"last_enqueued_collective": 1, "last_started_collective": -1}},
        "entries": list(entries),
    }
    path = folder / f"rank_{rank}"
    path.write_bytes(pickle.dumps(values, protocol=2))
    return path


def told(folder: Path, *ranks: Sequence[dict[str, Any]], members: str = "[0, 1]") -> tuple[str, ...]:
    """Return what the dumps of these ranks say together."""
    return collectives.told([dump(folder, rank, entries, members) for rank, entries in enumerate(ranks)])


def test_the_rank_that_lacks_a_collective_is_named(tmp_path: Path) -> None:
    """With the collective, who came to it, from where it was called, and where the late one was last."""
    fid = entry(42, "nccl:all_gather", "fid_compute", state="started")
    assert told(tmp_path, [entry(41), fid], [entry(40), entry(41)]) == (
        "rank 1 did not come to #42 all_gather in fid_compute (train_network.py:142), as rank 0 did; "
        "its last was #41 all_reduce in train (train_network.py:141), which is over",
    )


def test_the_latest_rank_comes_first(tmp_path: Path) -> None:
    """Of several that are late."""
    said = told(tmp_path, [entry(7)], [entry(3)], [entry(5)], members="[0, 1, 2]")
    assert [words[:7] for words in said] == ["rank 1 ", "rank 2 "]
    assert "as rank 0, 2 did" in said[0]


def test_ranks_that_took_different_ways_are_named(tmp_path: Path) -> None:
    """By the first number on which they do not agree."""
    ways = [entry(5), entry(6, "nccl:broadcast", "save"), entry(7)], [entry(5), entry(6), entry(7, "nccl:barrier")]
    (said,) = told(tmp_path, *ways)
    assert said == (
        "the ranks do not agree about #6: rank 0 calls broadcast in save (train_network.py:106), "
        "rank 1 calls all_reduce in train (train_network.py:106)"
    )


def test_a_rank_without_a_dump_is_named(tmp_path: Path) -> None:
    """It may be stopped, or dead."""
    said = told(tmp_path, [entry(5)], [entry(5)], members="[0, 1, 2]")
    assert said == ("rank 2 left no record of its collectives",)


def test_ranks_that_came_equally_far_say_nothing(tmp_path: Path) -> None:
    """And one rank alone says nothing either; what goes from one rank to another is no collective of all."""
    assert told(tmp_path, [entry(5)], [entry(5)]) == ()
    assert told(tmp_path, [entry(5)]) == ()
    assert told(tmp_path, [entry(5), entry(6, "nccl:send 0->1", is_p2p=True)], [entry(5)]) == ()


def test_groups_are_compared_by_themselves(tmp_path: Path) -> None:
    """Each counts for itself."""
    other = entry(9, process_group=("1", "halves"))
    said = told(tmp_path, [entry(5), other], [entry(4), other])
    assert len(said) == 1
    assert said[0].endswith("of group 0")


def test_an_older_dump_is_read(tmp_path: Path) -> None:
    """Its numbers have another name, and it says nothing of its groups."""
    old = [{"seq_id": n, "profiling_name": "nccl:all_reduce", "process_group": ["0"], "state": "x"} for n in (1, 2)]
    flights = [collectives.flight(rank, {"entries": old[: 2 - rank]}) for rank in (0, 1)]
    assert collectives.compared(flights) == (
        "rank 1 did not come to #2 all_reduce, as rank 0 did; its last was #1 all_reduce",
    )


class Bomb:
    """What executes code when it is unpickled."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        """Say what to call."""
        return os.mkdir, ("unpickled",)


def nested(depth: int) -> bytes:
    """Return a pickle of lists in lists."""
    return b"\x80\x02" + b"]" * depth + b"a" * (depth - 1) + b"."


DAMAGED = {
    "what calls something": pickle.dumps({"entries": [Bomb()]}),
    "what calls something, the old way": b"cos\nmkdir\n(S'unpickled'\ntR.",
    "what is cut short": pickle.dumps({"entries": []})[:-3],
    "what is no pickle": b"\x00" * 64,
    "nothing": b"",
    "what is no dump": pickle.dumps(["entries"]),
    "what wants memory for what is not there": b"\x80\x02}r\xff\xff\xff\x7f.",
    "what refers to something outside": b"\x80\x02X\x01\x00\x00\x00aQ.",
    "what takes from an empty stack": b"\x80\x020.",
    "what recalls what was never kept": b"\x80\x02h\x07.",
    "a key that cannot be one": b"\x80\x02}]]s.",
    "what declares more than it has": b"\x80\x04\x96\xff\xff\xff\xff\xff\x00\x00\x00.",
}


@pytest.mark.parametrize("case", DAMAGED)
def test_what_is_no_dump_is_said_to_be_none(tmp_path: Path, case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing in it is called, and the others still speak."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rank_2").write_bytes(DAMAGED[case])
    paths = [dump(tmp_path, 0, [entry(2)]), dump(tmp_path, 1, [entry(1)]), tmp_path / "rank_2"]
    first, last = collectives.told(paths)
    assert first.startswith("rank 1 did not come to #2")
    assert last.startswith("the flight recorder's rank_2 ")
    assert not (tmp_path / "unpickled").exists()


BRANCHES: list[Any] = []
for _ in range(30):
    BRANCHES = [BRANCHES] * 100
ODD: dict[str, Any] = {
    "entries of other kinds": {"entries": [None, 3, "x", [], {}, {"process_group": []}]},
    "groups of other kinds": {"entries": [entry(1)], "pg_config": [1], "pg_status": None},
    "ranks that are none": {
        "entries": [entry(1)],
        "pg_config": {"0": {"ranks": "__import__('os')"}, "1": {"ranks": "["}},
    },
    "frames of other kinds": {"entries": [entry(1, frames="x"), entry(2, frames=[3, {}]), entry(3, frames=None)]},
    "words of any length": {"entries": [entry(1, profiling_name="x" * 10_000, state={"a": 1})]},
    "lines of any length": {"entries": [entry(1, frames=[{"name": "f", "filename": "a.py", "line": "9" * 10_000}])]},
    "one list a great many times": {"entries": [entry(1, profiling_name=BRANCHES, process_group=[BRANCHES])]},
    "numbers without end": {"entries": [entry(1 << 10_000)]},
}


@pytest.mark.parametrize("case", ODD)
def test_what_is_odd_in_a_dump_is_passed_over(case: str) -> None:
    """It was written by a process that was dying."""
    flights = [collectives.flight(rank, ODD[case]) for rank in (0, 1)]
    assert collectives.compared(flights) == ()
    assert all(len(call.words) < 1000 for one in flights for call in one.calls)


def test_a_deep_pickle_ends_nothing() -> None:
    """However deep its lists are."""
    with pytest.raises(ValueError, match="no dump"):
        collectives.flight(0, plain.read(nested(100_000)))
