"""How a process ended, as its keeper saw it or as launchers, shells and pages say it in the output. Pure."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass, replace

from fluxguard.supervisor.causes.signatures import Line, shortened
from fluxguard.supervisor.detecting.observation import Exit

_SHELL = {
    "Killed": 9,
    "Terminated": 15,
    "Hangup": 1,
    "Segmentation fault": 11,
    "Aborted": 6,
    "Bus error": 7,
    "Illegal instruction": 4,
    "Floating point exception": 8,
}
_SAID = (
    re.compile(r"died with <Signals\.SIG[A-Z]+: (?P<signal>\d+)>"),  # subprocess, in accelerate
    re.compile(r"returned non-zero exit status (?P<code>-?\d+)"),
    re.compile(r"exitcode\s*:\s*(?P<code>-?\d+)\s+\(pid"),  # torch's launcher
    re.compile(r"Command exited with code (?P<code>-?\d+)"),  # FluxGym's page
    re.compile(
        r"^(?:.*line \d+:\s*\d+ )?(?P<shell>" + "|".join(_SHELL) + r")(?: \(core dumped\))?(?:\s{2,}\S.*)?$"
    ),  # a shell
)
_ROOT_CAUSE = "Root Cause (first observed failure)"
"""Above what torch's launcher says of the rank that ended first; the others it has ended itself."""
_OF_RANK = re.compile(r"^\s*rank\s*:\s*(\d+) \(local_rank")
_LAST_SIGNAL = 64
_UNSIGNED = 1 << 32
_ENDED_BY_ITSELF = frozenset({0, 1})
"""Codes behind which launchers hide another one."""


@dataclass(frozen=True)
class How:
    """How a process ended."""

    number: int | None = None
    """An exit code, a negative signal, or a code of Windows as it is written there; None when nobody saw it."""
    proof: str = ""
    rank: int | None = None
    """Which of several ranks ended first, where torch's launcher says so."""

    def __str__(self) -> str:
        if self.number is None:
            return "while nobody saw it, as when the machine restarts,"
        if self.number < 0:
            return f"by {signal_name(-self.number)}"
        shown = f" (0x{self.number:X})" if self.number > 1 << 16 else ""
        return f"with exit code {self.number}{shown}"


def how(exit: Exit | None, lines: Sequence[Line]) -> How:
    """Return how it ended: what its keeper saw, unless that is a launcher's code, behind which the output says more."""
    roots = [index for index, line in enumerate(lines) if line.text.startswith(_ROOT_CAUSE)]
    root = lines[roots[-1] :] if roots else ()
    rank = next((int(found[1]) for line in root if (found := _OF_RANK.match(line.text))), None)
    return replace(_how(_seen(exit), root or lines), rank=rank)


def _how(seen: How, lines: Sequence[Line]) -> How:
    if seen.number is not None and seen.number not in _ENDED_BY_ITSELF:
        return seen
    said = [found for line in lines for pattern in _SAID if (found := _said(pattern, line.text)) is not None]
    telling = [one for one in said if one.number not in _ENDED_BY_ITSELF]
    if telling:
        return telling[-1]
    return seen if seen.number is not None else (said[-1] if said else seen)


def _seen(exit: Exit | None) -> How:
    if exit is None:
        return How()
    if exit.signal is not None:
        return How(-exit.signal, f"it ended by {signal_name(exit.signal)}")
    if exit.code is None:
        return How()
    number = _plain(exit.code)
    return How(number, f"it ended {How(number)}")


def _said(pattern: re.Pattern[str], text: str) -> How | None:
    found = pattern.search(text)
    if found is None:
        return None
    groups = found.groupdict()
    if groups.get("shell"):
        return How(-_SHELL[groups["shell"]], shortened(text))
    number = -int(groups["signal"]) if groups.get("signal") else _plain(int(groups["code"]))
    return How(number, shortened(found[0]))


def _plain(code: int) -> int:
    """Return a code without what shells (128 + signal) and signed numbers make of it."""
    if code < -_LAST_SIGNAL:
        return code + _UNSIGNED
    return 128 - code if 128 < code <= 128 + _LAST_SIGNAL else code


def signal_name(number: int) -> str:
    """Return a signal's name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
