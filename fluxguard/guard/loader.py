"""A DataLoader whose wait for a batch is watched, and whose stuck workers are really killed.

What comes back is torch's own DataLoader; only its multiprocessing context is ours. That is the one thing that
accelerate, which rebuilds every loader it prepares, carries over, and the one through which torch makes its queues
and its workers, and so meets every wait: the poll, and the read past the poll that no `timeout` covers.
"""

from __future__ import annotations

import contextlib
import inspect
import multiprocessing
import multiprocessing.context as contexts
import os
import queue
import signal
import sys
import threading
import time
from multiprocessing.process import BaseProcess
from multiprocessing.queues import Queue as _Queue
from multiprocessing.synchronize import Event as _Event
from typing import Any

from fluxguard.guard.crew import Crew, stopped

_REAP = 2.0  # a killed process is gone long before; only an uninterruptible kernel wait lasts longer
_EXIT_GRACE = 0.5  # for a worker that was asked to end when the interpreter ends
_EMPTY_PAUSE = 0.05
_LAST = (None, None)  # what torch puts among the batches to wake its pinning thread for the end
_PR_SET_PDEATHSIG = 1


def DataLoader(*args: Any, **options: Any) -> Any:
    """Return a torch.utils.data.DataLoader, made as torch's own, whose wait for a batch has a limit.

    A passed limit ends a trainer; in another process it kills the workers and raises WorkerStuck. Order and random
    numbers are torch's. A context object of the caller's own, and a `timeout`, are respected. Without workers,
    options that need workers are dropped instead of refused.
    """
    from torch.utils.data import DataLoader as TorchDataLoader

    given = inspect.signature(TorchDataLoader).bind(*args, **options).arguments
    if not given.get("num_workers"):
        for name in ("persistent_workers", "timeout", "prefetch_factor", "multiprocessing_context"):
            given.pop(name, None)
    else:
        given["multiprocessing_context"] = _watched(given.get("multiprocessing_context"))
        if _can_pin():
            given.setdefault("pin_memory", True)
    if _draws_order(given):
        _note_order(given)
    return TorchDataLoader(**given)


def _can_pin() -> bool:
    import torch

    return bool(torch.cuda.is_available())


def _draws_order(given: dict[str, Any]) -> bool:
    from torch.utils.data import IterableDataset

    chosen = given.get("sampler") is not None or given.get("batch_sampler") is not None
    return bool(given.get("shuffle")) and not chosen and not isinstance(given["dataset"], IterableDataset)


def _note_order(given: dict[str, Any]) -> None:
    """Draw the order through the sampler that resume can restore; it draws as torch's does."""
    from fluxguard.guard import resume

    given["sampler"] = resume.noted_sampler(given["dataset"], given.get("generator"))
    given["shuffle"] = False


def _watched(context: Any) -> Any:
    """Return our context for torch's default or a named one; a context object is the caller's own choice."""
    if context is None:
        context = multiprocessing.get_start_method()
    return _CONTEXTS[context]() if context in _CONTEXTS else context


class WatchedQueue(_Queue):  # type: ignore[type-arg]
    """A queue between the trainer and its workers; which of the two kinds it is shows when a worker is made."""

    # Class attributes, because a queue that was pickled for a worker has neither: there it is a plain queue.
    crew: Crew | None = None
    number: int | None = None

    def put(self, obj: Any, block: bool = True, timeout: float | None = None) -> None:
        """See multiprocessing.Queue; notes what a worker is given."""
        crew = self.crew
        if crew is not None:
            if crew.lost is not None:
                return  # there is nobody left to read it
            if self.number is not None:
                crew.given(self.number, obj)
            elif obj == _LAST:
                crew.ends()
        super().put(obj, block, timeout)

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        """See multiprocessing.Queue; in the trainer the wait is watched, its read included."""
        crew = self.crew
        if crew is None or self.number is not None:
            return super().get(block, timeout)
        if crew.lost is not None:
            crew.forgive()
            time.sleep(_EMPTY_PAUSE)
            raise queue.Empty
        crew.opens()
        try:
            result = super().get(block, timeout)
        except queue.Empty:
            crew.pauses()
            raise
        except BaseException:
            crew.closes()
            raise
        crew.arrived(result)
        return result

    def cancel_join_thread(self) -> None:
        """See multiprocessing.Queue; torch calls it when its pinning thread has ended."""
        if self.crew is not None and self.number is None:
            self.crew.closes()
        super().cancel_join_thread()


class WatchedEvent(_Event):
    """The event that asks workers to end; a killed worker may hold its lock, so it is not set for a lost crew."""

    crew: Crew | None = None

    def set(self) -> None:
        """See multiprocessing.Event."""
        if self.crew is None or self.crew.lost is None:
            super().set()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "crew"}


class _Worker(BaseProcess):
    """A worker that belongs to a crew, dies with its parent, and can always be joined."""

    _crew: Crew | None = None
    _tied = False

    def start(self) -> None:
        """See multiprocessing.Process."""
        arguments = self._args  # type: ignore[attr-defined]
        crew = _enlist(self, arguments)
        # The kernel's tie is to the parent's thread, so only the thread that outlives all others may make it.
        self._tied = threading.current_thread() is threading.main_thread()
        super().start()
        self._crew = crew

    def run(self) -> None:
        """See multiprocessing.Process; runs in the worker."""
        if self._tied and sys.platform.startswith("linux"):
            _die_with_parent(self._parent_pid if self._start_method != "forkserver" else None)  # type: ignore[attr-defined]
        super().run()

    def is_alive(self) -> bool:
        """See multiprocessing.Process. Raises WorkerStuck, once, when the crew was killed for being stuck."""
        if self._crew is not None:
            self._crew.asked()
        return super().is_alive()

    def join(self, timeout: float | None = None) -> None:
        """See multiprocessing.Process; a stopped worker is killed, and without a timeout an unwilling one too."""
        if stopped(self.pid):
            self._kill()
        if timeout is not None:
            super().join(timeout)
            return
        super().join(_EXIT_GRACE)
        if self.exitcode is None:
            self._kill()
            super().join(_REAP)

    def _kill(self) -> None:
        with contextlib.suppress(OSError):
            self.kill()


def _enlist(worker: Any, arguments: tuple[Any, ...]) -> Crew | None:
    """Take a worker into the crew of the result queue among its arguments: torch gives its index queue first."""
    queues = [argument for argument in arguments if isinstance(argument, WatchedQueue)]
    if len(queues) != 2:
        return None
    tasks, results = queues
    if results.crew is None:
        results.crew = Crew(results._writer)  # type: ignore[attr-defined]
    tasks.crew = results.crew
    tasks.number = results.crew.join(worker)
    for event in arguments:
        if isinstance(event, WatchedEvent):
            event.crew = results.crew
    return results.crew


def _die_with_parent(parent: int | None) -> None:
    """Let the kernel kill this process when its parent dies, stopped or not."""
    import ctypes

    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if parent is not None and os.getppid() != parent:
        os._exit(1)


class _Watched:
    """What our contexts have in common."""

    def Queue(self, maxsize: int = 0) -> WatchedQueue:
        return WatchedQueue(maxsize, ctx=self.get_context())  # type: ignore[attr-defined]

    def Event(self) -> WatchedEvent:
        return WatchedEvent(ctx=self.get_context())  # type: ignore[attr-defined]


class _SpawnWorker(_Worker, contexts.SpawnProcess):
    pass


class _Spawn(_Watched, contexts.SpawnContext):
    Process = _SpawnWorker


_CONTEXTS: dict[Any, Any] = {"spawn": _Spawn}

if sys.platform != "win32":

    class _ForkWorker(_Worker, contexts.ForkProcess):
        pass

    class _Fork(_Watched, contexts.ForkContext):
        Process = _ForkWorker

    class _ForkServerWorker(_Worker, contexts.ForkServerProcess):
        pass

    class _ForkServer(_Watched, contexts.ForkServerContext):
        Process = _ForkServerWorker

    _CONTEXTS |= {"fork": _Fork, "forkserver": _ForkServer}
