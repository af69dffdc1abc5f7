"""The corpus of trainings that hang: each shows the right symptom, at its limit and at most a second later."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest

from fluxguard.limits import Limits
from fluxguard.supervisor.detecting.observation import Exit, Observation
from fluxguard.supervisor.detecting.patterns import NOTHING, Matches, parse
from fluxguard.supervisor.sensing.gpu import Card
from fluxguard.supervisor.sensing.output import Shown, shown_after
from fluxguard.supervisor.sensing.processes import Usage
from tests.supervisor.histories import BEAT, At, look, watched
from tests.supervisor.test_healthy import HARDENED, PLAIN, beating, on, printing, stepping, then, without_sensors

MINUTE, HOUR = 60.0, 3600.0
BEGINS = 1200.0
"""When the hang begins: right after a sign of life."""


@dataclass(frozen=True)
class Hang:
    """A training that hangs, and what is to be said of it when."""

    at: At
    kind: str
    after: float
    """Seconds from the last sign to the limit."""
    limits: Limits = field(default_factory=Limits)
    sign: str = ""
    """What the evidence beside it has to say."""


def spinning(at: At, cores: float) -> At:
    """It goes on using the processor when it hangs."""

    def spins(now: float) -> Observation:
        seen = at(min(now, BEGINS))
        cpu = seen.usage.cpu if seen.usage else 0.0
        return replace(seen, usage=Usage(cpu + cores * max(0.0, now - BEGINS), 0, ((7, "python", "running"),)))

    return spins


def silent(at: At) -> At:
    """Nothing of it moves any more."""
    return lambda now: at(min(now, BEGINS))


def waiting(now: float) -> Observation:
    """A block swap never comes back, and the guard, which should end it, cannot run."""
    steps = int(min(now, BEGINS) / 10)
    wait = "block swap" if now >= BEGINS else ""
    beat = replace(BEAT, step=steps, beats=steps, wait=wait, deadline=BEGINS + 30 if wait else float("inf"))
    return look(now, beat=beat, cpu=now)


def ranks(now: float) -> Observation:
    """Rank 1 hangs in its loader; the others spin in the collective that waits for it."""
    until = int(min(now, BEGINS) / 10)
    first = replace(BEAT, step=until, beats=until, at=min(now, BEGINS) + 100)
    second = replace(first, rank=1, step=until - 2, at=BEGINS, wait="batch from the loader", deadline=1e9)
    return replace(look(now, beat=first, cpu=8 * now), ranks=(first, second))


def in_the_kernel(now: float) -> Observation:
    """A share is gone: the process waits inside the kernel."""
    seen = silent(beating("load", 30))(now)
    usage = Usage(1.0, 0, ((7, "python", "disk-sleep"),), 0, ((7, "nfs_wait_on_request"),))
    return replace(seen, usage=usage)


def repeating(now: float) -> Observation:
    """The output tells of retries for ever, the training does not come on."""
    steps = int(min(now, BEGINS) / 10)
    lines = [f"steps: 1%|#| {steps}/40 [10:00<20:00, 0.1it/s, avr_loss=0.5]", "error: connection refused, retrying"]
    return look(now, shown=shown_after(Shown(), lines), output=int(now), cpu=now)


def ending(seen: At, **how: object) -> At:
    """It ends, as it says."""
    return lambda now: replace(seen(min(now, BEGINS)), **(how if now >= BEGINS else {}))  # type: ignore[arg-type]


def matching(text: str, matches: Matches = NOTHING) -> At:
    """A training that goes on well, but for the user's own pattern, which matches until the hang begins."""
    patterns = parse(text, "test")

    def at(now: float) -> Observation:
        found = Matches(names=frozenset({patterns[0].name})) if now <= BEGINS else Matches()
        return replace(stepping(10)(now), patterns=patterns, matches=matches if now >= BEGINS else found)

    return at


SPILLING = Card(index=0, used=24 << 30, total=24 << 30, utilisation=100.0, watts=90.0, watt_limit=350.0)
MISSING = "- {name: a, pattern: a}\n- {name: saved, pattern: s, within: 90, after: a}"
RARE = "- {name: a, pattern: a, every: 45}"

CORPUS = {
    "a step, nothing moves": Hang(silent(stepping(10)), "idle", 300),
    "a step that polls": Hang(spinning(stepping(10), 0.01), "idle", 300),
    "a step that spins": Hang(spinning(stepping(10), 1.0), "stuck", 300),
    "a step that spins with the GPU at 100 % and little power": Hang(
        on(SPILLING, spinning(stepping(10), 1.0)), "stuck", 300, sign="100 % busy at 90 of 350 W"),
    "a step of a run whose steps take two minutes": Hang(spinning(stepping(120), 1.0), "stuck", 1200),
    "the same without a sign of life": Hang(silent(stepping(120)), "idle", 300),
    "a first step that spins": Hang(spinning(beating("first step", 30), 4.0), "stuck", 1800),
    "a cache that is a FIFO": Hang(silent(beating("latent cache", 30)), "idle", 600),
    "a model on a share that is gone": Hang(in_the_kernel, "idle", 600, sign="nfs_wait_on_request"),
    "a sample that spins": Hang(spinning(beating("sampling", 30), 1.0), "stuck", 3600),
    "a save to a disk that is gone": Hang(silent(beating("saving", 30)), "idle", 600),
    "a save that spins": Hang(spinning(beating("saving", 30), 1.0), "stuck", 1800),
    "an upload that does not end": Hang(silent(beating("upload", 30)), "idle", 2400),
    "a swap that nobody could end": Hang(waiting, "overdue", 33),
    "one rank of several": Hang(ranks, "stuck", 300, sign="rank 1 stays behind"),
    "without any sensor": Hang(without_sensors(silent(printing("step {}/9", 30))), "stuck", 600, PLAIN),
    "a driver that does not answer": Hang(
        lambda now: replace(silent(stepping(10))(now), silent=("GPU",)), "idle", 300, sign="the GPU did not answer"),
    "a fault that the driver reported": Hang(
        lambda now: replace(silent(stepping(10))(now), xids=("Xid 79",)), "idle", 300, sign="Xid 79"),
    "not hardened, nothing moves": Hang(silent(printing("step {}/9", 30)), "idle", 600, PLAIN),
    "not hardened, spins": Hang(spinning(printing("step {}/9", 30), 1.0), "stuck", 600, PLAIN),
    "not hardened, retries for ever": Hang(repeating, "stuck", 600, PLAIN),
    "ended": Hang(ending(stepping(10), exit=Exit(code=1)), "ended", 0),
    "given up by the guard": Hang(ending(stepping(10), spoken=True), "given up", 0),
    "a line of the user's own that is missing": Hang(
        matching(MISSING), "watched log", 90 - BEGINS),
    "a line of the user's own that stops coming": Hang(matching(RARE), "watched log", 45),
    "a value of the user's own that is no number": Hang(
        matching("- {name: a, pattern: '(a)', finite: 1}", Matches(names=frozenset({"a"}), not_finite=("a", "nan"))),
        "watched log", 0),
}  # fmt: skip


@pytest.mark.parametrize("name", CORPUS)
def test_what_hangs_shows_its_symptom_at_its_limit(name: str) -> None:
    """The right one, a second late at most."""
    hang = CORPUS[name]
    due = BEGINS + hang.after
    symptom, now = watched(hang.at, due + HOUR, limits=hang.limits, fine=(BEGINS, due))
    assert symptom is not None
    assert (symptom.kind, hang.sign in " ".join(symptom.signs)) == (hang.kind, True)
    assert due <= now <= due + 1


def test_a_hang_after_a_sleep_counts_from_the_waking() -> None:
    """An hour of sleep is no part of it, nor an excuse."""
    hang = then(stepping(10), BEGINS, lambda now: stepping(10)(BEGINS))
    symptom, now = watched(
        hang, 4 * HOUR, limits=HARDENED, naps={BEGINS + 60: HOUR}, fine=(BEGINS, BEGINS + HOUR + 330)
    )
    assert symptom is not None
    assert BEGINS + HOUR + 300 <= now <= BEGINS + HOUR + 300 + 61
