"""Which of the tracebacks of several ranks says why, where one of them is our own: it names the rank to look at. Pure.

When one rank fails, others fail of it, in any order and each in its own words; torch's are about a connection.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fluxguard.supervisor.causes.signatures import Line

_OWN = re.compile(r"^(?:fluxguard\.errors\.)?(?:(?P<firm>RanksDisagree|SetupFailed)|RanksMissing|RankFailed): ")
"""The firm ones follow from nothing else."""
_FOLLOWS = re.compile(
    r"gloo/|pair closure|NCCL|ProcessGroup|TCPStore|Dist(?:Backend|Network|Store)Error"
    r"|[Cc]onnection (?:closed|reset)|Broken pipe"
)
_ERROR = re.compile(r"^(?:\w+\.)*\w+(?:Error|Exception|Interrupt|Exit)(?:: |$)")
_OF_RANK = re.compile(r"\[(?:rank|default)\d+\]: ?.{0,20}Traceback")
"""As torch writes it once the ranks have met: what one has survived before that is printed without."""
ENDED = re.compile(r"failed \(exitcode: (?P<code>-?\d+)\) local_rank: (?P<rank>\d+) \(pid: (?P<pid>\d+)\)")
"""What an elastic agent says of the rank by which a round ended."""
_CHAINED = ("During handling of the above exception", "The above exception was the direct cause")


def telling(said: Sequence[Line], heads: Sequence[int], lines: Sequence[str]) -> tuple[int, int]:
    """Return where the traceback begins and ends that says why, with what it was chained to: the last one mostly.

    `heads` are where tracebacks begin in `said`, at least one; it speaks of `lines`.
    """
    ends = [index for index, line in enumerate(said) if ENDED.search(line.text)]
    since = max((index for index in ends if heads[-1] > index), default=-1)  # another round began there
    groups = list(_groups(said, [head for head in heads if head > since]))
    if not any(_OWN.match(line.text) for start, end in groups for line in said[start:end]):
        return groups[-1]
    return max(groups, key=lambda group: (_weight(said[slice(*group)], lines), group))


def _groups(said: Sequence[Line], heads: Sequence[int]) -> Iterator[tuple[int, int]]:
    starts = [head for head in heads if not _is_chained(said, head)] or list(heads[:1])
    yield from zip(starts, [*starts[1:], len(said)], strict=True)


def _is_chained(said: Sequence[Line], head: int) -> bool:
    return any(text in line.text for line in said[max(0, head - 3) : head] for text in _CHAINED)


def _weight(group: Sequence[Line], lines: Sequence[str]) -> int:
    """Return how much a traceback says: that of a rank with an error of its own more than who only missed that rank."""
    if own := [found for line in group if (found := _OWN.match(line.text))]:
        return 4 if any(found["firm"] for found in own) else 2
    error = next((line for line in reversed(group) if _ERROR.match(line.text)), None)
    if error is None or _FOLLOWS.search(error.text):
        return 0
    return 3 if _OF_RANK.search(lines[group[0].at]) else 1
