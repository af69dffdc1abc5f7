"""What the NVIDIA cards show, asked of a helper process that may hang in place of us."""

from __future__ import annotations

import contextlib
import json
import math
import os
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fluxguard.clock import Clock

_DRIVERS = (Path("/dev/nvidiactl"), Path("/dev/dxg"))
_WINDOWS_LIBRARY = "System32/nvml.dll"
_HELPER = Path(__file__).with_name("nvml_helper.py")

_ANSWER = 10.0
"""A driver that lives answers within milliseconds."""
_FIRST_ANSWER = 40.0
"""The first question wakes every card of the machine, which takes seconds each where nothing keeps them awake."""
_FRESH = 60.0
"""An older answer says nothing about now."""
_REST = 30.0
"""Before a helper that failed is started again; doubled with each failure in a row."""
_LONGEST_REST = 900.0
_MOST_DOUBLED = 10  # times; a run of weeks fails oftener than a number can be doubled
_BURIAL = 0.5
_LOOK = 0.02
_MOST_XIDS = 32


@dataclass(frozen=True, kw_only=True)
class Card:
    """One NVIDIA card; None is unknown."""

    index: int
    name: str = ""
    used: int | None = None
    """Bytes of its memory in use, by all processes."""
    total: int | None = None
    utilisation: float | None = None
    """Percent of the time in which something ran on it. A hang may show 100, a healthy phase 0."""
    watts: float | None = None
    watt_limit: float | None = None
    celsius: float | None = None
    throttled: tuple[str, ...] | None = None
    """What slows it down, in words; empty when nothing does."""
    held: Mapping[int, int] | None = None
    """Bytes by process; in a container the numbers may be those of the host."""

    @property
    def filled(self) -> float | None:
        """How much of its memory is in use, from 0 to 1."""
        return self.used / self.total if self.used is not None and self.total else None

    @property
    def strain(self) -> float | None:
        """Its power as a share of its limit: what it really does while it is busy."""
        return self.watts / self.watt_limit if self.watts is not None and self.watt_limit else None


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What is known of the cards now."""

    cards: tuple[Card, ...] | None = None
    """None when unknown: no driver, no answer in time, or an old one."""
    xids: tuple[str, ...] = ()
    """The last critical faults that the driver has reported since we listen, oldest first."""
    heard: int = 0
    """How many those were in all."""
    silent: bool = False
    """Whether the driver did not answer the last question in time."""


def since(seen: Seen, heard: int) -> tuple[str, ...]:
    """Return the faults that came after the first so many. Pure."""
    new = max(0, seen.heard - heard)
    return seen.xids[-new:] if new else ()


def driver() -> bool:
    """Whether there may be an NVIDIA driver to ask."""
    if os.name == "nt":
        return (Path(os.environ.get("SYSTEMROOT", "C:/Windows")) / _WINDOWS_LIBRARY).exists()
    return any(path.exists() for path in _DRIVERS)


def used_by(cards: Iterable[Card], pids: Iterable[int]) -> tuple[Card, ...]:
    """Return the cards that these processes hold memory on; the only card there is counts where nobody can say."""
    known, wanted = tuple(cards), set(pids)
    holding = tuple(card for card in known if card.held and wanted & set(card.held))
    return holding or (known if len(known) == 1 else ())


@dataclass
class Gpus:
    """Asks a helper, never waits for it, kills one that does not answer and starts another later."""

    clock: Clock
    present: Callable[[], bool] = driver
    argv: Sequence[str] = field(default_factory=lambda: (sys.executable, str(_HELPER)))
    env: Mapping[str, str] | None = None
    _helper: _Helper | None = None
    _dying: list[_Helper] = field(default_factory=list)
    _failures: int = 0
    _rest_until: float = -math.inf
    _seen: Seen = field(default_factory=Seen)
    _answered_at: float = -math.inf

    @property
    def _faults(self) -> dict[str, Any]:
        """What stays known while the cards are not."""
        return {"xids": self._seen.xids, "heard": self._seen.heard}

    def look(self, *, ask: bool = False) -> Seen:
        """Return what is known now, without waiting; `ask` asks for more, to be seen at a later look."""
        now = self.clock.monotonic()
        if self._helper is not None:
            self._take(self._helper, now)
        if ask:
            self._ask(now)
        fresh = now - self._answered_at <= _FRESH
        return self._seen if fresh else Seen(silent=self._seen.silent, **self._faults)

    def answer(self, seconds: float) -> Seen:
        """Ask and wait for the answer, `seconds` at most."""
        deadline, before = self.clock.monotonic() + seconds, self._answered_at
        self.look(ask=True)
        while self._waiting and self._answered_at == before and self.clock.monotonic() < deadline:
            self.clock.sleep(_LOOK)
            self.look()
        if self._answered_at == before:
            return Seen(silent=self._seen.silent, **self._faults)
        return self._seen

    @property
    def _waiting(self) -> bool:
        return self._helper is not None and self._helper.asked_at is not None

    @property
    def helper_pid(self) -> int | None:
        """The process number of the helper; None when none runs."""
        return self._helper.process.pid if self._helper else None

    def close(self) -> None:
        """End the helper, and bury it when the driver lets it go."""
        if self._helper is not None:
            self._helper.kill()
            self._dying.append(self._helper)
            self._helper = None
        for helper in self._dying:
            with contextlib.suppress(subprocess.TimeoutExpired):
                helper.process.wait(_BURIAL)

    def _take(self, helper: _Helper, now: float) -> None:
        """Take what the helper has said, and judge its silence."""
        ended = helper.process.poll() is not None and not helper.reader.is_alive()
        while helper.lines:
            self._hear(helper, _values(helper.lines.popleft()), now)
        late = helper.asked_at is not None and now - helper.asked_at > helper.patience
        if ended or late or helper.failed:
            self._fail(helper, now, silent=late)

    def _hear(self, helper: _Helper, values: Mapping[str, Any], now: float) -> None:
        cards = _cards(values.get("cards"))
        if cards is None:
            helper.failed = True
            return
        new = tuple(xid_words(number) for number in values.get("xids") or () if isinstance(number, int))
        helper.asked_at, helper.patience = None, _ANSWER
        self._failures, self._answered_at = 0, now
        heard = self._seen.heard + len(new)
        self._seen = Seen(cards=cards, xids=(*self._seen.xids, *new)[-_MOST_XIDS:], heard=heard)

    def _fail(self, helper: _Helper, now: float, *, silent: bool) -> None:
        helper.kill()
        self._dying.append(helper)
        self._helper = None
        self._rest_until = now + min(_REST * 2.0 ** min(self._failures, _MOST_DOUBLED), _LONGEST_REST)
        self._failures += 1
        self._seen = Seen(silent=silent, **self._faults)

    def _ask(self, now: float) -> None:
        # One that no signal ends (it is inside a dead driver) is not joined by more of its kind.
        self._dying = [helper for helper in self._dying if helper.process.poll() is None]
        if self._helper is None and now >= self._rest_until and not self._dying and self.present():
            try:
                self._helper = _Helper(self.argv, self.env)
            except (OSError, RuntimeError):  # no such program, no more processes or threads
                self._rest_until = now + _LONGEST_REST
        if self._helper is not None and not self._waiting:
            self._helper.ask(now)


class _Helper:
    """One life of the helper. A thread reads what it says, because no pipe can be asked without waiting everywhere."""

    def __init__(self, argv: Sequence[str], env: Mapping[str, str] | None) -> None:
        # Away from our terminal and our folder: a Ctrl-C is not meant for it, and no disk is to be held by it.
        windows = getattr(subprocess, "CREATE_NO_WINDOW", 0) | getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0)
        self.process = subprocess.Popen(
            list(argv),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=env,
            cwd=_HELPER.parent,
            start_new_session=os.name != "nt",
            creationflags=windows,
        )
        self.lines: deque[bytes] = deque(maxlen=4)
        self.asked_at: float | None = None
        self.patience = _FIRST_ANSWER
        self.failed = False
        self.reader = threading.Thread(target=self._read, name="gpu helper", daemon=True)
        self.reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as said:
            self.lines.extend(said)

    def ask(self, now: float) -> None:
        assert self.process.stdin is not None
        self.asked_at = now
        try:
            self.process.stdin.write(b"\n")
            self.process.stdin.flush()
        except OSError:
            self.failed = True

    def kill(self) -> None:
        """End it without waiting: inside a dead driver it may take for ever."""
        assert self.process.stdin is not None
        self.process.kill()
        try:
            self.process.stdin.close()
        except OSError:
            return


def _values(line: bytes) -> Mapping[str, Any]:
    try:
        values = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return values if isinstance(values, dict) else {}


def _cards(values: object) -> tuple[Card, ...] | None:
    if not isinstance(values, list):
        return None
    try:
        return tuple(_card(one) for one in values)
    except (KeyError, TypeError, ValueError, AttributeError):
        return None


def _card(values: Mapping[str, Any]) -> Card:
    held, throttled = values.get("held"), values.get("throttled")
    return Card(
        index=int(values["index"]),
        name=str(values.get("name") or ""),
        throttled=None if throttled is None else tuple(map(str, throttled)),
        held=None if held is None else {int(pid): int(size) for pid, size in held.items()},
        **{name: values.get(name) for name in ("used", "total", "utilisation", "watts", "watt_limit", "celsius")},
    )


_XIDS = {
    13: "an illegal instruction or address in a program on the GPU",
    31: "a GPU page fault: a program used memory that was not its own",
    43: "the GPU stopped a program that failed",
    45: "work on the GPU was cleaned up after an earlier fault",
    48: "memory of the GPU failed beyond correction (double bit)",
    62: "the GPU's controller halted",
    63: "a broken row of GPU memory was retired",
    64: "a broken row of GPU memory could not be retired",
    74: "a fault of NVLink",
    79: "the GPU has fallen off the bus",
    94: "a memory fault of the GPU, contained",
    95: "a memory fault of the GPU, not contained: reset it",
    119: "the GPU's own processor does not answer",
    120: "the GPU's own processor failed",
}


def xid_words(number: int) -> str:
    """Return a critical fault of the driver, by its number, in words."""
    known = _XIDS.get(number)
    return f"Xid {number} ({known})" if known else f"Xid {number}"
