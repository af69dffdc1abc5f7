"""Laws of putting fresh workers in the place of stuck or dead ones, with workers that answer at once."""

from __future__ import annotations

import errno
import queue
import sys
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from multiprocessing import connection
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest

from fluxguard import limits
from fluxguard.errors import WorkerDied, WorkerStuck
from fluxguard.guard import batch_wait, crew, ending, fetch, kin, pulse
from fluxguard.guard import healed as healing
from fluxguard.guard.crew import Delivery
from fluxguard.guard.ending import Verdict
from fluxguard.guard.fetch import Fetch, Lost
from fluxguard.guard.healed import Heal
from fluxguard.guard.rehearsal import GoOnWith
from fluxguard.guard.watcher import Wait
from fluxguard.limits import Limits

MAP, STREAM = "map", "stream"
Load = Callable[["Worker", Any], Any]


class Ended(Exception):
    """In place of the end of this process."""


class Worker:
    """A worker that does at once all that it is given, until it dies; its random state is a number."""

    made = 0

    def __init__(self, number: int, load: Load, results: Results) -> None:
        Worker.made += 1
        self.pid = 100 + Worker.made
        self.number, self.load, self.results = number, load, results
        self.exitcode: int | None = None
        self.sentinel = self
        self.drawn = self.loads = 0

    def does(self, task: Any) -> None:
        """Answer a task."""
        if isinstance(task, GoOnWith):
            (self.drawn,) = task.states
        elif self.exitcode is None:
            key, samples = task
            self.loads += 1
            self.drawn += samples[0]
            batch = self.load(self, samples)
            if self.exitcode is None and batch is not None:
                self.results.sent.append(Delivery(self.number, (key, batch), (self.drawn,)))


class Results:
    """What the workers of today have sent."""

    def __init__(self, load: Load) -> None:
        self.load = load
        self.sent: deque[Delivery] = deque()
        self.line: Any = self
        self._reader = self._writer = SimpleNamespace(close=lambda: None)
        self.fetch: Any = None
        self.fails: OSError | None = None

    def get(self) -> Any:
        """See WatchedQueue."""
        pair = self.fetch.crew.delivered(self.sent.popleft(), self.fetch.crew.generation)
        if pair is None:
            raise queue.Empty
        return pair

    def replace(self, _: Any, replaced: crew.Crew) -> None:
        """See WatchedQueue."""
        replaced.replaced()
        self.sent.clear()
        if self.fails:
            raise self.fails
        for number, member in enumerate(replaced.members):
            fresh: Any = Worker(number, self.load, self)
            member.process = fresh
            for message in member.work():
                fresh.does(message)


class Iterator:
    """What a fetch knows of torch's."""

    def __init__(self, kind: str) -> None:
        self._timeout = 0
        self._pin_memory = False
        self._dataset_kind = kind
        self._try_get_data: Any = None


class Loader:
    """An iterator of two workers over batches of one sample each."""

    def __init__(self, load: Load, kind: str = MAP, batches: int = 8) -> None:
        self.iterator, results = Iterator(kind), Results(load)
        self.results = results
        self.fetch = results.fetch = Fetch(self.iterator, results)
        for number in range(2):
            process: Any = Worker(number, load, results)
            self.fetch.crew.join(process, (None, ()))
        self.fetch._given = True  # no signal's handler is taken over for fake workers
        for key in range(batches):
            worker: Any = self.fetch.crew.members[key % 2].process
            self.fetch.gives(key % 2, (key, [key]))
            worker.does((key, [key]))

    def take(self, batches: int = 8) -> list[Any]:
        """Return so many batches, in the order of their numbers."""
        return [pair[1] for pair in sorted(self.iterator._try_get_data()[1] for _ in range(batches))]


@pytest.fixture
def healed(monkeypatch: pytest.MonkeyPatch) -> list[Heal]:
    """Let nothing of this process be touched, and return what was told."""

    def wait(waited: list[Any], _: float) -> list[Any]:
        reader, *ends = waited
        loader = next(iter(ends)).results if ends else None
        ready = [reader] if loader is not None and loader.sent else []
        return ready + [end for end in ends if end.exitcode is not None]

    def end(verdict: Verdict) -> NoReturn:
        raise Ended(ending._line(verdict, 75))

    told: list[Heal] = []
    data = SimpleNamespace(_DatasetKind=SimpleNamespace(Map=MAP))
    unwatched = SimpleNamespace(open=lambda *_, **__: None, close=lambda _: None)
    monkeypatch.setitem(sys.modules, "torch.utils.data", data)
    monkeypatch.setattr(connection, "wait", wait)
    monkeypatch.setattr(fetch, "end_process", end)
    monkeypatch.setattr(fetch, "_process", fetch._Process())
    monkeypatch.setattr(healing, "tell", told.append)
    monkeypatch.setattr(batch_wait, "watcher", lambda: unwatched)
    monkeypatch.setattr(kin, "kill_below", lambda _: lambda: None)
    monkeypatch.setattr(crew, "_kill", lambda _: None)
    monkeypatch.setattr(crew, "stopped", lambda _: False)
    monkeypatch.setattr(pulse._trainer, "begun", False)
    monkeypatch.setattr(limits._process, "limits", Limits(max_heals=3))
    return told


def has(monkeypatch: pytest.MonkeyPatch, **fields: Any) -> None:
    """Let this process have such limits."""
    monkeypatch.setattr(limits._process, "limits", replace(limits.current(), **fields))


def stuck_at(*samples: int) -> Load:
    """Return how a worker loads that is never heard of again at these samples, once for each."""
    left = list(samples)

    def load(worker: Worker, given: Any) -> Any:
        if given[0] in left:
            left.remove(given[0])
            worker.exitcode = 3
        return worker.drawn

    return load


def plain(worker: Worker, _: Any) -> Any:
    """Return what a worker loads that nothing happens to: it depends on all that it drew before."""
    return worker.drawn


def counting(worker: Worker, given: Any) -> Any:
    """Load what depends on a state that no random number tells: how much this copy of the dataset has loaded."""
    if given[0] == 7 and worker.loads == 4:
        worker.exitcode = 3
    return worker.loads


def test_batches_after_a_heal_are_those_without_one(healed: list[Heal]) -> None:
    """Each once, and with the random numbers that the dead worker would have drawn."""
    undisturbed = Loader(plain).take()
    assert Loader(stuck_at(5)).take() == undisturbed
    (heal,) = healed
    assert heal.identical
    assert heal.cause == "loader worker"
    assert heal.why.endswith("exited with code 3 and was replaced")


def test_one_that_dies_while_it_catches_up_is_replaced_as_well(healed: list[Heal]) -> None:
    """It is one more heal of the process, but one story."""
    undisturbed = Loader(plain).take()
    assert Loader(stuck_at(5, 5)).take() == undisturbed
    assert fetch._process.heals == 2
    assert all(heal.identical for heal in healed)


def test_heals_are_counted_over_the_process(healed: list[Heal], monkeypatch: pytest.MonkeyPatch) -> None:
    """Not for each epoch's iterator: what happens every epoch is no fault that passes."""
    has(monkeypatch, max_heals=2)
    for _ in range(2):
        Loader(stuck_at(5)).take()
    with pytest.raises(WorkerDied, match="exited with code 3"):
        Loader(stuck_at(5)).take()
    assert len(healed) == 2


def test_a_trainer_is_ended_where_nothing_is_healed(healed: list[Heal], monkeypatch: pytest.MonkeyPatch) -> None:
    """With what is wrong in its last line."""
    has(monkeypatch, max_heals=0)
    monkeypatch.setattr(pulse._trainer, "begun", True)
    with pytest.raises(Ended, match=r"worker process \d+ exited with code 3; .*\(max_heals is 0\); this process ends"):
        Loader(stuck_at(5)).take()
    assert not healed


def test_a_stream_is_never_healed(healed: list[Heal]) -> None:
    """It cannot be begun again in its middle."""
    with pytest.raises(WorkerDied):
        Loader(stuck_at(5), STREAM).take()
    assert not healed


def test_a_doubt_is_said(healed: list[Heal]) -> None:
    """A dataset with a state of its own goes on as a fresh copy would."""
    Loader(counting).take()
    (heal,) = healed
    assert not heal.identical
    assert "not the same" in heal.doubt


def test_a_strict_process_raises_where_a_doubt_is(healed: list[Heal], monkeypatch: pytest.MonkeyPatch) -> None:
    """Instead of going on maybe otherwise."""
    has(monkeypatch, strict=True)
    with pytest.raises(WorkerDied, match="exited with code 3; the training would not go on identically"):
        Loader(counting).take()
    assert not healed


def test_a_strict_trainer_ends_where_a_doubt_is(healed: list[Heal], monkeypatch: pytest.MonkeyPatch) -> None:
    """And says which doubt it was."""
    has(monkeypatch, strict=True)
    monkeypatch.setattr(pulse._trainer, "begun", True)
    with pytest.raises(Ended, match="would not go on identically: a batch that was fetched again is not the same"):
        Loader(counting).take()
    assert not healed


def test_a_strict_trainer_is_healed_where_none_is(healed: list[Heal], monkeypatch: pytest.MonkeyPatch) -> None:
    """Strictness asks for the same training, not for an undisturbed one."""
    has(monkeypatch, strict=True)
    Loader(stuck_at(5)).take()
    assert len(healed) == 1


def test_without_memory_for_other_workers_it_is_the_end(healed: list[Heal], monkeypatch: pytest.MonkeyPatch) -> None:
    """Both things are said: what was wrong with the worker, and why no other took its place."""
    monkeypatch.setattr(pulse._trainer, "begun", True)
    loader = Loader(stuck_at(5))
    loader.results.fails = OSError(errno.ENOMEM, "Cannot allocate memory")
    with pytest.raises(Ended, match=r"exited with code 3; .*; no other can be started \(Cannot allocate memory\)"):
        loader.take()


def test_a_stuck_worker_is_replaced_when_its_limit_has_passed(healed: list[Heal]) -> None:
    """The watcher kills it, and whoever waits goes on with others."""
    loader = Loader(silent_at(5))
    limit = passed(loader.fetch)
    assert limit.on_due(limit) is None
    assert loader.take() == Loader(plain).take()
    (heal,) = healed
    assert "was stuck for 1 s and was replaced" in heal.why
    assert len(heal.workers) == 1


def test_a_stuck_worker_raises_where_nothing_is_healed(healed: list[Heal], monkeypatch: pytest.MonkeyPatch) -> None:
    """And the process lives on: it is no trainer."""
    has(monkeypatch, max_heals=0)
    loader = Loader(silent_at(5))
    limit = passed(loader.fetch)
    assert limit.on_due(limit) is None
    with pytest.raises(WorkerStuck, match=r"within 1 s on thread MainThread; worker process \d+ was stuck"):
        loader.take()
    assert not healed


def test_a_trainer_that_does_not_wake_up_is_ended(healed: list[Heal], monkeypatch: pytest.MonkeyPatch) -> None:
    """Its workers are gone, and still it waits for one of them."""
    monkeypatch.setattr(pulse._trainer, "begun", True)
    loader = Loader(silent_at(5))
    limit = passed(loader.fetch)
    assert limit.on_due(limit) == 1.0
    with pytest.raises(Ended, match="a batch from the loader did not finish within 1 s"):
        limit.on_due(limit)


def test_a_stuck_trainer_that_may_not_be_healed_is_ended_by_the_watcher(
    healed: list[Heal], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever waits need not wake up for it."""
    has(monkeypatch, max_heals=0)
    monkeypatch.setattr(pulse._trainer, "begun", True)
    loader = Loader(silent_at(5))
    limit = passed(loader.fetch)
    with pytest.raises(Ended, match=r"a batch from the loader did not finish within 1 s; worker process \d+ was stuck"):
        limit.on_due(limit)


def silent_at(sample: int) -> Load:
    """Return how a worker loads that does nothing any more at this sample, once."""
    left = [sample]

    def load(worker: Worker, given: Any) -> Any:
        if given[0] in left:
            left.remove(given[0])
            worker.load = lambda *_: None
            return None
        return worker.drawn

    return load


def passed(waiting: Fetch) -> Wait:
    """Let all be delivered that was sent, and return the limit of the wait for the rest, which passes now."""
    for delivery in list(waiting._results.sent):
        waiting._held.append(waiting.crew.delivered(delivery, 0))
    waiting._results.sent.clear()
    waiting._wait.begins()
    limit = Wait(batch_wait.WHAT, 1.0, time.monotonic(), waiting._due, pulse.begun())
    waiting._wait._wait = limit
    return limit


def lost(*, stuck: bool, why: str) -> Lost:
    return Lost(why, stuck, time.monotonic(), 600.0, (4711,), ([13],), None)


STUCK = lost(stuck=True, why="worker process 4711 was stuck for 600 s")
DEAD = lost(stuck=False, why="worker process 4711 exited with code 3")


def test_the_end_of_a_trainer_names_the_wait_of_stuck_workers() -> None:
    """As every passed limit is said, with the workers and their samples."""
    line = ending._line(STUCK.verdict(), 75)
    assert "a batch from the loader did not finish within 600 s" in line
    assert "worker process 4711 was stuck for 600 s; it held the samples [13]" in line
    assert STUCK.verdict().cause == "loader worker"


def test_the_end_of_a_trainer_says_what_became_of_dead_workers() -> None:
    """It was no wait that failed, so no limit is named."""
    line = ending._line(DEAD.verdict("no other can be started (no memory)"), 75)
    assert "worker process 4711 exited with code 3; it held the samples [13]; no other can be started (no mem" in line
    assert "600" not in line
    assert DEAD.verdict().samples == ([13],)


def test_why_stuck_workers_were_not_replaced_is_said_too() -> None:
    """Else it would seem that nothing had been tried."""
    line = ending._line(STUCK.verdict("the training would not go on identically: so"), 75)
    assert "the samples [13]; the training would not go on identically: so; this process ends" in line


def test_where_nothing_may_be_ended_it_is_raised() -> None:
    """With the workers as a field, and for stuck ones the samples."""
    stuck, dead = STUCK.error(), DEAD.error()
    assert isinstance(stuck, WorkerStuck)
    assert (stuck.workers, stuck.samples) == ((4711,), ([13],))
    assert isinstance(dead, WorkerDied)
    assert dead.workers == (4711,)
    assert "exited with code 3" in str(dead)
    assert "4711 was stuck and has been killed" in str(STUCK.error("no other can be started"))
    assert "the samples [13]; no other can be started" in str(STUCK.error("no other can be started"))
