"""Laws of the judge: a right end passes, and each way to be wrong is named."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from fluxguard.supervisor.ledger import Event
from tests.campaign.judging import FINISHED, REFUSED, STOPPED, Facts, Right, judge

KILLED = Right(
    ends=frozenset({FINISHED}), causes=frozenset({"killed"}), incidents=(1, 1), healed=(0, 0), attempts=(2, 2)
)
GIVEN_UP = replace(KILLED, ends=frozenset({STOPPED}), attempts=(1, 1))


def event(kind: str, **values: Any) -> Event:
    """Return an event of a ledger."""
    return Event(kind, 0.0, values)


INCIDENT = event("incident", cause="killed from outside (SIGKILL)", words="Killed.", advice="Nothing.")
EVENTS = (
    event("attempt", attempt="a", start_step=0),
    event("ended", attempt="a", step=5),
    INCIDENT,
    event("decision", reason="the first one is free", action="restart"),
    event("attempt", attempt="b", start_step=5),
    event("finished", attempt="b"),
)
GOOD = Facts(
    code=0, said="", expected=24, events=EVENTS, state=FINISHED, planned=24, applied=24, verified=True,
    counted=frozenset({24}), identical=True, together=1,
)  # fmt: skip
STOP = Facts(
    code=1, said="", expected=24, events=(*EVENTS[:4], event("stopped", reason="x")), state=STOPPED,
    reason="It was killed.", together=1,
)  # fmt: skip


def test_a_right_end_breaks_no_law() -> None:
    """Finished, or stopped and explained, or refused before anything began."""
    assert judge(GOOD, KILLED) == ()
    assert judge(STOP, GIVEN_UP) == ()
    refused = Facts(code=2, said="the folder is read-only", expected=24)
    assert judge(refused, Right(ends=frozenset({REFUSED}), attempts=(0, 0))) == ()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"code": None}, "did not end"),
        ({"code": 1}, "exit code 1"),
        ({"met": False}, "never happened"),
        ({"state": STOPPED, "code": 1}, "stopped instead of finished"),
        ({"state": "running"}, "no end instead of finished"),
        ({"applied": 23}, "23 of 24 planned"),
        ({"planned": 12, "applied": 12}, "12 of 12 planned steps, where 24 are right"),
        ({"counted": frozenset({24, 29})}, r"counts \[24, 29\]"),
        ({"verified": False}, "do not verify"),
        ({"identical": False}, "not those of an undisturbed"),
        ({"left": ("41 python",)}, "left behind: 41 python"),
        ({"together": 2}, "2 trainers at once"),
        ({"events": EVENTS[:-1]}, "the last attempt has no end"),
        ({"events": (*EVENTS[:1], *EVENTS[2:])}, "before the end of the one before"),
        ({"events": (*EVENTS[:2], *EVENTS[3:])}, "ended without an incident"),
        ({"events": (*EVENTS, INCIDENT)}, "2 incidents instead of 1"),
        ({"events": (*EVENTS[:3], event("decision", reason=" "), *EVENTS[4:])}, "decision without a reason"),
        ({"events": (*EVENTS, event("healed"))}, "1 heals instead of 0"),
    ],
)
def test_each_way_to_finish_wrongly_is_named(change: dict[str, Any], said: str) -> None:
    """One thing wrong is enough."""
    assert re.search(said, "\n".join(judge(replace(GOOD, **change), KILLED)))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"reason": " "}, "stopped without a reason"),
        ({"named": "model.safetensors is torn"}, "does not go on"),
        ({"again": replace(GOOD, applied=25)}, "started again: 25 of 24"),
        ({"again": replace(GOOD, state=STOPPED, code=1, reason="the same")}, "it does not finish: the same"),
    ],
)
def test_each_way_to_stop_wrongly_is_named(change: dict[str, Any], said: str) -> None:
    """A stop without a reason, or one from which nothing goes on."""
    assert re.search(said, "\n".join(judge(replace(STOP, **change), GIVEN_UP)))


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"cause": "disk full"}, "wrong cause: disk full"),
        ({"cause": ""}, "wrong cause: none"),
        ({"advice": ""}, "without advice"),
        ({"words": None}, "without words"),
    ],
)
def test_an_incident_needs_the_right_cause_and_words(values: dict[str, Any], said: str) -> None:
    """And something that a person can do."""
    wrong = event("incident", **{**INCIDENT.values, **values})
    broken = judge(replace(GOOD, events=(*EVENTS[:2], wrong, *EVENTS[3:])), KILLED)
    assert any(said in words for words in broken), broken


def test_what_cannot_be_compared_is_not_held_against_a_run() -> None:
    """Rebuilt caches change the bits; a state that was not opened counts nothing."""
    assert judge(replace(GOOD, identical=False), replace(KILLED, identical=False)) == ()
    assert judge(replace(GOOD, identical=None, counted=None), KILLED) == ()


def test_bits_may_differ_where_the_run_itself_says_so() -> None:
    """A heal that may not be exact is told; one that claims to be is held to it."""
    right = replace(KILLED, healed=(1, 1))
    for claimed, count in ((False, 0), (True, 1)):
        healed = replace(GOOD, identical=False, events=(*EVENTS, event("healed", identical=claimed, step=9)))
        assert len(judge(healed, right)) == count


def test_a_refusal_says_why() -> None:
    """And one that had started something is none."""
    right = Right(ends=frozenset({REFUSED}))
    assert judge(Facts(code=2, said=" ", expected=24), right) == ("refused without a word",)
    begun = Facts(code=2, said="late", expected=24, events=EVENTS[:1])
    assert any("instead of refused" in words for words in judge(begun, right))
