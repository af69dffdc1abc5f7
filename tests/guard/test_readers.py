"""Laws of reads where no signal can interrupt them: a thread of ours reads, and whoever waits for it can leave."""

from __future__ import annotations

import contextvars
import gc
import sys
import threading
import traceback
import types
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fluxguard import fail_after, limits
from fluxguard.errors import CacheBroken, DeadlineExceeded
from fluxguard.guard import alarm, deadlines, readers
from fluxguard.guard import reads as module
from fluxguard.guard.healed import Heal
from fluxguard.guard.reads import abandoned, reads
from fluxguard.heartbeat import Heart

LIMIT = 8.0
POLL = 0.001
SOON = 5.0


class World:
    """A platform without signals and counters, on which time passes only while somebody waits for a stuck reader."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.stuck = 0
        self.release = threading.Event()
        self.continued: list[str] = []
        self.healed: list[Heal] = []
        self.interrupt: BaseException | None = None

    def hang(self) -> None:
        """Be stuck, as in a read from a mount that is gone, until the end of the test."""
        self.stuck += 1
        self.release.wait()
        self.continued.append("what was left behind")


class Done:
    """The lock on which the caller waits: for a read that is stuck it lets the fake clock pass instead."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._real = threading.Lock()
        self._real.acquire()
        self._stuck = world.stuck
        self.release = self._real.release

    def acquire(self, timeout: float) -> bool:
        while not self._real.acquire(timeout=POLL):
            if self._world.stuck > self._stuck:
                if self._world.interrupt is not None:
                    raise self._world.interrupt
                self._world.now += timeout
                return False
        return True


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    world = World()

    class Desk(readers.Desk):
        __slots__ = ()

        def __init__(self) -> None:
            super().__init__()
            self.done = Done(world)  # type: ignore[assignment]

    monkeypatch.setattr(readers, "Desk", Desk)
    monkeypatch.setattr(readers, "awake", lambda: world.now)
    monkeypatch.setattr(readers, "ThreadMoved", lambda _: types.SimpleNamespace(moved=lambda: False))
    monkeypatch.setattr(readers, "tell", world.healed.append)
    monkeypatch.setattr(deadlines._scopes, "now", lambda: world.now)
    monkeypatch.setattr(alarm, "_SIGNAL", None)
    monkeypatch.setattr(readers._own, "reader", None)
    with limits.use(read=LIMIT):
        yield world
    left = list(readers._abandoned)
    world.release.set()
    for thread in left:
        thread.join(SOON)
    assert not world.continued
    assert abandoned() == 0


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    path = tmp_path / "image.npz"
    path.write_bytes(b"whole")
    return path


def stuck_until_call(number: int, world: World) -> Callable[[Path], int]:
    """Make a guarded function whose calls before that one are stuck."""
    calls = 0

    @reads
    def read(path: Path) -> int:
        nonlocal calls
        calls += 1
        if calls < number:
            world.hang()
        return calls

    return read


@reads
def where(path: Path) -> int:
    """Return which thread reads."""
    return threading.get_ident()


def test_one_reader_is_kept(cache: Path, world: World) -> None:
    """To start a thread for each read would cost more than the read."""
    reader = where(cache)
    assert reader != threading.get_ident()
    assert where(cache) == reader


def test_each_thread_has_a_reader_that_ends_with_it(cache: Path, world: World) -> None:
    """Pools come and go; nothing of them stays."""
    kept: list[threading.Thread] = []

    def read() -> None:
        where(cache)
        assert readers._own.reader is not None
        kept.append(readers._own.reader.thread)

    caller = threading.Thread(target=read)
    caller.start()
    caller.join(SOON)
    kept[0].join(SOON)
    assert not kept[0].is_alive()


def test_a_read_that_is_stuck_once_is_made_again_on_another_reader(cache: Path, world: World) -> None:
    """The first one is left behind, and counted."""
    assert stuck_until_call(2, world)(cache) == 2
    assert abandoned() == 1
    (heal,) = world.healed
    assert (heal.cause, heal.file, heal.identical) == ("file read", str(cache), True)


def test_a_read_that_is_stuck_twice_is_given_up(cache: Path, world: World) -> None:
    """In the thread that waits, which is free again."""
    with pytest.raises(DeadlineExceeded, match=r"reading .*image\.npz did not finish within 8 s.*2 threads stuck"):
        stuck_until_call(3, world)(cache)
    assert abandoned() == 2
    assert cache.exists()


def test_a_trainer_is_ended_with_the_file_named(
    cache: Path, world: World, heart: Heart, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next attempt reads it again."""
    ends: list[Any] = []
    monkeypatch.setattr(readers, "end_process", ends.append)
    with pytest.raises(DeadlineExceeded):  # the end is not the end here
        stuck_until_call(3, world)(cache)
    assert (ends[0].cause, ends[0].file, ends[0].again) == ("file read", str(cache), True)


def test_what_is_left_behind_does_nothing_more(cache: Path, world: World) -> None:
    """When its call returns at last, its work has been done by another one."""
    stuck_until_call(2, world)(cache)
    (left,) = readers._abandoned
    world.release.set()
    left.join(SOON)
    assert not left.is_alive()
    assert not world.continued


def test_new_bytes_are_waited_for(cache: Path, world: World, heart: Heart, monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit counts from the last byte that the reader got; what it needed is learned."""
    looks = 0

    def moved() -> bool:
        nonlocal looks
        looks += 1
        if looks == 300:
            finish.set()
            world.stuck -= 1
        return looks % 20 == 0

    finish = threading.Event()
    monkeypatch.setattr(readers, "ThreadMoved", lambda _: types.SimpleNamespace(moved=moved))

    @reads
    def read(path: Path) -> str:
        world.stuck += 1
        finish.wait()
        return "read"

    began = world.now
    assert read(cache) == "read"
    assert world.now - began > 10 * LIMIT
    assert not world.healed
    assert heart.longest_read == pytest.approx(20 * LIMIT / 25)


def test_an_earlier_deadline_is_kept_and_never_waited_for_again(cache: Path, world: World) -> None:
    """It is the caller's, whose thread waits."""
    with pytest.raises(DeadlineExceeded, match="the check did not finish within 3 s"), fail_after(3, "the check"):
        stuck_until_call(3, world)(cache)
    assert world.stuck == 1
    assert abandoned() == 1


def test_an_interrupt_of_the_user_leaves_the_wait(cache: Path, world: World) -> None:
    """Ctrl-C on the main thread of a platform without signals."""
    world.interrupt = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        stuck_until_call(2, world)(cache)
    assert abandoned() == 1


def test_a_read_inside_a_read_is_made_on_the_same_reader(cache: Path, world: World) -> None:
    """A reader that waited for itself would wait for ever; the innermost file is the one that is named."""
    inner_path = cache.with_name("inner.npz")
    inner_path.write_bytes(b"whole")

    @reads
    def outer(path: Path) -> tuple[int, int]:
        with reads(path):
            return threading.get_ident(), where(inner_path)

    assert len(set(outer(cache))) == 1

    @reads
    def stuck(path: Path) -> None:
        stuck_until_call(3, world)(inner_path)

    with pytest.raises(DeadlineExceeded, match=r"reading .*inner\.npz"):
        stuck(cache)


def test_a_read_in_the_middle_of_a_wait_gets_another_reader(cache: Path, world: World) -> None:
    """A finalizer or a handler of the waiting thread may read as well."""
    inner: list[int] = []

    class Interrupting(Done):
        def acquire(self, timeout: float) -> bool:
            if not inner:
                inner.append(0)
                inner[0] = where(cache)
            return super().acquire(timeout)

    first = where(cache)
    reader = readers._own.reader
    assert reader is not None
    reader.desk.done = Interrupting(world)  # type: ignore[assignment]
    assert where(cache) == first
    assert inner[0] not in (0, first)


def test_an_error_keeps_its_frames_and_no_others(cache: Path, world: World) -> None:
    """It is raised where it is waited for; nothing keeps the frames that hold a file open once it is handled."""
    picture = cache.with_suffix(".png")  # no cache, of which an error proves nothing
    held: list[weakref.ref[Any]] = []

    class File:
        pass

    @reads
    def fail(path: Path) -> None:
        file = File()
        held.append(weakref.ref(file))
        raise ValueError("shapes differ")

    gc.disable()
    try:
        with pytest.raises(ValueError, match="shapes differ") as caught:
            fail(picture)
        assert "in fail" in "".join(traceback.format_tb(caught.value.__traceback__))
        del caught
        assert held[0]() is None
    finally:
        gc.enable()


def test_a_broken_file_is_set_aside_from_there(cache: Path, world: World) -> None:
    """All that touches the file is done by the reader, also what proves it broken; it is not read again."""
    calls = []

    @reads
    def read(path: Path) -> None:
        calls.append(path)
        raise EOFError

    cache.write_bytes(b"")
    with pytest.raises(CacheBroken, match="is empty; set aside"):
        read(cache)
    assert len(calls) == 1


def test_context_variables_are_those_of_the_caller(cache: Path, world: World) -> None:
    """As if the function had been called here."""
    variable = contextvars.ContextVar("variable", default="nobody's")

    @reads
    def read(path: Path) -> str:
        return variable.get()

    assert read(cache) == "nobody's"
    variable.set("the caller's")
    assert read(cache) == "the caller's"


class Torch(types.ModuleType):
    """As much of torch as is asked, with modes of each thread."""

    def __init__(self) -> None:
        super().__init__("torch")
        self.of = threading.local()
        self.cuda = types.SimpleNamespace(
            is_initialized=lambda: True,
            current_device=lambda: getattr(self.of, "device", 0),
            set_device=lambda device: setattr(self.of, "device", device),
        )

    def is_grad_enabled(self) -> bool:
        return getattr(self.of, "grad", True)

    def set_grad_enabled(self, on: bool) -> None:
        self.of.grad = on

    def is_inference_mode_enabled(self) -> bool:
        return getattr(self.of, "inference", False)

    def inference_mode(self) -> Torch:
        return self

    def __enter__(self) -> None:
        self.of.inference = True

    def __exit__(self, *_: object) -> None:
        self.of.inference = False


def test_modes_of_torch_are_those_of_the_caller(cache: Path, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of them belongs to a thread; a tensor would be on another card, or keep gradients that nobody asked for."""
    torch = Torch()
    monkeypatch.setitem(sys.modules, "torch", torch)

    @reads
    def read(path: Path) -> tuple[bool, bool, int]:
        return torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.cuda.current_device()

    assert read(cache) == (True, False, 0)
    torch.set_grad_enabled(False)
    torch.cuda.set_device(3)
    assert read(cache) == (False, False, 3)
    torch.of.inference = True
    assert read(cache) == (False, True, 3)
    torch.of.inference = False
    torch.set_grad_enabled(True)
    assert read(cache) == (True, False, 3)


def test_a_torch_that_is_being_imported_has_no_modes(
    cache: Path, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread may be in the middle of it."""
    monkeypatch.setitem(sys.modules, "torch", types.ModuleType("torch"))
    assert where(cache)


def test_a_system_without_threads_reads_all_the_same(
    cache: Path, world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """In place and without a limit, which is said."""

    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    monkeypatch.setattr(module._said, "no_limit", False)
    assert where(cache) == threading.get_ident()
    assert "without a thread of its own: can't start new thread" in caplog.text
    assert "has no limit" in caplog.text


def test_a_block_without_a_limit_says_so_once(
    cache: Path, world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing can leave it, and outside of a trainer nobody ends the process; that must not be silent."""
    monkeypatch.setattr(module._said, "no_limit", False)
    with reads(cache), reads(cache):
        pass
    assert caplog.text.count("has no limit: nothing interrupts a block on this thread") == 1


def test_a_block_in_a_trainer_is_watched(cache: Path, world: World, heart: Heart) -> None:
    """It ends the trainer."""
    assert isinstance(module._watched(str(cache), LIMIT), alarm.Fatal)


def test_a_read_without_a_limit_is_made_in_place(cache: Path, world: World) -> None:
    """Nobody would ever leave it."""
    with limits.use(read=None):
        assert where(cache) == threading.get_ident()
        with reads(cache):
            pass
