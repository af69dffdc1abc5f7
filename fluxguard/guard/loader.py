"""A DataLoader whose wait for a batch is watched, and whose stuck workers are really killed.

What comes back is torch's own DataLoader; only its multiprocessing context is ours. That is the one thing that
accelerate, which rebuilds every loader it prepares, carries over, and the one through which torch makes its queues
and its workers, and so meets every wait: the poll, and the read past the poll that no `timeout` covers.
"""

from __future__ import annotations

import contextlib
import inspect
import logging
import multiprocessing
import multiprocessing.context as contexts
import os
import queue
import signal
import sys
import threading
import time
import weakref
from multiprocessing.process import BaseProcess
from multiprocessing.queues import Queue as _Queue
from multiprocessing.synchronize import Event as _Event
from typing import Any

from fluxguard.guard import randoms
from fluxguard.guard.crew import Crew, Delivery, stopped
from fluxguard.guard.fetch import Fetch, iterator_here
from fluxguard.guard.rehearsal import GoOnWith

logger = logging.getLogger(__name__)

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
        # Not get_start_method() alone, which settles it: a set_start_method after the loader is made would raise then.
        context = multiprocessing.get_start_method(allow_none=True) or multiprocessing.get_all_start_methods()[0]
    return _CONTEXTS[context]() if context in _CONTEXTS else context


class WatchedQueue(_Queue):  # type: ignore[type-arg]
    """A queue between the trainer and its workers; which of the two kinds it is shows when a worker is made."""

    # Class attributes, because a queue that was pickled for a worker has none of the trainer's.
    fetch: weakref.ref[Fetch] | None = None
    number: int | None = None
    """The worker's, for the queue that gives it tasks."""
    sender: int | None = None
    """The worker's own number, in the worker, for the queue that takes what it has done."""
    receives = False
    """Whether it gives a worker its tasks, in that worker."""
    context: Any = None
    _line: WatchedQueue | None = None

    @property
    def line(self) -> WatchedQueue:
        """What the workers of today write to: whoever reads keeps to the first queue, over all that replace it."""
        return self._line or self

    def put(self, obj: Any, block: bool = True, timeout: float | None = None) -> None:
        """See multiprocessing.Queue; notes what a worker is given, and adds in a worker what it goes on with."""
        if self.sender is not None:
            super().put(Delivery(self.sender, obj, randoms.snapshot()), block, timeout)
            return
        fetch = self._fetch()
        if fetch is not None:
            if self.number is not None:
                fetch.gives(self.number, obj)
            elif obj == _LAST:
                fetch.ends()
            if fetch.lost is not None:
                return  # there is nobody left to read it, and fresh workers are given all that was noted
        _Queue.put(self.line, obj, block, timeout)

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        """See multiprocessing.Queue; what is no batch of the training is taken out on both sides."""
        if self.receives:
            while isinstance(task := super().get(block, timeout), GoOnWith):
                randoms.go_on_with(task.states)
            return task
        fetch = self._fetch()
        if fetch is None or self.number is not None:
            return super().get(block, timeout)
        generation, line = fetch.crew.generation, self.line
        try:
            with fetch.reads():
                delivery = _Queue.get(line, block, timeout)
        except queue.Empty:
            raise
        except Exception:  # whatever a killed worker's half message or its closed sockets make of it
            if not fetch.broken(generation):
                raise
            time.sleep(_EMPTY_PAUSE)
            raise queue.Empty from None
        pair = fetch.crew.delivered(delivery, generation)
        if pair is None:
            raise queue.Empty
        return pair

    def cancel_join_thread(self) -> None:
        """See multiprocessing.Queue; torch calls it when its pinning thread has ended."""
        fetch = self._fetch()
        if fetch is not None and self.number is None:
            fetch.ended()
        super().cancel_join_thread()

    def _fetch(self) -> Fetch | None:
        return self.fetch() if self.fetch is not None else None

    def replace(self, iterator: Any, crew: Crew) -> None:
        """Start fresh workers for all that write to this queue, and give them the work of the old ones.

        A killed worker may hold a lock of any queue or event that it shared, so all of them are new. Raises OSError.
        """
        crew.replaced()
        self._line = line = self.context.Queue()
        line.fetch = self.fetch  # else its first worker would make another one, and what this one holds were lost
        event = self.context.Event()
        event.fetch = self.fetch
        for number, member in enumerate(crew.members):
            tasks = self.context.Queue()
            tasks.cancel_join_thread()
            tasks.fetch, tasks.number = self.fetch, number
            target, arguments = member.recipe
            member.process = type(member.process)(target=target, args=_renewed(arguments, tasks, line, event))
            member.process.daemon = True
            member.process.start()
            iterator._index_queues[number], iterator._workers[number] = tasks, member.process
            for message in member.work():
                _Queue.put(tasks, message)
        iterator._workers_done_event = event


def _renewed(arguments: tuple[Any, ...], tasks: Any, results: Any, event: Any) -> tuple[Any, ...]:
    """Return a worker's arguments with other queues and another event: torch gives its tasks' queue first."""
    queues = iter((tasks, results))

    def renewed(argument: Any) -> Any:
        if isinstance(argument, WatchedQueue):
            return next(queues)
        return event if isinstance(argument, WatchedEvent) else argument

    return tuple(renewed(argument) for argument in arguments)


class WatchedEvent(_Event):
    """The event that asks workers to end; a killed one may hold its lock, so a lost crew's is not touched any more."""

    fetch: weakref.ref[Fetch] | None = None
    _given_up = False

    def set(self) -> None:
        """See multiprocessing.Event."""
        if self._lost():
            self._given_up = True
        else:
            super().set()

    def is_set(self) -> bool:
        """See multiprocessing.Event."""
        return self._given_up if self._lost() else super().is_set()

    def _lost(self) -> bool:
        fetch = self.fetch() if self.fetch is not None else None
        return fetch is not None and fetch.lost is not None

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "fetch"}


class _Worker(BaseProcess):
    """A worker that belongs to a crew, dies with its parent, and can always be joined."""

    _number: int | None = None
    _tied = False

    def start(self) -> None:
        """See multiprocessing.Process."""
        recipe = self._target, self._args  # type: ignore[attr-defined]
        fetch = _enlist(recipe[1])
        if fetch is not None:
            known = [member.process for member in fetch.crew.members]
            self._number = known.index(self) if self in known else len(known)
        # The kernel's tie is to the parent's thread, so only the thread that outlives all others may make it.
        self._tied = threading.current_thread() is threading.main_thread()
        super().start()
        if fetch is not None and self._number == len(fetch.crew.members):
            fetch.crew.join(self, recipe)

    def run(self) -> None:
        """See multiprocessing.Process; runs in the worker."""
        if self._tied and sys.platform.startswith("linux"):
            _die_with_parent(self._parent_pid if self._start_method != "forkserver" else None)  # type: ignore[attr-defined]
        if self._number is not None:
            tasks, results = _queues(self._args)  # type: ignore[attr-defined]
            tasks.receives, results.sender = True, self._number
        super().run()

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

    def terminate(self) -> None:
        """See multiprocessing.Process; torch asks for it as its last resort, which a worker may not ignore."""
        self._kill()

    def _kill(self) -> None:
        with contextlib.suppress(OSError):
            self.kill()


def _queues(arguments: tuple[Any, ...]) -> list[Any]:
    return [argument for argument in arguments if isinstance(argument, WatchedQueue)]


def _enlist(arguments: tuple[Any, ...]) -> Fetch | None:
    """Return what waits for the worker with these arguments; made for the first worker of an iterator."""
    queues = _queues(arguments)
    if len(queues) != 2:
        return None
    tasks, results = queues
    if results.fetch is None:
        iterator = iterator_here()
        if iterator is None:
            logger.warning("this torch starts its DataLoader workers in another way: they are not watched")
            return None
        results.fetch = weakref.ref(Fetch(iterator, results))
    fetch: Fetch | None = results._fetch()
    if fetch is not None and tasks.number is None:
        tasks.fetch, tasks.number = results.fetch, len(fetch.crew.members)
        for event in arguments:
            if isinstance(event, WatchedEvent):
                event.fetch = results.fetch
    return fetch


def _die_with_parent(parent: int | None) -> None:
    """Let the kernel kill this process when its parent dies, stopped or not."""
    import ctypes

    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if parent is not None and os.getppid() != parent:
        os._exit(1)


class _Watched:
    """What our contexts have in common."""

    def Queue(self, maxsize: int = 0) -> WatchedQueue:
        queue = WatchedQueue(maxsize, ctx=self.get_context())  # type: ignore[attr-defined]
        queue.context = self
        return queue

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
