"""What the supervisor costs while it watches: a look, long logs, a flood of output, a core, and memory."""

from __future__ import annotations

import os
import statistics
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from fluxguard import heartbeat
from fluxguard.clock import SystemClock
from fluxguard.heartbeat import Heart
from fluxguard.limits import Limits
from fluxguard.rundir import RunDir, write_json
from fluxguard.supervisor.attempt import Attempt
from fluxguard.supervisor.detecting.detectors import detect
from fluxguard.supervisor.detecting.observation import History
from fluxguard.supervisor.ledger import Ledger
from fluxguard.supervisor.sensing.identity import Identity
from fluxguard.supervisor.sensing.sensors import Sensors
from fluxguard.supervisor.showing import status
from tests.bench import house
from tests.bench.measure import MEMORY, REPEATS, Row

RANKS = 16
SHORT, LONG = 1 << 20, 1 << 30
"""Bytes of a log."""
FLOOD = 25 << 20
"""Bytes between two looks: 100 MB a second."""
_LINE = b"steps:  25%|##5       | 10/40 [00:01<01:05,  5.10it/s, avr_loss=2.76]\r"
_WARNING = b"UserWarning: an operator that this build does not have is replaced by a slower one (step 12345)\n"
_WARM, _WATCHED = 5.0, 30.0
_LOOKS = 200
_READS = 5


@contextmanager
def watched_run(folder: Path, ranks: int, log: int = 0) -> Iterator[tuple[RunDir, Attempt]]:
    """Yield a run with an attempt of some ranks that this process stands for, and a log of some bytes."""
    run = RunDir(folder / f"run-{ranks}-{log}")
    run.create()
    mark = uuid.uuid4()
    with tempfile.TemporaryDirectory(dir=MEMORY) as beats:
        write_json(run.run, {"beats": beats})
        hearts = [Heart(heartbeat.path_for(beats, rank), rank=rank, attempt=mark.bytes) for rank in range(ranks)]
        _fill(run.log, log)
        keeper = Identity.of(os.getpid())
        ledger = Ledger(run.ledger, SystemClock())
        ledger.add("attempt", attempt=str(mark), number=1, start_step=0, state=None, argv=[], log_from=0)
        ledger.add("spawned", attempt=str(mark), keeper=keeper.to_mapping() if keeper else {})
        yield run, Attempt(uuid=str(mark), number=1, start_step=0, log_from=0, at=0.0, keeper=keeper)
        for heart in hearts:
            heart.mute()
    run.log.unlink()


def _fill(path: Path, size: int) -> None:
    """Write a log of a bar that is drawn again and again."""
    lines = _LINE * (SHORT // len(_LINE))
    with path.open("wb") as file:
        while file.tell() < size:
            file.write(lines)


def milliseconds(
    act: Callable[[], object], times: int, of: Callable[[list[float]], float] = statistics.median
) -> float:
    """Return the median cost of one call, as processor time of this process: the machine may be busy otherwise."""
    costs = []
    for _ in range(times):
        began = time.process_time_ns()
        act()
        costs.append((time.process_time_ns() - began) / 1e6)
    return of(costs)


def look_rows(folder: Path) -> list[Row]:
    """Measure one turn of the loop without its sleep: look, remember, detect."""
    with watched_run(folder, RANKS) as (run, attempt):
        sensors, limits = Sensors(run, attempt, SystemClock()), Limits()
        history = [History.begun(sensors.look(sample=True))]

        def turn(*, sample: bool = False) -> None:
            history[0] = history[0].then(sensors.look(sample=sample))
            detect(history[0], limits)

        plain = milliseconds(turn, _LOOKS)
        sampled = milliseconds(lambda: turn(sample=True), _LOOKS // 4)
    return [
        Row(f"a look at {RANKS} ranks", plain, "ms", 2.0, peers=f"(one that samples the machine too: {sampled:.2f})")
    ]


def log_rows(folder: Path) -> list[Row]:
    """Measure what the length of the log costs: taking a run over, asking for its status."""
    costs: dict[int, tuple[float, float]] = {}
    for size in (SHORT, LONG):
        with watched_run(folder, 1, size) as (run, attempt):
            taken = milliseconds(partial(_taken_over, run, attempt), _READS, min)
            costs[size] = (taken, milliseconds(partial(status.read, run), _READS, min))
    adoption, asked = ((costs[LONG][i], costs[SHORT][i]) for i in (0, 1))
    return [
        Row(
            "taking over a log of 1 GB over one of 1 MB",
            adoption[0] / adoption[1],
            "times",
            1.5,
            peers=_plain(adoption),
        ),
        Row("status with a log of 1 GB over one of 1 MB", asked[0] / asked[1], "times", 2.0, peers=_plain(asked)),
    ]


def _taken_over(run: RunDir, attempt: Attempt) -> None:
    sensors = Sensors(run, attempt, SystemClock())
    while sensors.tail.position < run.log.stat().st_size:
        sensors.look()


def _plain(costs: tuple[float, float]) -> str:
    return f"({costs[0]:.0f} ms, {costs[1]:.0f} ms)"


def flood_row(folder: Path) -> Row:
    """Measure a look at a trainer that has written 25 MB since the last one."""
    with watched_run(folder, 1, FLOOD) as (run, attempt):
        sensors = Sensors(run, attempt, SystemClock())
        sensors.look()
        costs = []
        for _ in range(REPEATS):
            with run.log.open("ab") as file:
                file.write(_WARNING * (FLOOD // len(_WARNING)))
            costs.append(milliseconds(sensors.look, 1))
    return Row("a look in a flood of 100 MB a second", statistics.median(costs), "ms", 20.0)


def watching_rows(folder: Path) -> list[Row]:
    """Measure a real supervisor while it watches a trainer of 20 steps a second, its first seconds left out."""
    process, out = house.fake_run(folder, "watched", step=0.05, epochs=200)
    time.sleep(_WARM)
    before = process.cpu_times()
    time.sleep(_WATCHED)
    after, memory = process.cpu_times(), process.memory_info().rss / 1e6
    house.end(process, out)
    used = after.user + after.system - before.user - before.system
    return [
        Row("a supervisor's memory (RSS)", memory, "MB", 80.0),
        Row(f"a supervisor's share of a core over {_WATCHED:g} s", 100 * used / _WATCHED, "%", 1.0),
    ]


def rows() -> list[Row]:
    """Measure all of them."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        return [*look_rows(folder), *log_rows(folder), flood_row(folder), *watching_rows(folder)]
