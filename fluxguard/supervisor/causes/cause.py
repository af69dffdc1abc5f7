"""What a row of the table of causes is made of. Frozen values; the patterns match one plain line each."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fluxguard.supervisor.causes.signatures import TRAINER

if TYPE_CHECKING:
    from fluxguard.supervisor.causes.diagnosis import Evidence
    from fluxguard.supervisor.detecting.detectors import Symptom


@dataclass(frozen=True)
class Says:
    """A line in the closing lines of the output proves it."""

    pattern: re.Pattern[str]
    example: str
    """The message as it is printed; it is in the documentation, and in the tests."""
    echo: bool = False
    """Whether it mostly follows from another end, as when a rank loses one that died: anything better is believed."""
    whole: bool = False
    """Whether the whole line is worth saying, not what matches alone."""


@dataclass(frozen=True)
class Ends:
    """The way in which the process ended proves it, as nothing better was said."""

    codes: frozenset[int]
    """Exit codes; signals are negative, codes of Windows unsigned."""
    text: str
    """The same for people."""


@dataclass(frozen=True)
class Told:
    """The guard in the trainer said so before it ended the process."""

    cause: str
    words: str
    """The sentence, with {waited}, {limit}, {file}, {workers} and {wait} for what it said."""


@dataclass(frozen=True)
class Waits:
    """A run without progress: a wait that is open, a function in a stack, or a phase proves it."""

    text: str
    opens: re.Pattern[str] | None = None
    """The wait that the trainer said it began."""
    frames: tuple[str, ...] = ()
    """Functions that stand in a stack while it waits."""


@dataclass(frozen=True)
class Seen:
    """Counters and figures prove it; `find` returns them for people, or nothing."""

    text: str
    find: Callable[[Symptom, Evidence], tuple[str, ...]]
    late: bool = False
    """Whether what a stack says counts for more."""


@dataclass(frozen=True)
class Judged:
    """A judgement proves it that is no pattern: the text says which."""

    text: str


Proof = Says | Ends | Told | Waits | Seen | Judged


@dataclass(frozen=True, kw_only=True)
class Cause:
    """One row of the table."""

    name: str
    """The same in the ledger, the report, the page and the documentation; `{what}` is filled in for a family."""
    words: str
    """One sentence; `{said}` is the line or the figure that proves it, `{what}` what fills the name."""
    advice: str
    shown: tuple[Proof, ...] = field(default=())
    """What proves it, any one of these."""
    origin: str = TRAINER
    again: bool = True
    """Whether another attempt can end differently, without a remedy."""
    remedies: tuple[str, ...] = ()
    sure: bool = True
    """Whether the evidence leaves no other reading."""
    fixed: bool = False
    """Whether it happens at one place whatever the step is."""


def says(pattern: str, example: str, *, echo: bool = False, whole: bool = False) -> Says:
    """Return a proof by a line. No pattern begins with `.*`, which takes long on a long line: that is `whole`."""
    return Says(re.compile(pattern), example, echo, whole)


def ends(text: str, *codes: int) -> Ends:
    """Return a proof by exit codes and (negative) signals."""
    return Ends(frozenset(codes), text)


def waits(text: str, opens: str = "", *frames: str) -> Waits:
    """Return a proof by an open wait or a stack."""
    return Waits(text, re.compile(opens) if opens else None, frames)
