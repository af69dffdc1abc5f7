"""Where causes come from, and which lines of a trainer's output tell of its end at all."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fluxguard.supervisor.causes import blame

TRAINER, OUTSIDE, MACHINE, INPUT = "trainer", "outside", "machine", "input"
"""Where a cause comes from."""

_CLOSING_LINES = 30
_CONTEXT_LINES = 4
_LONGEST_SAID = 300
_LONGEST_LINE = 2000
"""What lies behind in a line is data; errors begin with what they are."""
_SURVIVED = "fluxguard| "
"""Begins the lines of an error that the trainer survived, as the guard writes them."""
LAUNCHER = ("CalledProcessError", "ChildFailedError", "elastic.multiprocessing.api.SignalException")
"""Errors that a launcher raises behind the trainer's own; they say nothing about the cause."""

_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)")
_WARNS = re.compile(
    r"\bWARNING\b|Warning: |\bRetrying in\b|\bretrying\b"
    r"|^\[?W(?:\d{4} [\d:.]+)? ?[\w/.]+\.(?:cpp|cc|py):\d+\]"  # torch, which tries another way
    r"|: [WE] tensorflow/"
)
"""A line that only warns: whoever writes it goes on."""
_PREFIX = re.compile(
    r"^(?:\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:[.,]\d+)?\] \[(?:INFO|ERROR|WARNING|DEBUG)\] ?)?"  # FluxGym's page
    r"(?:\[(?:rank|default)\d+\]: ?|(?:stderr|stdout): )?"  # torch and its launcher, with several ranks
    r"(?:(?:python|accelerate)(?:\.exe)? : )?"  # PowerShell, before the first line of an error
)
_BAR = re.compile(r"\b\d{1,3}%\|[^|]*\|\s*\d+/\d+\s*\[[^\]]*\]")
_STEPS = re.compile(r"(?<!validation )steps:\s{1,9}\d{1,3}%\|[^|]*\|\s*(\d+)/\d+\s*\[")
_HEAD = re.compile(r"^[\s\u2500-\u257f]*Traceback \(most recent call last\)")
_WENT_ON = re.compile(
    r"^(?:\d{4}-\d\d-\d\d \d\d:\d\d:\d\d |\d\d:\d\d:\d\d-\d{6} )?\s*INFO {5}\S|^epoch \d+/\d+\s*$|^saving checkpoint: "
)
"""What only a trainer that goes on prints: a log line of its own, an epoch, a save."""
_IGNORED = re.compile(r"^(?:Exception ignored in|--- Logging error ---)")
"""Python says it before an error that it goes on after, whatever that was."""
_FRAME = re.compile(r'^\s+File ".*", line \d+')
_RANK_RAISED = re.compile(r"^\s*exitcode\s*:\s*1 \(pid")
"""What torch's launcher says of a rank that ended by an error of its own."""
_FEW_STEPS = 1
"""A bar is drawn once more when its process ends, and may then be this much ahead of what it showed before."""


@dataclass(frozen=True)
class Line:
    """A line of output as a person would have seen it."""

    at: int
    """Its index among the lines that were given."""
    text: str

    @property
    def warns(self) -> bool:
        """Whether it only warns."""
        return bool(_WARNS.search(self.text))


def plain(text: str) -> str:
    """Return a line without colours, and without what pages and launchers write before it."""
    return _PREFIX.sub("", _ANSI.sub("", text[:_LONGEST_LINE]), count=1)


def read(lines: Sequence[str]) -> list[Line]:
    """Return the lines that speak of this attempt, plain; what is glued to the end of a bar is a line of its own."""
    return [line for at, text in enumerate(lines) for line in _split(at, plain(text)) if _speaks(line.text)]


def _split(at: int, text: str) -> Iterator[Line]:
    bar = _BAR.search(text)
    if bar and text[bar.end() :].strip():
        yield Line(at, text[: bar.end()])
        text = _PREFIX.sub("", text[bar.end() :], count=1)
    yield Line(at, text)


def _speaks(text: str) -> bool:
    return bool(text.strip()) and not text.startswith(_SURVIVED)


def since_progress(lines: Sequence[Line]) -> Sequence[Line]:
    """Return the lines behind the last sign that the trainer went on: what came before it was survived."""
    start, bar = 0, None
    for index, line in enumerate(lines):
        if _WENT_ON.search(line.text):
            start = index + 1
        elif shown := _STEPS.search(line.text):
            done = int(shown[1])
            if bar is not None and done > bar + _FEW_STEPS:
                start = index + 1
            bar = done
    return lines[start:]


def _without_ignored(lines: Sequence[Line]) -> list[Line]:
    """Return the lines without errors that Python itself ignored, each with its traceback."""
    kept, ignored, head = list[Line](), False, False
    for line in lines:
        if _IGNORED.match(line.text):
            ignored, head = True, False
        elif ignored and not head:
            head = bool(_HEAD.match(line.text))
            ignored = head
        elif ignored:
            ignored = line.text.startswith(" ")  # the last line is the error
            continue
        if not ignored:
            kept.append(line)
    return kept


def went_on(lines: Sequence[str]) -> bool:
    """Return whether lines hold what only a trainer that goes on prints."""
    return any(_WENT_ON.search(line.text) for line in read(lines))


@dataclass(frozen=True)
class Closing:
    """The lines that tell how it ended."""

    lines: Sequence[Line]
    """The last traceback (of several ranks that which says why) with what it was chained to, else the end."""
    raised: bool
    """Whether that is a traceback."""
    context: Sequence[Line]
    """The few lines that stand before the traceback; a trainer logs there which file it had."""
    said: Sequence[Line]
    """All that the trainer said since it last went on: the traceback may be an echo, as of a rank that lost another."""
    whole: Sequence[Line]
    """The same with what launchers, shells and pages said."""

    @property
    def texts(self) -> list[str]:
        """The lines as text."""
        return [line.text for line in self.lines]

    @property
    def rank_raised(self) -> bool:
        """Whether torch's launcher says that a rank ended by an error of its own; the others are killed then."""
        return any(_RANK_RAISED.search(line.text) for line in self.whole)

    @property
    def behind(self) -> Sequence[Line]:
        """What was said behind the error of the traceback: where it ended the trainer, next to nothing was."""
        frames = [index for index, line in enumerate(self.lines) if _FRAME.match(line.text)]
        after = self.lines[frames[-1] + 1 :] if frames else ()
        said = [line for line in after if not (line.text.startswith(" ") or line.warns or _BAR.search(line.text))]
        return said[1:]  # the first is the error


def closing(lines: Sequence[str]) -> Closing:
    """Return the lines that tell how it ended.

    The launcher raises an error of its own behind the trainer's, which says nothing. Of several ranks one may go on for
    a while after another has raised its error: where the launcher says that one did, that is looked for before too.
    """
    everything = _without_ignored(read(lines))
    whole = since_progress(everything)
    said, heads = _without_launcher(whole)
    if not heads and any(_RANK_RAISED.search(line.text) for line in whole):
        before, found = _without_launcher(everything)
        whole, said, heads = (everything, before, found) if found else (whole, said, heads)
    if not heads:
        return Closing(said[-_CLOSING_LINES:], False, (), said, whole)
    start, end = blame.telling(said, heads, lines)
    return Closing(said[start:end], True, said[max(0, start - _CONTEXT_LINES) : start], said, whole)


def _without_launcher(said: Sequence[Line]) -> tuple[Sequence[Line], list[int]]:
    """Return the lines without a launcher's own error at their end, and where tracebacks begin in them."""
    heads = [index for index, line in enumerate(said) if _HEAD.match(line.text)]
    while heads and any(name in line.text for line in said[heads[-1] :] for name in LAUNCHER):
        said = said[: heads.pop()]
    return said, heads


def shortened(text: str) -> str:
    """Return what a line says, short enough for a sentence."""
    text = " ".join(text.split())
    return text if len(text) <= _LONGEST_SAID else text[: _LONGEST_SAID - 3] + "..."
