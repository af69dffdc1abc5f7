"""What a history shows beside progress, in words: evidence for a symptom, and what troubles are made of. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from fluxguard.heartbeat import Beat
from fluxguard.limits import Limits
from fluxguard.supervisor.detecting.observation import History, Observation
from fluxguard.supervisor.detecting.standing import Standing, standing
from fluxguard.supervisor.sensing.gpu import Card, used_by

BUSY = 90.0
"""Percent of utilisation from which a card counts as busy."""
_LITTLE_WORK = 0.4
"""Share of its power limit below which a busy card does next to nothing: it waits for memory, or for another card."""
_GONE = ("zombie", "dead")
_BEHIND = 2
"""Steps; ranks that train together are never further apart than the step they are in."""
_OLDER = 60.0
"""Seconds by which the beat of a rank must be older than that of another one that goes on."""


@dataclass(frozen=True)
class Lag:
    """A rank that the others are ahead of."""

    beat: Beat
    steps: int
    seconds: float
    """How much older its beat is than the newest one."""

    @property
    def words(self) -> str:
        """Say it."""
        waits = f", where it waits for {self.beat.wait}" if self.beat.wait else ""
        ahead = f"; the others are {self.steps} steps ahead" if self.steps else ""
        return (
            f"rank {self.beat.rank} stays behind: step {self.beat.step}{waits}, "
            f"its last beat {self.seconds:.0f} s older than theirs{ahead}"
        )


def dead(history: History) -> frozenset[int]:
    """Return the processes of ranks that were gone at the last look that saw processes: they did not beat since.

    Where no rank is seen at all, nothing is known of any.
    """
    seen = history.sampled
    if seen is None or seen.usage is None or seen.exit is not None:
        return frozenset()
    living = {pid for pid, _, status in seen.usage.states if status not in _GONE}
    pids = {beat.pid for beat in history.last.ranks}
    if not pids & living:
        return frozenset()
    return frozenset(beat.pid for beat in history.last.ranks if beat.pid not in living and beat.at < seen.now)


def ranks(history: History, *, alive: bool = True) -> Standing | None:
    """Return how the ranks stand to each other, or None when nobody waits for another.

    When the attempt has ended, or is being ended (not `alive`), all of them go: that says nothing of one.
    """
    usage = history.sampled.usage if history.sampled else None
    stopped = usage.stopped if usage else ()
    return standing(history.last.ranks, history.last.now, dead=dead(history) if alive else (), stopped=stopped)


def lagging(history: History, limits: Limits) -> Lag | None:
    """Return the rank that stays behind the others, or None. A rank that saves or samples is waited for on purpose."""
    ranks = [beat for beat in history.last.ranks if beat.phase == "step"]
    if len(ranks) < 2:
        return None
    last, first = min(ranks, key=_place), max(ranks, key=_place)
    newest = max(beat.at for beat in ranks)
    steps = first.step - last.step
    if steps >= _BEHIND:
        return Lag(last, steps, newest - last.at)
    oldest = min(ranks, key=lambda beat: beat.at)
    older = newest - oldest.at
    if older > max(_OLDER, limits.watch.step_factor * history.slowest_step) and len(ranks) == len(history.last.ranks):
        return Lag(oldest, 0, older)
    return None


def _place(beat: Beat) -> tuple[int, int, int]:
    return beat.step, beat.epoch, beat.batch


def cards_of(seen: Observation) -> tuple[Card, ...]:
    """Return the cards that the training uses; none when that cannot be told."""
    pids = [pid for pid, _, _ in seen.usage.states] if seen.usage else []
    return used_by(seen.gpus or (), pids)


def strained_little(card: Card) -> bool:
    """Whether a card is busy, but at a power at which it does not compute."""
    busy = card.utilisation is not None and card.utilisation >= BUSY
    return busy and card.strain is not None and card.strain < _LITTLE_WORK


def beside(history: History, limits: Limits) -> tuple[str, ...]:
    """Return what else is to be seen of a training that does not move on."""
    return tuple(_beside(history, limits))


def _beside(history: History, limits: Limits) -> Iterator[str]:
    seen = history.samples[-1] if history.samples else history.last
    for card in cards_of(seen):
        if card.watts is None or card.utilisation is None:
            continue
        limit = f" of {card.watt_limit:.0f}" if card.watt_limit else ""
        idles = "; so much is drawn by one that waits" if strained_little(card) else ""
        yield f"GPU {card.index} was {card.utilisation:.0f} % busy at {card.watts:.0f}{limit} W{idles}"
    if found := ranks(history):
        yield found.words
    elif lag := lagging(history, limits):
        yield lag.words
    for pid, where in seen.usage.waits if seen.usage else ():
        yield f"process {pid} waits in the kernel, in {where}"
    yield from (f"the driver reported {fault}" for fault in history.last.xids)
    yield from (f"the {what} did not answer" for what in history.last.silent)
