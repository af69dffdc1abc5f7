"""What is not as it should be in a training that goes on, in plain words: nothing of it ends a run. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from fluxguard.heartbeat import Beat
from fluxguard.limits import Limits
from fluxguard.supervisor.detecting.observation import History, Observation
from fluxguard.supervisor.detecting.signs import cards_of, lagging, strained_little
from fluxguard.supervisor.sensing.gpu import Card
from fluxguard.supervisor.sensing.host import Host

_GIB = 1 << 30
_SLOWER = 2.0
"""Times the best speed of the run; less is the weather of a machine."""
_SPILLS_SLOWER = 1.3
_SLOW_STEP = 30.0
"""Seconds of a step from which on it is slow by itself: a run may spill from its first step."""
_FULL_GPU = 0.97
_SAMPLES = 3
"""Samples in a row that must agree about what may be a moment's."""
_FEW_BATCHES = 20
_MANY_TIMES = 4
"""Times the batches that a step of this run takes, after which one is missed."""
_REPEATED = 10
_LONGEST_SAID = 200
_ALMOST_NO_DISK = 1 << 30
_ALMOST_NO_MEMORY = 0.05
_FULL_SWAP = 0.9
_FULL_CONTAINER = 0.95
_HARMLESS = frozenset({"power cap"})
"""What a card does in health: it keeps to its limit."""


@dataclass(frozen=True)
class Trouble:
    """One thing that is not as it should be."""

    kind: str
    """What is told once per attempt."""
    words: str
    advice: str = ""

    @property
    def text(self) -> str:
        """Return words and advice as one."""
        return f"{self.words}; {self.advice}" if self.advice else self.words


def troubles(history: History, limits: Limits) -> tuple[Trouble, ...]:
    """Return what is to be seen now."""
    found = (find(history, limits) for find in _FINDERS)
    return (*of_beat(history.last.beat), *(trouble for trouble in found if trouble is not None))


def of_beat(beat: Beat | None) -> tuple[Trouble, ...]:
    """Return what the trainer itself tells in its heartbeat."""
    return () if beat is None else tuple(_of_beat(beat))


def _of_beat(beat: Beat) -> Iterator[Trouble]:
    if beat.retries or beat.ooms:
        times = _times(max(beat.retries, beat.ooms))
        words = f"the GPU's memory is full: its allocator had to make room {times}, which is slow"
        yield Trouble("allocator retries", words, "swap more blocks or lower the resolution")
    if beat.unstepped:
        words = f"an optimizer did not step, {_times(beat.unstepped)}: a part of the model is not trained"
        yield Trouble("optimizer stopped", words)
    if beat.unsampled:
        yield Trouble("sampling failed", f"sampling failed {_times(beat.unsampled)}; the reason is in the output")


def slow(history: History, limits: Limits) -> Trouble | None:
    """Steps take longer and longer."""
    pace = history.pace
    if pace.slowdown < _SLOWER:
        return None
    words = (
        f"steps take {_seconds(pace.median)} by now, {pace.slowdown:.1f} times as long as at best "
        f"in this attempt ({_seconds(pace.best)})"
    )
    return Trouble("slow", words, "see what else uses the GPU, the memory and the disk of this machine")


def spills(history: History, limits: Limits) -> Trouble | None:
    """A driver that lends the card memory of the machine, over the bus, goes on; at a tenth of the speed."""
    pace = history.pace
    if pace.slowdown < _SPILLS_SLOWER and pace.median < _SLOW_STEP:
        return None
    card = _agreed(history, lambda one: (one.filled or 0.0) >= _FULL_GPU and strained_little(one))
    if card is None:
        return None
    words = (
        f"the memory of GPU {card.index} is full ({_gib(card.used)} of {_gib(card.total)} GiB), and it is busy at "
        f"{card.watts:.0f} of {card.watt_limit:.0f} W while steps are slow: it seems to use the machine's memory too"
    )
    return Trouble("GPU memory spills", words, "swap more blocks or lower the resolution")


def throttled(history: History, limits: Limits) -> Trouble | None:
    """A card that slows itself down for long is too hot, or short of power."""
    card = _agreed(history, lambda one: bool(set(one.throttled or ()) - _HARMLESS))
    if card is None:
        return None
    reasons = ", ".join(sorted(set(card.throttled or ()) - _HARMLESS))
    heat = f" at {card.celsius:.0f} degrees C" if card.celsius is not None else ""
    return Trouble(
        "GPU throttled", f"GPU {card.index} slows itself down{heat}: {reasons}", "see to its cooling and power"
    )


def _agreed(history: History, holds: Callable[[Card], bool]) -> Card | None:
    """Return a card of the training of which something has held for some samples, all of them within steps."""
    last = history.samples[-_SAMPLES:]
    if len(last) < _SAMPLES or any(seen.phase != "step" for seen in last):
        return None
    held = [{card.index: card for card in cards_of(seen) if holds(card)} for seen in last]
    return next((card for index, card in held[-1].items() if all(index in one for one in held)), None)


def faults(history: History, limits: Limits) -> Trouble | None:
    """What the driver reports as critical."""
    if not history.last.xids:
        return None
    return Trouble("GPU fault", f"the GPU's driver reported {', '.join(history.last.xids)}")


def silent(history: History, limits: Limits) -> Trouble | None:
    """What does not answer is unknown, which is no reason to end anything, and worth to know."""
    told = {"GPU": "the GPU's driver does not answer", "disk": "the disk of the output folder does not answer"}
    words = [told[what] for what in history.last.silent if what in told]
    return Trouble(f"silent: {', '.join(history.last.silent)}", "; ".join(words)) if words else None


def unstepping(history: History, limits: Limits) -> Trouble | None:
    """Batches go by, and the optimizer does not step."""
    stepping = history.stepping
    if not stepping.most or stepping.waiting < max(_FEW_BATCHES, _MANY_TIMES * stepping.most):
        return None
    words = f"{stepping.waiting} batches went by without a step of the optimizer, which takes {stepping.most}"
    return Trouble("optimizer stopped", words, "in fp16 the loss scale may have collapsed: try bf16")


def lags(history: History, limits: Limits) -> Trouble | None:
    """One rank stays behind, which all others wait for."""
    lag = lagging(history, limits)
    return Trouble("rank lags", lag.words) if lag else None


def repeats(history: History, limits: Limits) -> Trouble | None:
    """The output tells the same failure again and again."""
    errors: Mapping[str, int] = history.last.shown.errors
    text = max(errors, key=lambda one: errors[one], default="")
    if not text or errors[text] < _REPEATED:
        return None
    return Trouble("repeated error", f"the output tells {errors[text]} times: {_whole_words(history, text)}")


def _whole_words(history: History, text: str) -> str:
    """Return a line as it first came, cut between words: a part of a secret would not be known as one."""
    line = history.last.shown.said[text]
    return line if len(line) <= _LONGEST_SAID else f"{line[:_LONGEST_SAID].rpartition(' ')[0]} ..."


def disk(history: History, limits: Limits) -> Trouble | None:
    """The next save would not fit."""
    free, save = history.last.disk_free, history.saving.largest
    if free is None or free >= max(save, _ALMOST_NO_DISK):
        return None
    takes = f"; a save takes {_gib(save)} GiB" if save else ""
    words = f"the disk of the output folder is nearly full: {_gib(free)} GiB free{takes}"
    return Trouble("disk nearly full", words, "free some space before the next save")


def memory(history: History, limits: Limits) -> Trouble | None:
    """The system ends a process without a word when memory is gone."""
    host = history.samples[-1].host if history.samples else None
    if host is None:
        return None
    words = _container(host) or _machine(host)
    advice = "close other programs, train with fewer loader workers, or allow more swap"
    return Trouble("memory nearly full", words, advice) if words else None


def _container(host: Host) -> str:
    used, limit = host.cgroup_used, host.cgroup_limit
    if used is None or limit is None or used < _FULL_CONTAINER * limit:
        return ""
    return f"the memory of this container is nearly used up: {_gib(used)} of {_gib(limit)} GiB"


def _machine(host: Host) -> str:
    if host.available is None or not host.total or host.available >= _ALMOST_NO_MEMORY * host.total:
        return ""
    if host.swap_total and (host.swap_used is None or host.swap_used < _FULL_SWAP * host.swap_total):
        return ""
    swap = f" and {_gib(host.swap_used)} of {_gib(host.swap_total)} GiB of swap are used" if host.swap_total else ""
    return f"the memory of this machine is nearly used up: {_gib(host.available)} of {_gib(host.total)} GiB left{swap}"


def on_cpu(history: History, limits: Limits) -> Trouble | None:
    """A trainer without a working CUDA build trains on the processor, a hundred times slower, without a complaint."""
    seen: Observation = history.last
    if seen.shown.device != "cpu" or not seen.gpus:
        return None
    words = f"the training runs on the processor, although there is a GPU ({seen.gpus[0].name or 'GPU 0'})"
    return Trouble(
        "trains on the CPU", words, "its environment holds a PyTorch without CUDA, or cannot reach the driver"
    )


def slow_patterns(history: History, limits: Limits) -> Trouble | None:
    """A pattern of the user's own that takes too long to search for."""
    names = ", ".join(history.last.matches.slow)
    return (
        Trouble("slow pattern", f"not watched for any more, it takes too long to search for: {names}")
        if names
        else None
    )


_FINDERS = (
    slow, spills, throttled, faults, silent, unstepping, lags, repeats, disk, memory, on_cpu, slow_patterns,
)  # fmt: skip


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _seconds(value: float) -> str:
    return f"{value:.3g} s"


def _gib(value: int | None) -> str:
    return "?" if value is None else f"{value / _GIB:.1f}"
