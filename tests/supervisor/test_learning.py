"""Laws of learned limits: what teaches, how much, and what a broken lesson may do."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from fluxguard.limits import PHASES, Limits, PhaseLimit
from fluxguard.supervisor.detecting.observation import Exit, History, Observation
from fluxguard.supervisor.learning import NOTHING, WAITS, Chosen, Learned, explained, named, of_beat, of_history
from fluxguard.supervisor.sensing.heals import Heal
from tests.supervisor.histories import BEAT, history, look

CHOSEN = Chosen()
HEAL = Heal(
    attempt="a", rank=0, number=1, step=5, time=0.0, what="a batch", cause="loader worker", why="it was stuck",
    seconds=60.0, identical=True, doubt="", file=None, workers=(),
)  # fmt: skip


def at(now: float, beats: int, *, phase: str = "step", **more: Any) -> Observation:
    """Return a look at a trainer that has written so many beats."""
    seen = look(now, beat=replace(BEAT, beats=beats, step=beats, phase=phase), cpu=more.pop("cpu", None))
    return replace(seen, **more)


def taught(looks: Iterable[Observation]) -> Learned:
    """Return what these looks teach."""
    return of_history(history(looks))


GOES_ON = [at(1000, 1000, phase="ending"), at(1001, 1001, phase="ending")]
"""Looks at a training that goes on after all the others."""


# What teaches.


def test_the_longest_completed_interval_of_each_phase_teaches() -> None:
    """From one sign of progress to the next; a phase that tells nothing teaches how long it took whole."""
    looks = [
        at(0, 0, phase="load"), at(90, 0, phase="latent cache"), at(97, 1, phase="latent cache"),
        at(99, 2, phase="latent cache"), at(100, 2, phase="first step"), at(140, 3), at(142, 4), at(147, 5),
        at(200, 5, output=1), at(200, 6), at(201, 7),
    ]  # fmt: skip
    known = taught([*looks, *GOES_ON]).progress
    assert known == {"load": 90.0, "latent cache": 7.0, "first step": 40.0, "step": 53.0}


def test_the_interval_in_which_an_attempt_ends_teaches_nothing() -> None:
    """Neither while it is open, nor when a last beat comes with the end of a hang, nor with its exit or last words."""
    before = [at(0, 1), at(2, 2), at(40, 3, phase="sampling")]
    hang = at(290, 3, phase="sampling")
    assert "sampling" not in taught([*before, hang]).progress
    failing = at(300, 4, phase="sampling")
    assert "sampling" not in taught([*before, failing, at(305, 4, phase="sampling")]).progress
    assert "sampling" not in taught([*before, failing, at(900, 4, phase="sampling")]).progress
    for end in ({"exit": Exit(code=1)}, {"spoken": True}):
        assert "sampling" not in taught([*before, replace(failing, **end)]).progress
        later = replace(at(400, 4, phase="sampling"), **end)
        assert "sampling" not in taught([*before, failing, at(301, 4, phase="sampling"), later]).progress


def test_an_interval_that_the_attempt_outlives_teaches() -> None:
    """With a sign half a minute later it was no end of a hang."""
    assert taught([at(0, 1), at(250, 2), at(279, 3)]).progress == {}
    assert taught([at(0, 1), at(250, 2), at(279, 3), at(280, 4)]).progress == {"step": 250.0}


def test_a_suspend_teaches_nothing() -> None:
    """A look that came late: nobody knows what happened between."""
    asleep = history([at(0, 1), at(2, 2)]).shifted(3600, 3602)
    awake = asleep.then(at(3602, 2)).then(at(3603, 3)).then(at(3609, 4)).then(at(3639, 5))
    assert of_history(awake).progress == {"step": 6.0}
    assert awake.slowest_step == 30.0


def test_a_heal_teaches_nothing() -> None:
    """Told before the beat that completes the wait, with it, or a little later."""
    for told in (60, 61, 62):
        looks = [at(0, 1), at(1, 2), at(60, 2), at(61, 3), at(62, 3), at(64, 4), *GOES_ON]
        healed = [replace(seen, healed=(HEAL,)) if seen.now >= told else seen for seen in looks]
        assert taught(healed).progress.get("step", 0.0) <= 3


def test_a_stopped_trainer_teaches_nothing() -> None:
    """It waited for a person."""
    stopped = at(50, 2, cpu=0.0)
    assert stopped.usage is not None
    looks = [at(0, 1), at(1, 2), replace(stopped, usage=replace(stopped.usage, states=((7, "python", "stopped"),)))]
    assert taught([*looks, at(100, 3), at(104, 4), at(105, 5), at(140, 6)]).progress == {"step": 4.0}


def test_signs_of_life_teach_apart_from_progress() -> None:
    """Output is a sign of life and no progress."""
    looks = [at(0, 1), *(at(now, 1, output=now) for now in (20, 40, 60)), at(70, 2), *GOES_ON[1:]]
    known = taught(looks)
    assert (known.progress, known.life) == ({"step": 70.0}, {"step": 20.0})


def test_a_heartbeat_teaches_the_waits() -> None:
    """And one in which there was none of a kind teaches nothing of it."""
    assert of_beat(BEAT) == NOTHING
    beat = replace(BEAT, longest_swap=0.5, longest_batch=7.2, longest_read=math.nan, longest_first_batch=math.inf)
    assert of_beat(beat).waits == {"block_swap": 0.5, "batch": 7.2}


def test_the_longest_of_all_attempts_is_kept() -> None:
    """In any order."""
    one = Learned(waits={"batch": 7.0, "read": 1.0}, progress={"load": 60.0})
    two = Learned(waits={"batch": 9.0}, life={"load": 5.0})
    both = Learned(waits={"batch": 9.0, "read": 1.0}, progress={"load": 60.0}, life={"load": 5.0})
    assert one.merged(two) == two.merged(one) == both == both.merged(NOTHING) == both.merged(both)
    assert Learned.from_mapping(json.loads(json.dumps(both.to_mapping()))) == both


# How much it teaches.


def test_a_limit_is_ten_times_the_longest_and_never_less_than_it_was() -> None:
    """Also that of a phase, in both its kinds."""
    known = Learned(waits={"batch": 7.2, "read": 1.0}, progress={"load": 400.0}, life={"load": 100.0, "step": 20.0})
    grown = CHOSEN.grown(known)
    assert (grown.wait.batch, grown.wait.read) == (72.0, 30.0)
    assert grown.phase["load"] == PhaseLimit(patience=1000.0, ceiling=4000.0)
    assert grown.phase["step"] == Limits().phase["step"]
    rest = ("block_swap", "first_batch", "barrier", "command", "sample", "upload", "ending")
    assert all(getattr(grown.wait, name) == getattr(Limits().wait, name) for name in rest)
    assert grown.watch == Limits().watch


def test_nothing_learned_changes_nothing() -> None:
    """The limits stay what was chosen, to the last one."""
    assert CHOSEN.grown(NOTHING) == Limits()


def test_a_limit_that_somebody_chose_stays() -> None:
    """Lower or higher than what was learned, none at all, and where only one of a pair was named."""
    values = {"wait": {"batch": 20, "read": None}, "phase": {"load": {"ceiling": 700}, "hash": {"patience": 500}}}
    chosen = Chosen(Limits.from_mapping(values), named(values, "your limits file"))
    slow = dict.fromkeys(PHASES, 350.0)
    grown = chosen.grown(Learned(waits={"batch": 15.0, "read": 25.0}, progress=slow, life=slow))
    assert (grown.wait.batch, grown.wait.read) == (20.0, None)
    assert grown.phase["load"] == PhaseLimit(patience=700.0, ceiling=700.0)
    assert grown.phase["hash"] == PhaseLimit(patience=500.0, ceiling=3600.0)


def test_patience_never_passes_the_ceiling() -> None:
    """Whatever was learned: limits in the wrong order are refused by whoever reads them."""
    for patience in (1.0, 100.0, 1e5):
        for ceiling in (1.0, 100.0, 1e5):
            known = Learned(progress=dict.fromkeys(PHASES, ceiling), life=dict.fromkeys(PHASES, patience))
            grown = CHOSEN.grown(known)
            assert Limits.from_mapping(json.loads(json.dumps(grown.to_mapping()))) == grown


def test_learned_limits_only_grow() -> None:
    """With every lesson each limit stays or grows."""
    known, before = NOTHING, Limits()
    for seconds in (3.0, 50.0, 2.0, 1.0, 70.0):
        known = known.merged(Learned(waits={"batch": seconds}, progress={"step": seconds}, life={"step": seconds / 2}))
        grown = CHOSEN.grown(known)
        assert (grown.wait.batch or 0) >= (before.wait.batch or 0)
        assert (grown.phase["step"].ceiling or 0) >= (before.phase["step"].ceiling or 0)
        assert (grown.phase["step"].patience or 0) >= (before.phase["step"].patience or 0)
        before = grown
    assert (before.wait.batch, before.phase["step"].ceiling) == (600.0, 700.0)


def test_the_guard_still_ends_a_wait_before_the_supervisor_does() -> None:
    """It knows which wait it was; so a wait that grows takes its phase along, whatever the looks have seen."""
    for seconds in (1.0, 20.0, 55.0, 280.0):
        for name, (_, _, phases) in WAITS.items():
            grown = CHOSEN.grown(Learned(waits={name: seconds}))
            for limit in (grown.phase[phase] for phase in phases):
                assert getattr(grown.wait, name) <= min(limit.patience or 0, limit.ceiling or 0)


def test_a_barrier_is_not_learned() -> None:
    """Its limit is for silence; that others waited long for a rank whose heart went on says nothing about that."""
    assert CHOSEN.grown(of_beat(replace(BEAT, longest_barrier=200.0))) == Limits()


# What a broken lesson may do: nothing, or at worst ten times the default.

BROKEN: list[Any] = [
    math.nan, math.inf, -math.inf, 1e300, -5, 0, 10**400, True, False, None, "60", "1e9", [60], {"a": 60}, {}, b"",
]  # fmt: skip


@pytest.mark.parametrize("value", BROKEN)
def test_absurd_values_teach_nothing(value: Any) -> None:
    """In every place where a number may be, and in place of every table."""
    names = {"waits": "batch", "progress": "step", "life": "step"}
    for table, name in names.items():
        assert Learned.from_mapping({table: {name: value}}) == NOTHING
        assert Learned.from_mapping({table: value}) == NOTHING


def test_unknown_names_teach_nothing() -> None:
    """A lesson of another version, or somebody else's file."""
    values = {"waits": {"nap": 60.0, "barrier": 60.0}, "progress": {"lunch": 60.0}, "more": 1, "version": 1}
    assert Learned.from_mapping(values) == NOTHING


def test_no_lesson_makes_a_limit_absurd() -> None:
    """The most that is believed makes each limit ten times its default, so that every hang still ends."""
    week = 7 * 86400.0
    slow = dict.fromkeys(PHASES, week)
    grown = CHOSEN.grown(Learned(waits={"batch": week, "block_swap": week}, progress=slow, life=slow))
    assert (grown.wait.batch, grown.wait.block_swap) == (600.0, 300.0)
    for name, limit in grown.phase.items():
        assert limit.ceiling == 10 * (Limits().phase[name].ceiling or 0)


@pytest.mark.parametrize("factor", [1e-9, 0.5, 1.0, 1e308])
def test_any_factor_gives_limits_that_can_be_read(factor: float) -> None:
    """Below one nothing grows; beyond all measure nothing becomes infinite."""
    chosen = Chosen(Limits.from_mapping({"watch": {"step_factor": factor}}))
    grown = chosen.grown(Learned(waits={"batch": 59.0}, progress={"step": 200.0}, life={"step": 200.0}))
    assert Limits.from_mapping(json.loads(json.dumps(grown.to_mapping()))) == grown
    if factor <= 1:
        assert grown == chosen.limits


# Why a limit is what it is.


def test_every_limit_says_why_it_is_what_it_is() -> None:
    """Default, chosen, or learned from what."""
    values = {"wait": {"read": 5}, "phase": {"load": {"ceiling": 7000}}}
    chosen = Chosen(Limits.from_mapping(values), named(values, "your limits file") | {"max_restarts": "--max-restarts"})
    known = Learned(waits={"batch": 7.2, "read": 3.0, "block_swap": 100.0}, life={"hash": 70.0})
    said = {row.name: row for row in explained(chosen, known, hardened=True)}
    assert {"wait.ending", "phase.latent cache.patience", "watch.look", "max_restarts", "max_bad_losses"} <= set(said)
    assert (said["wait.batch"].value, said["wait.batch"].why) == (
        72.0, "learned: 10 x 7.2 s, the longest completed batch",
    )  # fmt: skip
    assert said["wait.block_swap"].value == 300.0
    assert said["wait.block_swap"].why.endswith("as far as it may grow")
    assert said["phase.hash.patience"].why == "learned: 10 x 70 s, the longest time without a sign of life in it"
    assert (said["wait.read"].value, said["wait.read"].why) == (5.0, "your limits file")
    assert said["phase.load.ceiling"].why == "your limits file"
    assert said["phase.load.patience"].why == "default"
    assert said["max_restarts"].why == "--max-restarts"
    assert [row.name for row in said.values() if row.longest_s] == [
        "wait.block_swap", "wait.batch", "phase.hash.patience", "phase.step.patience", "phase.step.ceiling",
    ]  # fmt: skip


def test_what_is_doubled_says_so() -> None:
    """A trainer that is not hardened shows less."""
    said = {row.name: row.why for row in explained(Chosen(Limits().doubled()), NOTHING, hardened=False)}
    assert said["phase.step.ceiling"] == "default, doubled: not hardened"
    assert said["wait.batch"] == "default"


def test_a_long_attempt_is_remembered_in_little_room() -> None:
    """A week of looks leaves one figure a phase."""
    past = History.begun(at(0, 0))
    for beats in range(1, 5000):
        past = past.then(at(beats * 0.25, beats))
    assert len(past.progresses.fresh) + len(past.progresses.longest) <= 2
