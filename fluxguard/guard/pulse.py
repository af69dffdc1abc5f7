"""What the trainer tells: its phase, its steps, and that its life as a trainer has begun.

Every function here is free of consequences when nobody listens: without a supervisor there is no heart, in a forked
child the heart is muted, and a file that cannot be written costs the beat, never the training.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import sys
import time
import uuid
from collections.abc import Iterable, Iterator, Sized
from pathlib import Path
from typing import TypeVar

from fluxguard import heartbeat
from fluxguard.heartbeat import Heart
from fluxguard.rundir import ATTEMPT_VARIABLE, RUN_VARIABLE, RunDir
from fluxguard.rundir import end_request as end_request_in

T = TypeVar("T")

_PR_SET_PTRACER = 0x59616D61
_PR_SET_PTRACER_ANY = -1

_RANK_VARIABLE = "RANK"

_LONGEST = {
    "block_swap": "longest_swap",
    "batch": "longest_batch",
    "first_batch": "longest_first_batch",
    "read": "longest_read",
    "barrier": "longest_barrier",
}
_OF_EACH_STEP = ("block_swap", "batch")


class _Trainer:
    """What is known about this process as a trainer; one per process, empty until `train_begins`."""

    def __init__(self) -> None:
        self.begun = False
        self.heart: Heart | None = None
        self.stacks: int | None = None
        self.end_request: Path | None = None


_trainer = _Trainer()


def train_begins() -> None:
    """Say that this process is a trainer from here on; called once, at its entry point.

    Until then nothing in the guard ends the process: a page that only imports the trainer's modules is never ended.
    Opens the heartbeat when a supervisor has set FLUXGUARD_RUN. Calling it again changes nothing. Never raises.
    """
    if _trainer.begun:
        return
    _trainer.begun = True
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_forget)
    from fluxguard.guard import finishing  # which needs this module

    finishing.watch_exit()
    run = run_dir()
    if run is None:
        return
    # A folder that is gone or full must not keep a training from starting.
    with contextlib.suppress(OSError, ValueError):
        folder = run.beats()
        _trainer.heart = Heart(heartbeat.path_for(folder, rank()), rank=rank(), attempt=_attempt_bytes())
        _trainer.end_request = end_request_in(folder, rank())
    with contextlib.suppress(OSError, ValueError, RuntimeError):
        _let_stacks_be_read(run)


def listen(folder: str | os.PathLike[str], number: int) -> None:
    """Open the heartbeat of rank `number` in a folder that ranks without a supervisor share. Never raises.

    It is in no phase until the trainer tells one: such a loop need not know of phases at all.
    """
    if _trainer.begun and _trainer.heart is None:
        with contextlib.suppress(OSError, ValueError):
            _trainer.heart = Heart(heartbeat.path_for(folder, number), rank=number)
            _trainer.heart.phase = b""
            _trainer.heart.beat()


def fall_silent() -> None:
    """Close the heartbeat that `listen` has opened."""
    if _trainer.heart is not None:
        _trainer.heart.mute()
        _trainer.heart = None


def begun() -> bool:
    """Return whether this process is a trainer (and not one of its forked children)."""
    return _trainer.begun


def heart() -> Heart | None:
    """Return the open heart of this process, or None when nobody listens."""
    return _trainer.heart


def end_request() -> Path | None:
    """Return the file by which the supervisor asks this process to end itself, or None when it cannot ask."""
    return _trainer.end_request


def stacks_fd() -> int:
    """Return where stacks are written: the file of the supervised run, else standard error."""
    return 2 if _trainer.stacks is None else _trainer.stacks


def run_dir() -> RunDir | None:
    """Return the run this process belongs to, or None without a supervisor."""
    folder = os.environ.get(RUN_VARIABLE)
    return RunDir.of_root(folder) if folder else None


def rank() -> int:
    """Return the rank of this process among the trainers; 0 when there is only one."""
    value = os.environ.get(_RANK_VARIABLE, "")
    return int(value) if value.isdigit() else 0


def attempt() -> str:
    """Return the uuid of the attempt; empty without a supervisor."""
    return os.environ.get(ATTEMPT_VARIABLE, "")


class phase:
    """Say that the phase `name` (one of `limits.PHASES`) begins now.

    As a plain statement it lasts until the next one. As a block, `with phase("sampling"):`, the phase before it begins
    again when the block ends, whatever happened.
    """

    __slots__ = ("_before",)

    def __init__(self, name: str) -> None:
        self._before = _begin(name.encode())

    def __enter__(self) -> phase:
        return self

    def __exit__(self, *_: object) -> None:
        _begin_again(self._before)


class during(contextlib.ContextDecorator):
    """A phase that begins with its block, or with each call of the function it decorates, and ends with it.

    The phase before it begins again then, whatever happened.
    """

    __slots__ = ("_before", "_name")

    def __init__(self, name: str) -> None:
        self._name = name.encode()
        self._before: list[bytes | None] = []

    def __enter__(self) -> during:
        self._before.append(_begin(self._name))
        return self

    def __exit__(self, *_: object) -> None:
        _begin_again(self._before.pop())


def _begin(name: bytes) -> bytes | None:
    """Begin a phase and return the one before, empty when there was none; None when nobody listens."""
    known = _trainer.heart
    if known is None:
        return None
    before = known.phase
    known.phase = name
    known.phase_at = time.monotonic()
    known.done = known.of = 0
    known.beat()
    return before


def _begin_again(before: bytes | None) -> None:
    if before is not None:
        _begin(before)


def progress(done: int, of: int = 0) -> None:
    """Say that `done` of `of` items of this phase are done; 0 for a number that is not known."""
    known = _trainer.heart
    if known is None:
        return
    known.done = max(0, int(done))
    known.of = max(0, int(of))
    known.beat()


def advance(name: str, count: int = 1) -> None:
    """Say that `count` more items of the phase `name` are done, which begins with the first of them."""
    known = _trainer.heart
    if known is None:
        return
    if known.phase != name.encode():
        phase(name)
    known.done += count
    known.beat()


def counted(items: Iterable[T]) -> Iterator[T]:
    """Yield from `items` (a tqdm bar, say) and tell of each one that is done, in the phase that is open then."""
    of = _number_of(items)
    for done, item in enumerate(items):
        progress(done, of)
        yield item


def step(
    step: int, total: int | None = None, epoch: int | None = None, loss: float | None = None, batch: int | None = None
) -> None:
    """Say that the weights embody `step` optimizer steps now; whatever else is None stays as it was."""
    known = _trainer.heart
    if known is None:
        return
    known.step = max(0, int(step))
    if total is not None:
        known.total = max(0, int(total))
    if epoch is not None:
        known.epoch = max(0, int(epoch))
    if batch is not None:
        known.batch = max(0, int(batch))
    if loss is not None:
        known.loss = float(loss)
    if known.phase != b"step":
        known.phase = b"step"
        known.phase_at = time.monotonic()
        known.done = known.of = 0
    known.beat()


def completed(kind: str, seconds: float) -> None:
    """Say that a wait ended well after `seconds`; `kind` is the name of its limit in `WaitLimits`.

    The supervisor learns from the longest of each kind how long such waits take here. So it is not for waits that
    failed, were put right, or in which the machine slept. Of the waits of each step only those in the phase "step"
    count: the first one also compiles and warms up.
    """
    known = _trainer.heart
    if known is None or (kind in _OF_EACH_STEP and known.phase != b"step"):
        return
    name = _LONGEST[kind]
    if seconds > getattr(known, name):
        setattr(known, name, seconds)


def _number_of(items: Iterable[T]) -> int:
    """Return how many items there are, 0 where nobody knows: a bar over a generator has a length, and it is None."""
    try:
        return int(getattr(items, "total", None) or (len(items) if isinstance(items, Sized) else 0))
    except TypeError:
        return 0


def _attempt_bytes() -> bytes:
    try:
        return uuid.UUID(attempt()).bytes
    except ValueError:
        return bytes(16)


def _forget() -> None:
    """In a forked child: it is no trainer, and its copy of the heart would lie about the parent."""
    _trainer.begun = False
    _trainer.end_request = None
    if _trainer.heart is not None:
        _trainer.heart.mute()
        _trainer.heart = None


def _let_stacks_be_read(run: RunDir) -> None:
    """Let the supervisor read the stacks without special rights: by a signal, and by a debugger."""
    path = run.stacks(rank())
    _trainer.stacks = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
    if hasattr(faulthandler, "register"):
        faulthandler.register(signal.SIGUSR1, file=_trainer.stacks, all_threads=True)
    if sys.platform.startswith("linux"):
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PTRACER, ctypes.c_long(_PR_SET_PTRACER_ANY), 0, 0, 0)
