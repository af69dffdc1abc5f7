"""The corpus of trainings that are slow, silent or strange, and healthy: none of them may show a symptom.

Each is what is to be seen over time, as issues and users tell it; the watching is the supervisor's own.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from fluxguard.limits import Limits
from fluxguard.supervisor.detecting.observation import Observation
from fluxguard.supervisor.detecting.patterns import Matches, parse
from fluxguard.supervisor.sensing.gpu import Card
from fluxguard.supervisor.sensing.heals import Heal
from fluxguard.supervisor.sensing.output import Shown, shown_after
from fluxguard.supervisor.sensing.processes import Usage
from tests.supervisor.histories import BEAT, At, look, watched

MINUTE, HOUR = 60.0, 3600.0
HARDENED, PLAIN = Limits(), Limits().doubled()
IO = 1 << 20
PATTERNS = parse("- {name: begun, pattern: begun, within: 60}\n- {name: step, pattern: s, every: 300}", "test")


def beating(phase: str, every: float, *, cpu: float = 0.0, io: float = 0.0) -> At:
    """A hardened trainer that comes one item further `every` seconds; `cpu` cores busy, `io` bytes a second."""

    def at(now: float) -> Observation:
        items = int(now / every)
        beat = replace(BEAT, phase=phase, done=items, beats=items, at=items * every)
        return look(now, beat=beat, cpu=cpu * now, io=int(io * now))

    return at


def stepping(every: float, *, cpu: float = 0.0) -> At:
    """A hardened trainer that steps once in `every` seconds."""

    def at(now: float) -> Observation:
        steps = int(now / every)
        return look(now, beat=replace(BEAT, step=steps, batch=steps, beats=steps, at=steps * every), cpu=cpu * now)

    return at


def printing(line: str, every: float, *, cpu: float = 0.0) -> At:
    """A trainer that is not hardened and prints a line with a number, `{}`, once in `every` seconds."""

    def at(now: float) -> Observation:
        count = int(now / every)
        shown = shown_after(Shown(), [line.format(count)] if count else [])
        return look(now, shown=shown, output=100 * count, cpu=cpu * now)

    return at


def then(first: At, until: float, second: At) -> At:
    """One after the other."""
    return lambda now: first(now) if now < until else second(now)


def on(card: Card, at: At) -> At:
    """The same, with a GPU that shows this."""
    return lambda now: replace(at(now), gpus=(card,))


def without_sensors(at: At) -> At:
    """The same, with nothing to be seen of processes, GPU, memory and disk."""
    return lambda now: replace(at(now), usage=None, gpus=None, disk_free=None, silent=("GPU", "disk"))


def accumulating(now: float) -> Observation:
    """The first step takes 65 minutes: 16 batches of four minutes, as large accumulation on a small card does."""
    batch = int(now / (4 * MINUTE))
    step, phase = (0, "first step") if batch < 17 else (batch // 16, "step")
    return look(now, beat=replace(BEAT, step=step, batch=batch, beats=batch, phase=phase, at=now), cpu=0.1 * now)


def in_turns(now: float) -> Observation:
    """Rank 0 has cached what is its own and waits for three hours; rank 1 comes on, an image every ten minutes."""
    waits = replace(BEAT, phase="latent cache", wait="barrier", deadline=1e9, at=0.0)
    images = int(now / (10 * MINUTE))
    works = replace(BEAT, rank=1, phase="latent cache", done=images, beats=images, at=now)
    return replace(look(now, beat=waits, cpu=0.0), ranks=(waits, works))


def healed(now: float) -> Observation:
    """Workers are stuck for a minute, fresh ones take four more."""
    steps = int(now / 10) if now < 600 else 60 + max(0, int((now - 900) / 10))
    heal = Heal(
        attempt="", rank=0, number=1, step=60, time=0.0, what="a batch", cause="stuck", why="", seconds=60.0,
        identical=True, doubt="", file=None, workers=(),
    )  # fmt: skip
    seen = look(now, beat=replace(BEAT, step=steps, beats=steps + (now > 660)), cpu=0.5 * now)
    return replace(seen, healed=(heal,) if now > 660 else ())


def stopped_for_a_while(now: float) -> Observation:
    """Somebody pauses the training for four minutes, twice, with SIGSTOP."""
    paused = 600 < now < 840 or 1200 < now < 1440
    steps = int(min(now, 600) / 5) + int(max(0.0, min(now, 1200) - 840) / 5) + int(max(0.0, now - 1440) / 5)
    status = "stopped" if paused else "running"
    seen = look(now, beat=replace(BEAT, step=steps, beats=steps))
    return replace(seen, usage=Usage(float(steps), 0, ((1, "python", status),)))


def with_patterns(now: float) -> Observation:
    """The user's own patterns are met, with a log that was too long to be read whole."""
    steps = int(now / 200)
    names = frozenset({"step"}) if now % 200 < 6 else frozenset()
    seen = look(now, beat=replace(BEAT, step=steps, beats=steps), cpu=now)
    return replace(seen, patterns=PATTERNS, matches=Matches(names=names), unread=1 << 30)


def beat_of_another_clock(now: float) -> Observation:
    """A clock was set: what the beats say of time is an hour ahead."""
    steps = int(now / 30)
    return look(now, beat=replace(BEAT, step=steps, beats=steps, at=now + HOUR), cpu=0.0)


def bar_and_saves(now: float) -> Observation:
    """Upstream's own output: a bar, and every ten minutes a save of nine on a slow share, in which nothing is shown."""
    cycle, inside = divmod(now, 19 * MINUTE)
    steps = int(cycle * 60 + min(inside, 10 * MINUTE) / 10)
    bar = f"steps: 1%|#| {steps}/4000 [10:00<20:00, 0.1it/s, avr_loss=0.5]"
    saving = inside > 10 * MINUTE
    lines = [bar, "saving checkpoint: x"] if saving else [bar]
    return look(now, shown=shown_after(Shown(), lines), output=steps + saving, cpu=0.0, io=int(now * IO))


IDLE_GPU = Card(index=0, used=1 << 34, total=24 << 30, utilisation=0.0, watts=30.0, watt_limit=350.0)
BUSY_GPU = Card(index=0, used=23 << 30, total=24 << 30, utilisation=100.0, watts=340.0, watt_limit=350.0)

CORPUS: dict[str, tuple[At, float, Limits]] = {
    "latents are cached for ten hours over NFS, 25 minutes an image": (
        beating("latent cache", 25 * MINUTE, io=IO), 10 * HOUR, HARDENED),
    "a first step of 65 minutes, batch by batch": (accumulating, 2 * HOUR, HARDENED),
    "a first step that compiles for 29 minutes": (
        then(beating("first step", HOUR, cpu=1.0), 29 * MINUTE, stepping(20)), HOUR, HARDENED),
    "samples of two minutes each": (beating("sampling", 2 * MINUTE), 2 * HOUR, HARDENED),
    "one sample of 55 minutes that uses the processor": (
        then(beating("sampling", HOUR, cpu=1.0), 55 * MINUTE, stepping(20)), 90 * MINUTE, HARDENED),
    "a save of half an hour on a share": (
        then(beating("saving", HOUR, io=IO), 29.8 * MINUTE, stepping(20)), HOUR, HARDENED),
    "a model of 34 GB from a network disk, 58 minutes": (
        then(beating("load", HOUR, io=10 * IO), 58 * MINUTE, stepping(20)), 90 * MINUTE, HARDENED),
    "the text encoder on the processor, 58 minutes": (
        then(beating("text cache", HOUR, cpu=8.0), 58 * MINUTE, stepping(20)), 90 * MINUTE, HARDENED),
    "an upload without a word for 39 minutes": (
        then(beating("upload", HOUR), 39 * MINUTE, stepping(20)), HOUR, HARDENED),
    "validation, 25 minutes a batch": (beating("validation", 25 * MINUTE, cpu=0.2), 2 * HOUR, HARDENED),
    "the GPU at 0 % for an hour while latents are cached": (
        on(IDLE_GPU, beating("latent cache", 9 * MINUTE)), HOUR, HARDENED),
    "the GPU at 100 % with steps of four minutes": (on(BUSY_GPU, stepping(4 * MINUTE)), 2 * HOUR, HARDENED),
    "steps of 28 minutes from the first on, while the processor waits for the GPU": (
        on(BUSY_GPU, stepping(28 * MINUTE, cpu=0.2)), 4 * HOUR, HARDENED),
    "a swap storm that goes on: steps of half a minute become four and a half": (
        then(stepping(30), HOUR, stepping(4.5 * MINUTE)), 3 * HOUR, HARDENED),
    "adopted in the middle of a step of 20 minutes": (
        lambda now: stepping(20 * MINUTE, cpu=1.0)(now + 13 * MINUTE), 2 * HOUR, HARDENED),
    "one rank caches while the others wait for three hours": (in_turns, 3 * HOUR, HARDENED),
    "healed in place": (healed, HOUR, HARDENED),
    "paused by somebody, twice": (stopped_for_a_while, HOUR, HARDENED),
    "beats from a clock that was set": (beat_of_another_clock, HOUR, HARDENED),
    "nothing to be seen but the beats": (without_sensors(stepping(4 * MINUTE)), HOUR, HARDENED),
    "nothing to be seen at all for 58 minutes of loading": (
        then(without_sensors(lambda now: look(now)), 58 * MINUTE, without_sensors(stepping(20))), 2 * HOUR, HARDENED),
    "patterns of the user's own that are met": (with_patterns, HOUR, HARDENED),
    "not hardened: a bar that moves every nine minutes": (
        printing("steps: 1%|#| {}/40 [10:00<20:00, 0.1it/s, avr_loss=0.5]", 9 * MINUTE), 4 * HOUR, PLAIN),
    "not hardened: saves of nine minutes, silent but for I/O": (bar_and_saves, 4 * HOUR, PLAIN),
    "not hardened: latents cached without a bar for 55 minutes": (
        then(printing("caching latents{}", HOUR, cpu=1.0), 55 * MINUTE, printing("step {}/9", 60)), 2 * HOUR, PLAIN),
    "not known: a line of JSON every eight minutes": (
        printing("{{'step': {}, 'loss': 0.1}}", 8 * MINUTE), 3 * HOUR, PLAIN),
    "not known: a loss and no step, as many examples print it": (
        printing("Train Epoch: 1 [{0}/60000 (1%)]\tLoss: 0.{0}", 60, cpu=1.0), 5 * HOUR, PLAIN),
    "not known: nothing but epochs, one in 50 minutes, while the processor works": (
        printing("epoch {}/10", 50 * MINUTE, cpu=1.0), 5 * HOUR, PLAIN),
}  # fmt: skip


@pytest.mark.parametrize("name", CORPUS)
def test_what_is_slow_and_healthy_shows_no_symptom(name: str) -> None:
    """No history of the corpus is ended, whatever is slow, silent or unknown in it."""
    at, until, limits = CORPUS[name]
    symptom, now = watched(at, until, limits=limits)
    assert symptom is None, f"{symptom} after {now} s"


@pytest.mark.parametrize("hours", [1, 9])
def test_a_machine_that_sleeps_shows_no_symptom(hours: float) -> None:
    """Suspended in the middle of a step, a sample and a cached image."""
    for at in (stepping(4 * MINUTE), beating("sampling", 9 * MINUTE), beating("latent cache", 9 * MINUTE)):

        def awake(now: float, at: At = at) -> Observation:
            return at(now if now < 1000 else max(1000.0, now - hours * HOUR))

        symptom, _ = watched(awake, (hours + 1) * HOUR, limits=HARDENED, naps={1000: hours * HOUR})
        assert symptom is None


def test_limits_of_the_user_hold() -> None:
    """A compilation of 65 minutes is healthy for who says so."""
    patient = Limits.from_mapping({"phase": {"first step": {"ceiling": 2 * HOUR}}})
    compiles = then(beating("first step", 2 * HOUR, cpu=1.0), 65 * MINUTE, stepping(20))
    assert watched(compiles, 2 * HOUR, limits=patient)[0] is None
