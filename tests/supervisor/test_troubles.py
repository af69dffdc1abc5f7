"""Laws of troubles: told in words, never a reason to end a run, and none in a healthy training."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from fluxguard.heartbeat import Beat
from fluxguard.limits import Limits
from fluxguard.supervisor.detecting.detectors import detect
from fluxguard.supervisor.detecting.observation import History, Observation
from fluxguard.supervisor.detecting.patterns import Matches
from fluxguard.supervisor.detecting.troubles import troubles
from fluxguard.supervisor.sensing.gpu import Card
from fluxguard.supervisor.sensing.host import Host
from fluxguard.supervisor.sensing.output import Shown, shown_after
from fluxguard.supervisor.sensing.processes import Usage
from tests.supervisor.histories import BEAT, history, look

LIMITS = Limits()
GIB = 1 << 30
HOST = Host(
    available=50 * GIB, total=64 * GIB, swap_used=0, swap_total=8 * GIB, cgroup_used=10 * GIB, cgroup_limit=60 * GIB,
    oom_kills=3,
)  # fmt: skip
CARD = Card(
    index=0, name="NVIDIA Fake", used=20 * GIB, total=24 * GIB, utilisation=100.0, watts=300.0, watt_limit=350.0,
    celsius=70.0, throttled=("power cap",), held={7: 20 * GIB},
)  # fmt: skip

Change = Callable[[Observation], Observation]


def seen(now: float, step: int, **more: object) -> Observation:
    """Return a look that sampled a healthy training."""
    sampled = look(now, beat=replace(BEAT, step=step, batch=step, beats=step, at=now), cpu=now)
    usage = Usage(now, 0, ((7, "python", "running"),))
    plain = replace(sampled, gpus=(CARD,), host=HOST, disk_free=500 * GIB, usage=usage)
    return replace(plain, **more)  # type: ignore[arg-type]


def steps(count: int, every: float = 2.0, begin: float = 0.0, first: int = 1) -> list[Observation]:
    """Return looks at steps of some seconds, each of which sampled."""
    return [seen(begin + i * every, first + i) for i in range(count)]


def kinds(made: History) -> list[str]:
    """Return the kinds of trouble in a history, which has no symptom whatever they are."""
    assert detect(made, LIMITS) is None
    return [trouble.kind for trouble in troubles(made, LIMITS)]


def changed(change: Change, count: int = 5) -> History:
    """Return a healthy history that goes on with looks of which something is changed."""
    return history([*steps(40), *(change(one) for one in steps(count, begin=80.0, first=41))])


def test_a_healthy_training_has_none() -> None:
    """Nor has one of which nothing is known but its steps."""
    assert kinds(history(steps(200))) == []
    bare = [look(i * 2.0, beat=replace(BEAT, step=i, beats=i)) for i in range(100)]
    assert kinds(history(bare)) == []


CHANGES: dict[str, tuple[Change, str]] = {
    "GPU fault": (lambda one: replace(one, xids=("Xid 79 (it fell off the bus)",)), "Xid 79"),
    "GPU throttled": (
        lambda one: replace(one, gpus=(replace(CARD, throttled=("power cap", "heat (hardware)")),)),
        "heat (hardware)",
    ),
    "silent: GPU": (lambda one: replace(one, gpus=None, silent=("GPU",)), "does not answer"),
    "disk nearly full": (lambda one: replace(one, disk_free=GIB // 2), "0.5 GiB free"),
    "trains on the CPU": (
        lambda one: replace(one, shown=shown_after(one.shown, ["accelerator device: cpu"])),
        "NVIDIA Fake",
    ),
    "repeated error": (
        lambda one: replace(one, shown=shown_after(one.shown, ["CUDA error: retrying"] * 12)),
        "12 times: CUDA error",
    ),
    "slow pattern": (lambda one: replace(one, matches=Matches(slow=("mine",))), "mine"),
    "allocator retries": (
        lambda one: replace(one, beat=replace(one.beat or BEAT, retries=3)), "3 times",
    ),
    "sampling failed": (lambda one: replace(one, beat=replace(one.beat or BEAT, unsampled=1)), "once"),
}  # fmt: skip


@pytest.mark.parametrize("kind", CHANGES)
def test_each_trouble_is_told_in_words(kind: str) -> None:
    """It, and nothing else."""
    change, words = CHANGES[kind]
    made = changed(change)
    assert kinds(made) == [kind]
    assert words in troubles(made, LIMITS)[0].text


@pytest.mark.parametrize(
    ("host", "words"),
    [
        (replace(HOST, cgroup_used=59 * GIB), "this container"),
        (replace(HOST, available=2 * GIB, swap_used=8 * GIB), "8.0 of 8.0 GiB of swap"),
        (replace(HOST, available=2 * GIB, swap_total=0), "this machine"),
    ],
)
def test_memory_that_is_nearly_gone_is_told(host: Host, words: str) -> None:
    """Of the container, of the machine with its swap, of one without."""
    made = changed(lambda one: replace(one, host=host))
    assert kinds(made) == ["memory nearly full"]
    assert words in troubles(made, LIMITS)[0].words


@pytest.mark.parametrize(
    "host",
    [
        Host(),
        replace(HOST, available=2 * GIB, swap_used=GIB),
        replace(HOST, available=None),
        replace(HOST, cgroup_limit=None, cgroup_used=None),
    ],
)
def test_memory_that_is_unknown_or_can_be_swapped_is_no_trouble(host: Host) -> None:
    """Unknown is not full."""
    assert kinds(changed(lambda one: replace(one, host=host))) == []


def test_speed_that_decays_is_told() -> None:
    """By medians: one slow step, a sample and a save are no decay."""
    single = [*steps(60), seen(200.0, 61), *steps(40, begin=202.0, first=62)]
    assert kinds(history(single)) == []
    slower = [*steps(60), *steps(40, every=5.0, begin=130.0, first=61)]
    assert kinds(history(slower)) == ["slow"]
    assert "2.5 times" in troubles(history(slower), LIMITS)[0].words


def test_what_comes_between_steps_is_no_decay() -> None:
    """A sample after each step from some time on: the steps themselves are as quick as ever."""
    looks = steps(60)
    for i in range(60):
        at, step = 130.0 + 30 * i, 61 + i
        looks += [
            seen(at, step),
            *(seen(at + s, step, beat=_sampling(step, at + s)) for s in (1, 10, 20)),
            seen(at + 28, step),
        ]
    assert kinds(history(looks)) == []


def _sampling(step: int, at: float) -> Beat:
    return replace(BEAT, step=step, batch=step, beats=int(at), at=at, phase="sampling")


SPILLING = replace(CARD, used=int(23.9 * GIB), watts=100.0)


def test_memory_that_spills_is_told() -> None:
    """Full, busy at little power, and slow; any two of them alone are health."""

    def spilled(card: Card, every: float) -> list[str]:
        slow = [replace(one, gpus=(card,)) for one in steps(40, every=every, begin=130.0, first=61)]
        return kinds(history([*steps(60), *slow]))

    assert spilled(SPILLING, 3.0) == ["GPU memory spills"]
    assert spilled(SPILLING, 2.0) == []
    assert spilled(replace(SPILLING, watts=300.0), 3.0) == []
    assert spilled(replace(SPILLING, used=20 * GIB), 3.0) == []
    assert spilled(replace(SPILLING, watts=None), 3.0) == []


def test_cards_of_others_are_not_ours() -> None:
    """Another program on another card may be as hot as it likes."""
    hot = replace(CARD, index=1, throttled=("heat (driver)",), held={99: GIB})
    assert kinds(changed(lambda one: replace(one, gpus=(CARD, hot)))) == []


def test_an_optimizer_that_stopped_stepping_is_told() -> None:
    """Batches go by; four times as many as a step of this run takes, and not a few."""

    def looks(batches: int) -> list[Observation]:
        before = [seen(2.0 * i, i // 4, beat=_trained(i // 4, i, 2.0 * i)) for i in range(1, 80)]
        return before + [seen(160.0 + i, 20, beat=_trained(20, 80 + i, 160.0 + i)) for i in range(batches)]

    assert kinds(history(looks(15))) == []
    assert kinds(history(looks(30))) == ["optimizer stopped"]


def _trained(step: int, batch: int, at: float) -> Beat:
    return replace(BEAT, step=step, batch=batch, beats=batch, at=at)


def test_a_rank_that_lags_is_named_with_its_wait() -> None:
    """By steps; and by its beat, where all are in the same step."""

    def ranked(one: Observation, **other: object) -> Observation:
        first = one.beat or BEAT
        return replace(one, ranks=(first, replace(first, rank=1, **other)))  # type: ignore[arg-type]

    late = changed(lambda one: ranked(one, step=30, wait="batch from the loader"))
    assert kinds(late) == ["rank lags"]
    assert "rank 1 stays behind: step 30, where it waits for batch from the loader" in troubles(late, LIMITS)[0].words
    assert "11 steps ahead" not in troubles(late, LIMITS)[0].words
    assert kinds(changed(lambda one: ranked(one, at=one.now - 100))) == ["rank lags"]
    assert kinds(changed(lambda one: ranked(one, at=one.now - 20))) == []
    assert kinds(changed(lambda one: ranked(one, phase="saving", at=one.now - 100))) == []


def test_a_disk_that_the_next_save_would_fill_is_told() -> None:
    """What a save takes is learned from the saves of this attempt."""
    looks: list[Observation] = []
    free, at, step = 100 * GIB, 0.0, 0
    for _ in range(3):
        for _ in range(20):
            at, step = at + 5, step + 1
            looks.append(seen(at, step, disk_free=free))
        for _ in range(3):
            at += 5
            looks.append(
                seen(at, step, beat=replace(_trained(step, step, at), beats=int(at), phase="saving"), disk_free=free)
            )
        free -= 30 * GIB
    assert kinds(history(looks)) == []
    more = [seen(at + 5 * i, step + i, disk_free=free) for i in range(1, 10)]
    assert kinds(history([*looks, *more])) == ["disk nearly full"]
    assert "10.0 GiB free; a save takes 30.0 GiB" in troubles(history([*looks, *more]), LIMITS)[0].words


def test_shown_is_enough_for_an_unhardened_trainer() -> None:
    """No heartbeat: the pace is read off the bar."""

    def bar(now: float, step: int) -> Observation:
        return look(now, shown=Shown(bar=step, phase="step", known=True), output=step, cpu=now)

    looks = [bar(2.0 * i, i) for i in range(60)] + [bar(120.0 + 5.0 * i, 60 + i) for i in range(40)]
    assert kinds(history(looks)) == ["slow"]
