"""How late a fired limit is acted on, and how fast a process is really gone after a fatal one."""

from __future__ import annotations

import json
import math
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

from fluxguard.rundir import RunDir
from tests.bench import late
from tests.bench.measure import FAULTS, MEMORY, REPEATS, Figures, Row, environment, named, own_figures, supervised
from tests.bench.peers import HangingLoader

LIMIT = 1.0
LATE, GONE = 50.0, 2.0
POLL = 0.01
OUTER = 30.0
"""Seconds after which a program is killed that the guard has not ended."""
STUCK = {
    "stuck executor thread": ("stuck_swap.py", "begin"),
    "stopped loader worker": ("stopped_worker.py", "begin"),
    "held GIL": ("held_gil.py", str(LIMIT)),
}
WAITS = dict.fromkeys(("block_swap", "batch", "first_batch", "read"), LIMIT)


@dataclass(frozen=True)
class End:
    """How one process ended."""

    gone: float
    """Seconds from when it began to wait to the end of the last of its processes."""
    words: Mapping[str, float]
    """What the guard wrote before; empty when no Python code could run any more."""
    log: str


def end_of(*command: str, limits: Mapping[str, float]) -> End:
    """Run a program that the guard ends. Heals are switched off: it is the end that is measured."""
    with tempfile.TemporaryDirectory(dir=MEMORY) as name:
        folder = Path(name)
        env = environment(supervised(folder, limits, max_heals=0))
        with (folder / "log").open("wb") as log:
            process = psutil.Popen([sys.executable, *command], env=env, stdout=log, stderr=log, cwd=folder)
        stuck_at, seen, known = 0.0, 0, {}
        outer = time.monotonic() + OUTER
        while process.poll() is None:
            if time.monotonic() > outer:
                process.kill()  # the row says so: it was gone far too late
            known.update({child.pid: child for child in process.children(recursive=True)})
            told = (folder / "log").read_bytes().count(b"waiting")
            if told > seen:
                stuck_at, seen = time.monotonic(), told
            time.sleep(POLL)
        while any(child.is_running() and child.status() != psutil.STATUS_ZOMBIE for child in known.values()):
            time.sleep(POLL)
        words = RunDir(folder / "out").last_words(0)
        said = json.loads(words.read_text()) if words.exists() else {}
        return End(time.monotonic() - stuck_at, said, (folder / "log").read_text())


def late_after(kind: str) -> float:
    """Return the median lateness of a limit that ends the process, for waits that `late` begins."""
    ends = [end_of("-m", "tests.bench.late", kind, limits=dict.fromkeys(WAITS, late.LIMIT)) for _ in range(REPEATS)]
    begun = [float(re.findall(r"waiting (\S+)", end.log)[-1]) for end in ends]
    return statistics.median(
        end.words.get("time", math.inf) - at - late.LIMIT for end, at in zip(ends, begun, strict=True)
    )


def rows(others: Mapping[str, Figures]) -> list[Row]:
    """Measure all ends."""
    with tempfile.TemporaryDirectory(dir=MEMORY) as name:
        hanging = HangingLoader(Path(name))  # it mostly waits: it may do so while we measure
        env = environment(supervised(Path(name), dict.fromkeys(WAITS, late.LIMIT)))
        raised = own_figures("late", env)
        ends = {
            what: [end_of(str(FAULTS / program), *words, limits=WAITS) for _ in range(REPEATS)]
            for what, (program, *words) in STUCK.items()
        }
        waited = {
            what: statistics.median(end.words.get("waited", math.inf) for end in ends[what]) - LIMIT
            for what in ("stuck executor thread", "stopped loader worker")
        }
        lateness = {
            "fail_after": raised["fail_after"],
            "result": raised["result"],
            "result, in a trainer": waited["stuck executor thread"],
            "reads, main thread": raised["read"],
            "reads, another thread": late_after("read"),
            "DataLoader, in a trainer": waited["stopped loader worker"],
            "exit_after": late_after("exit_after"),
        }
        peers = {"result": "torchft", "exit_after": "", "fail_after": ""}
        told = [
            Row(f"late: {what}", 1000 * seconds, "ms", LATE, peers=_late(others, peers.get(what)))
            for what, seconds in lateness.items()
        ]
        bounds = {"stopped loader worker": hanging.outcome()}
    for what, all_ends in ends.items():
        gone = statistics.median(end.gone for end in all_ends) - LIMIT
        told.append(Row(f"gone after a fatal limit: {what}", gone, "s", GONE, peers=bounds.get(what, "")))
    return told


def _late(others: Mapping[str, Figures], prefix: str | None) -> str:
    if prefix is None:
        return ""
    chosen = [
        (peer, 1000 * figures["late"])
        for peer, figures in others.items()
        if "late" in figures and peer.startswith("torchft") == bool(prefix)
    ]
    return named(chosen)
