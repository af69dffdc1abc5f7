"""Laws of reads on the main thread: a signal ends them, a second call heals them, and nobody else's signal is touched.

The watcher's part is played by the body of the read, which lets a fake clock pass and looks as the watcher would.
"""

from __future__ import annotations

import math
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fluxguard import fail_after, limits
from fluxguard.errors import CacheBroken, DeadlineExceeded
from fluxguard.guard import alarm, deadlines, pulse, readers
from fluxguard.guard.alarm import Fatal
from fluxguard.guard.healed import Heal
from fluxguard.guard.reads import reads
from fluxguard.guard.watcher import watcher
from fluxguard.heartbeat import Heart

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX signals")

LIMIT = 8.0


class World:
    """A fake clock, the bytes that the reading thread gets, and what was told."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.slept = 0.0
        self.bytes = 0
        self.healed: list[Heal] = []

    def passes(self, seconds: float, byte_every: float = math.inf) -> None:
        """Let time pass in which the watcher looks at each open read once a second."""
        for second in range(1, int(seconds) + 1):
            self.now += 1.0
            if second % byte_every == 0:
                self.bytes += 1
            alarm._poll.looks(None)


class Moved:
    """Counts as the kernel does."""

    world: World

    def __init__(self, thread: int) -> None:
        self._seen = self.world.bytes

    def moved(self) -> bool:
        """Return whether a byte came since the last look."""
        before, self._seen = self._seen, self.world.bytes
        return before != self._seen


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    world = World()
    if alarm._poll._wait is not None:  # the watcher of this process would look as well, and beside the test
        watcher().close(alarm._poll._wait)
    alarm._poll.forget()
    monkeypatch.setattr(alarm._poll, "hurry", alarm._poll._pace)
    monkeypatch.setattr(alarm, "awake", lambda: world.now)
    monkeypatch.setattr(alarm, "lost", lambda: world.slept)
    monkeypatch.setattr(alarm, "ThreadMoved", type("Counted", (Moved,), {"world": world}))
    monkeypatch.setattr(deadlines._scopes, "now", lambda: world.now)
    monkeypatch.setattr(readers, "tell", world.healed.append)
    with limits.use(read=LIMIT):
        yield world
    alarm._poll.forget()
    assert not alarm._open


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    path = tmp_path / "image.npz"
    path.write_bytes(b"whole")
    return path


def stuck_until_call(number: int, world: World) -> Callable[[Path], int]:
    """Make a guarded function whose calls before that one get no byte."""
    calls = 0

    @reads
    def read(path: Path) -> int:
        nonlocal calls
        calls += 1
        if calls < number:
            world.passes(100)
        return calls

    return read


def test_a_read_that_is_stuck_once_is_made_again(cache: Path, world: World) -> None:
    """A second open finds another server, or the mount that came back; the training goes on as it would have."""
    assert stuck_until_call(2, world)(cache) == 2
    (heal,) = world.healed
    assert (heal.what, heal.cause, heal.file) == (f"reading {cache}", "file read", str(cache))
    assert heal.why == "no new byte came for 8 s; it was opened again, and read"
    assert heal.identical


def test_a_read_that_is_stuck_twice_fails(cache: Path, world: World) -> None:
    """It is tried once more, not for ever; the file is left."""
    with pytest.raises(DeadlineExceeded, match=r"image\.npz did not finish within 8 s.*also when it was opened again"):
        stuck_until_call(3, world)(cache)
    assert cache.exists()
    assert not world.healed


def test_the_limit_counts_from_the_last_new_byte(cache: Path, world: World) -> None:
    """A byte each seven seconds, for ten times the limit, is a slow disk."""

    @reads
    def read(path: Path) -> None:
        world.passes(10 * LIMIT, byte_every=7)

    read(cache)
    with reads(cache):
        world.passes(10 * LIMIT, byte_every=7)
    assert not world.healed


def test_a_block_cannot_be_made_again(cache: Path, world: World) -> None:
    """Part of it is done already."""
    with pytest.raises(DeadlineExceeded, match="no new byte came; the file is left"), reads(cache):
        world.passes(100)


def test_a_function_is_made_again_when_a_block_in_it_is_stuck(cache: Path, world: World) -> None:
    """Both guards are in hardened trainers, around the same read."""
    calls = []

    @reads
    def outer(path: Path) -> int:
        calls.append(path)
        with reads(path):
            if len(calls) == 1:
                world.passes(100)
        return len(calls)

    assert outer(cache) == 2
    assert len(world.healed) == 1


def test_of_two_functions_the_inner_one_is_made_again(cache: Path, world: World) -> None:
    """The outer one has waited as long, and leaves it to the inner one."""
    inner = stuck_until_call(2, world)
    outer_calls = []

    @reads
    def outer(path: Path) -> int:
        outer_calls.append(path)
        return inner(path)

    assert outer(cache) == 2
    assert len(outer_calls) == len(world.healed) == 1


def test_what_was_made_again_inside_is_not_made_again_outside(cache: Path, world: World) -> None:
    """Two waits at the most, however deep the guards are nested."""
    calls = []

    @reads
    def inner(path: Path) -> None:
        calls.append(path)
        world.passes(100)

    @reads
    def outer(path: Path) -> None:
        inner(path)

    began = world.now
    with pytest.raises(DeadlineExceeded, match="also when it was opened again"):
        outer(cache)
    assert len(calls) == 2
    assert world.now - began < 3 * LIMIT


def test_an_outer_limit_is_not_masked_by_a_longer_one(cache: Path, world: World) -> None:
    """Nor by none at all."""

    @reads
    def patient(path: Path) -> None:
        with limits.use(read=50), reads(path):
            world.passes(100)

    began = world.now
    with pytest.raises(DeadlineExceeded, match="within 8 s"):
        patient(cache)
    assert world.now - began < 3 * LIMIT


def test_a_limit_that_was_made_another_error_of_is_one_all_the_same(cache: Path, world: World) -> None:
    """It is an OSError, which zipfile turns into a bad file: the file is not looked at, but read again."""
    calls = []

    @reads
    def read(path: Path) -> int:
        calls.append(path)
        try:
            if len(calls) == 1:
                world.passes(100)
        except OSError:
            raise ValueError("File is not a zip file")  # noqa: B904 - as zipfile does
        return len(calls)

    assert read(cache) == 2
    assert cache.exists()


def test_a_limit_that_passed_before_is_no_reason_to_believe_a_broken_file(cache: Path, world: World) -> None:
    """Who handles one error may well read another file."""
    cache.write_bytes(b"")
    try:
        raise DeadlineExceeded("another wait", 3)
    except DeadlineExceeded:
        with pytest.raises(CacheBroken), reads(cache):
            raise EOFError  # noqa: B904 - an error of its own


def test_a_limit_that_is_swallowed_rings_again(cache: Path, world: World) -> None:
    """Until the read is left."""

    @reads
    def read(path: Path) -> int:
        for call in range(3):
            try:
                world.passes(100)
            except OSError:
                if call == 2:
                    raise
        return 0

    with pytest.raises(DeadlineExceeded):
        read(cache)


def test_a_bell_that_comes_too_late_is_not_heard(cache: Path, world: World) -> None:
    """The read is over; an error raised while it is left would leave its alarm open."""

    class Late(list[alarm.Alarm]):
        def remove(self, value: alarm.Alarm) -> None:
            alarm._bell.ring(signal.SIGURG, sys._getframe(1))
            super().remove(value)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(alarm, "_open", Late())
        with reads(cache):
            world.now += 1
            alarm._poll.looks(None)
            world.now += 100
            alarm._open[0].due = True
        assert not alarm._open


def test_looks_are_closer_together_for_a_short_limit(cache: Path, world: World) -> None:
    """And as far apart as ever when it is gone: a watcher that wakes costs a little."""
    with limits.use(read=2), reads(cache):
        assert alarm._poll.looks(None) == 0.08
        assert alarm._poll.shortest == 2
    assert alarm._poll.looks(None) == 1
    assert alarm._poll.shortest == 25


def test_an_earlier_deadline_is_kept_and_never_waited_for_again(cache: Path, world: World) -> None:
    """Whoever set it has no more time."""
    calls = []

    @reads
    def read(path: Path) -> None:
        calls.append(path)
        world.passes(100)

    with pytest.raises(DeadlineExceeded, match="the check did not finish within 3 s"), fail_after(3, "the check"):
        read(cache)
    assert len(calls) == 1


def test_a_broken_file_is_not_read_again(cache: Path, world: World) -> None:
    """What is proven needs no second look."""
    calls = []

    @reads
    def read(path: Path) -> None:
        calls.append(path)
        raise EOFError

    cache.write_bytes(b"")
    with pytest.raises(CacheBroken):
        read(cache)
    assert len(calls) == 1


def test_a_deadline_of_somebody_else_is_not_taken_for_ours(cache: Path, world: World) -> None:
    """Another wait in the function has failed; to read again would not help."""
    calls = []

    @reads
    def read(path: Path) -> None:
        calls.append(path)
        raise DeadlineExceeded("a barrier", 3)

    with pytest.raises(DeadlineExceeded, match="barrier"):
        read(cache)
    assert len(calls) == 1


def test_a_slow_read_teaches_how_long_its_bytes_take(cache: Path, world: World, heart: Heart) -> None:
    """The limit is one for the silence between two bytes, so that is what is learned; a quick read teaches nothing."""

    @reads
    def read(path: Path, seconds: float) -> None:
        world.passes(seconds, byte_every=6)

    read(cache, 0)
    assert heart.longest_read == 0
    read(cache, 60)
    assert heart.longest_read == 6


def test_a_read_that_was_made_again_or_slept_teaches_nothing(cache: Path, world: World, heart: Heart) -> None:
    """Limits grow by what is healthy only."""
    stuck_until_call(2, world)(cache)
    with reads(cache):
        world.passes(5)
        world.slept = 60
    assert heart.longest_read == 0


def test_a_bell_that_is_not_heard_ends_a_trainer(
    cache: Path, world: World, heart: Heart, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call of C that begins again after each signal, or a kernel that delivers none."""
    ends: list[Any] = []
    monkeypatch.setattr(signal, "pthread_kill", lambda *_: None)
    monkeypatch.setattr(alarm, "end_process", ends.append)
    with reads(cache):
        world.passes(LIMIT + 3)
        assert not ends
        world.passes(5)
    assert (ends[0].file, ends[0].cause) == (str(cache), "file read")


def test_a_bell_that_is_not_heard_is_said_once_elsewhere(
    cache: Path, world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """No other process is ended by us, but nothing is silent."""

    class Now(threading.Thread):
        def start(self) -> None:
            self.run()

    monkeypatch.setattr(signal, "pthread_kill", lambda *_: None)
    monkeypatch.setattr(threading, "Thread", Now)
    with reads(cache):
        world.passes(100)
    assert caplog.text.count("in a call that nothing can interrupt") == 1


@pytest.fixture
def own_alarm() -> Iterator[None]:
    """An alarm of somebody else's; pytest-timeout's own is put back afterwards."""
    before = signal.signal(signal.SIGALRM, lambda *_: None)
    left, every = signal.setitimer(signal.ITIMER_REAL, 60)
    yield
    signal.signal(signal.SIGALRM, before)
    signal.setitimer(signal.ITIMER_REAL, left, every)


@pytest.mark.usefixtures("own_alarm")
def test_a_foreign_alarm_keeps_its_time_and_its_bell(cache: Path) -> None:
    """One timer per process, and one handler: neither is ours, before, in and after a read."""
    bell = signal.getsignal(signal.SIGALRM)
    with reads(cache), reads(cache):
        assert 59 < signal.getitimer(signal.ITIMER_REAL)[0] <= 60
        assert signal.getsignal(signal.SIGALRM) is bell
    assert 59 < signal.getitimer(signal.ITIMER_REAL)[0] <= 60
    assert signal.getsignal(signal.SIGALRM) is bell


@pytest.fixture
def bell(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let the tests set handlers of the signal that we ring with."""
    before = signal.getsignal(signal.SIGURG)
    monkeypatch.setattr(alarm._bell, "before", None)
    yield
    signal.signal(signal.SIGURG, before)


@pytest.mark.usefixtures("bell")
def test_a_foreign_bell_is_passed_on(cache: Path) -> None:
    """Set before ours or after it, and also when each passes it on to the other."""
    rung: list[str] = []

    def before(number: int, frame: Any) -> None:
        rung.append("before")
        alarm._ring(number, frame)

    def after(number: int, frame: Any) -> None:
        rung.append("after")
        alarm._ring(number, frame)

    signal.signal(signal.SIGURG, before)
    with reads(cache):
        assert signal.getsignal(signal.SIGURG) is alarm._ring
        signal.raise_signal(signal.SIGURG)
        signal.signal(signal.SIGURG, after)
        signal.raise_signal(signal.SIGURG)
    assert rung == ["before", "after", "before"]


@pytest.mark.usefixtures("bell")
def test_a_handler_that_was_set_over_ours_does_not_silence_the_next_read(cache: Path, world: World) -> None:
    """Ours is set again, over it."""
    signal.signal(signal.SIGURG, signal.SIG_IGN)
    with pytest.raises(DeadlineExceeded), reads(cache):
        world.passes(100)


def test_a_body_that_raises_leaves_nothing_open(cache: Path, world: World) -> None:
    """After a read nobody rings, whatever the read did."""
    with pytest.raises(KeyError), reads(cache.with_suffix(".png")):
        raise KeyError
    cache.unlink()
    cache.mkdir()
    with pytest.raises(CacheBroken), reads(cache):
        pass
    assert not alarm._open


def test_a_block_on_another_thread_ends_a_trainer(
    cache: Path, world: World, heart: Heart, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing else can; its limit counts from the last byte as well, and shows in the heartbeat from the first tick."""
    ends: list[Any] = []
    monkeypatch.setattr(alarm, "_SIGNAL", None)
    monkeypatch.setattr(alarm, "end_process", ends.append)
    fatal = Fatal(str(cache), LIMIT)
    fatal.open()
    try:
        alarm._open.append(fatal)  # type: ignore[arg-type]
        world.passes(100, byte_every=7)
        assert heart.wait == b"file read"
        assert not ends
        world.passes(LIMIT)
        assert ends[0].file == str(cache)
    finally:
        alarm._open.clear()
        fatal.close()
    assert heart.wait == b""
    assert pulse.begun()
