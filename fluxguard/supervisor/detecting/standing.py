"""Where the ranks of a training stand to each other, by the collectives that they have noted. Pure.

All ranks come to the same collectives in the same order, and each waits there for the others. So the rank that has
come least far is the one to look at: the others only wait for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

from fluxguard.heartbeat import Beat, Collective

_OF_STEPS = ("step", "first step")
"""Phases in which a rank beats with each step, so that they say nothing about how long one has stood."""
_ON_PURPOSE = frozenset({"saving", "sampling", "validation", "on main", "upload"})
"""Phases that one rank may be in alone while all others wait for it, for minutes."""


@dataclass(frozen=True, kw_only=True)
class Standing:
    """What is to be said of ranks of which at least one waits for another."""

    words: str
    """Who waits where since when, and what those are doing that did not come; the latest first."""
    late: tuple[Beat, ...] = ()
    """Those that the others wait for, the latest first; empty when all came, or when they do not agree."""
    seconds: float = 0.0
    """For how long one waits by now, at most."""


def standing(
    beats: Iterable[Beat], now: float, *, dead: Iterable[int] = (), stopped: Iterable[int] = (), hung: bool = True
) -> Standing | None:
    """Return how the ranks stand to each other at `now` (monotonic seconds), or None when nobody waits for another.

    `dead` and `stopped` are the process numbers of ranks that are gone, and of those that somebody has stopped. While
    nothing is `hung`, a rank that saves or samples is not said to be late.
    """
    ranks = sorted(beats, key=lambda beat: beat.rank)
    look = _Look(now, frozenset(dead), frozenset(stopped), hung)
    if len(ranks) < 2 or not (any(map(_open, ranks)) or any(map(look.stands_still, ranks))):
        return None
    late = look.latest_first(ranks)
    waiting = [beat for beat in ranks if beat not in late and _open(beat)]
    if late:
        target = max(filter(None, map(_open, waiting)), key=_far, default=None)
        said = [look.late(beat, target) for beat in late]
        if target is None or not any(look.names(beat, target) for beat in late):
            said += look.at(waiting)
    elif len({_name(_open(beat)) for beat in waiting}) > 1:
        said = ["the ranks do not agree", *look.at(waiting)]
    else:
        said = ["all came, and none goes on", *look.at(waiting)]
    seconds = max((now - one.at for one in map(_open, waiting) if one), default=0.0)
    return Standing(words=", ".join(said), late=tuple(late), seconds=seconds)


def alone(beat: Beat, now: float, *, dead: Iterable[int] = (), stopped: Iterable[int] = ()) -> Standing | None:
    """Return how the only rank of one machine of several stands: it waits, or the others wait for it. None: neither."""
    look = _Look(now, frozenset(dead), frozenset(stopped), True)
    waits = _open(beat)
    if look.stands_still(beat):
        return Standing(words=look.late(beat, None), late=(beat,))
    return None if waits is None else Standing(words=look.at([beat])[0], seconds=max(0.0, now - waits.at))


def _open(beat: Beat) -> Collective | None:
    """Return the collective that a rank waits in."""
    return beat.collective if beat.collective is not None and beat.collective.open else None


def _far(one: Collective | None) -> tuple[int, int]:
    """Return how far a rank has come: one that left with an error has not come where the others wait."""
    if one is None:
        return 0, 0
    begun, minus_depth = one.place
    return begun, minus_depth - (2 if one.failed else 0)


@dataclass(frozen=True)
class _Look:
    """One look at the ranks."""

    now: float
    dead: frozenset[int]
    stopped: frozenset[int]
    hung: bool

    def stands_still(self, beat: Beat) -> bool:
        return beat.pid in self.dead or beat.pid in self.stopped

    def latest_first(self, ranks: Sequence[Beat]) -> list[Beat]:
        """Return those that are behind another one, and those that cannot come at all."""
        furthest = max((_far(beat.collective) for beat in ranks if not self.stands_still(beat)), default=(0, 0))
        late = [beat for beat in ranks if self.stands_still(beat) or _far(beat.collective) < furthest]
        return sorted(late, key=lambda beat: (beat.pid not in self.dead, _far(beat.collective), beat.rank))

    def names(self, beat: Beat, target: Collective) -> bool:
        """Whether `late` says of a rank where the others wait."""
        return _far(beat.collective) < _far(target) and (_open(beat) is None or self.stands_still(beat))

    def late(self, beat: Beat, target: Collective | None) -> str:
        """Say what one is doing instead of coming to `target`."""
        one, doing = beat.collective, self.doing(beat)
        yet = beat.phase in _ON_PURPOSE and not (self.hung or self.stands_still(beat))
        how = "has not come yet" if yet else "did not come"
        came = f" {how} to {_name(target)}" if target and _far(one) < _far(target) else ""
        if beat.pid in self.dead:
            return f"rank {beat.rank} is dead{' and' if came else ''}{came}: it was {doing}"
        if beat.pid in self.stopped:
            return (
                f"rank {beat.rank}{came}: it is stopped, {doing}" if came else f"rank {beat.rank} is stopped, {doing}"
            )
        if one is not None and one.open:
            return self.at([beat])[0]
        if one is not None and one.failed and target is not None and one.sequence == target.sequence:
            came = f" left {_name(target)} with an error"
        return f"rank {beat.rank}{came}: it is {doing}" if came else f"rank {beat.rank} is {doing}"

    def doing(self, beat: Beat) -> str:
        """Say what a rank does, or did last, apart from collectives that are over."""
        one = _open(beat)
        if one is not None:
            return f"at {_name(one)} since {self._since(one.at)}"
        waits = f", where it waits for {beat.wait}" if beat.wait else ""
        if beat.phase in _OF_STEPS:
            return f"in step {beat.step + 1} since {self._since(beat.at)}{waits}"
        return f"in phase '{beat.phase}' since {self._since(beat.phase_at)}{waits}"

    def at(self, ranks: Sequence[Beat]) -> list[str]:
        """Say where those wait that wait, together those that wait at the same place; who is behind comes first."""
        waiting = [(one, beat.rank) for beat in ranks if (one := _open(beat))]
        waiting.sort(key=lambda two: (_far(two[0]), _name(two[0]), two[1]))
        said = []
        for name, found in groupby(waiting, key=lambda two: _name(two[0])):
            group = list(found)
            since = self._since(min(one.at for one, _ in group))
            said.append(f"{_ranks([rank for _, rank in group])} at {name} since {since}")
        return said

    def _since(self, at: float) -> str:
        return f"{max(0.0, self.now - at):.0f} s"


def _name(one: Collective | None) -> str:
    """Return how people are told of a collective."""
    return "" if one is None else f"#{one.sequence} '{one.what or one.kind}'"


def _ranks(numbers: Sequence[int]) -> str:
    if len(numbers) == 1:
        return f"rank {numbers[0]} is"
    return f"ranks {', '.join(map(str, numbers[:-1]))} and {numbers[-1]} are"
