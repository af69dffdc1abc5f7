"""Laws of what people are told: which events make a message, and what it says and never says."""

from __future__ import annotations

from typing import Any

import pytest

from fluxguard.errors import InputError
from fluxguard.limits import NOTIFY_EVERY
from fluxguard.supervisor.ledger import Event
from fluxguard.supervisor.messages import notifying
from fluxguard.supervisor.messages.notifying import (
    About,
    Draft,
    Sieve,
    due,
    due_at,
    shown,
    sift,
    urls,
    without_urls,
    written,
)

ABOUT = About(name="my-lora", output_dir="/data/my lora", planned=400)
TOKEN = "hf_" + "a" * 30


def incident(at: float, **values: Any) -> Event:
    """Return an incident at step 120."""
    known = {"number": 1, "cause": "no progress (step)", "step": 120, "resumed_step": 100, "report": None}
    return Event("incident", at, {**known, "words": "Nothing moved for 5 minutes.", "advice": "Swap more.", **values})


def decision(at: float, action: str = "restart") -> Event:
    """Return what was decided on it."""
    return Event("decision", at, {"action": action, "reason": "the first restart after progress", "after": 0.0})


def all_of(sieve: Sieve, *events: Event) -> tuple[Sieve, list[Draft]]:
    """Return what is told of these events."""
    drafts = []
    for event in events:
        sieve, draft = sift(sieve, event)
        drafts += [draft] if draft else []
    return sieve, drafts


def trouble(kind: str, attempt: str = "a") -> Event:
    """Return a trouble of an attempt."""
    return Event("trouble", 1.0, {"attempt": attempt, "kind": kind, "words": "It is slow.", "advice": "", "step": 7})


def test_a_restart_is_told_once_it_is_decided() -> None:
    """With the cause in a sentence, the state it goes on from, the reason, and the command that shows more."""
    _, drafts = all_of(Sieve(), incident(10), decision(11))
    [message] = [written(draft, ABOUT) for draft in drafts]
    assert message.title == "my-lora: restarted"
    assert message.body.splitlines() == [
        "step 120 of 400",
        "Nothing moved for 5 minutes.",
        "From: step 100.",
        "the first restart after progress",
        "More: fluxguard status '/data/my lora'",
    ]


def test_a_remedy_is_named_with_the_flags_it_changed() -> None:
    """Who reads it must know that the result is made otherwise."""
    values = {"action": "restart", "reason": "r", "remedy": "more swap", "flags": ["--blocks_to_swap 20"]}
    _, drafts = all_of(Sieve(), incident(10), Event("decision", 11, values))
    assert "Otherwise from now on: more swap (--blocks_to_swap 20).\n" in written(drafts[0], ABOUT).body


def test_a_dry_run_tells_what_it_would_do() -> None:
    """Not that it was done."""
    values = {"action": "stop", "cause": "c", "words": "The GPU is full.", "reason": "no remedy is left", "flags": []}
    _, drafts = all_of(Sieve(), Event("would", 1, values))
    message = written(drafts[0], ABOUT)
    assert message.title == "my-lora: dry run, would stop"
    assert message.body.startswith("The GPU is full.\nno remedy is left\nMore: ")


def test_the_restarts_of_a_while_are_summed_up() -> None:
    """One message, then silence, then one about all that came meanwhile, by cause."""
    sieve, drafts = all_of(Sieve(), incident(10), decision(11))
    assert len(drafts) == 1
    later = [
        incident(20),
        decision(21),
        incident(30, cause="GPU memory full"),
        decision(31),
        incident(40),
        decision(41),
    ]
    sieve, drafts = all_of(sieve, *later)
    assert drafts == []
    assert due_at(sieve) == 11 + NOTIFY_EVERY
    assert due(sieve, 10 + NOTIFY_EVERY)[1] is None
    sieve, draft = due(sieve, 11 + NOTIFY_EVERY)
    assert draft is not None
    message = written(draft, ABOUT)
    assert message.title == "my-lora: restarted 3 times"
    assert "Causes: no progress (step) (2 times), GPU memory full. The last one:" in message.body
    assert due(sieve, 9e9) == (sieve, None)


def test_a_stop_is_told_once_with_its_advice() -> None:
    """The incident that led to it makes no message of its own."""
    stopped = Event("stopped", 12, {"reason": "The GPU is full. No remedy is left.", "applied_steps": 100})
    _, drafts = all_of(Sieve(), incident(10), decision(11, "stop"), stopped)
    [message] = [written(draft, ABOUT) for draft in drafts]
    assert (message.title, message.tone) == ("my-lora: stopped", "failure")
    assert message.body.splitlines()[:3] == [
        "step 100 of 400", "The GPU is full. No remedy is left.", "Swap more.",
    ]  # fmt: skip


def test_the_end_counts_what_happened_meanwhile() -> None:
    """Heals are told there, in one sum."""
    finished = Event("finished", 12, {"reason": "finished and verified: 400 steps", "applied_steps": 400})
    _, drafts = all_of(Sieve(level="end"), finished)
    about = About(name="x", output_dir="/x", planned=400, heals=2, incidents=1, eta=5.0)
    message = written(drafts[0], about)
    assert (message.title, message.tone) == ("x: finished and verified", "success")
    assert "step 400 of 400\n" in message.body  # and nothing about what is left
    assert "In this run: 1 incident, 2 heals." in message.body


def test_restarts_that_a_stop_overtakes_are_not_told_after_it() -> None:
    """The last message is the last one."""
    sieve, _ = all_of(Sieve(), incident(1), decision(2), incident(3), decision(4))
    sieve, drafts = all_of(sieve, Event("stopped", 5, {"reason": "r", "applied_steps": 1}))
    assert [draft.kind for draft in drafts] == ["stopped"]
    assert due(sieve, 9e9)[1] is None


@pytest.mark.parametrize(
    ("level", "told"),
    [
        ("end", ["finished"]),
        ("incidents", ["restarted", "trouble", "finished"]),
        ("all", ["begun", "restarted", "trouble", "trouble", "finished"]),
    ],
)
def test_a_level_says_what_is_told(level: str, told: list[str]) -> None:
    """The end only; what costs something too; everything, each trouble once in an attempt."""
    events = [
        Event("attempt", 0, {"attempt": "a", "number": 1, "start_step": 0, "log_from": 0}),
        incident(1), decision(2), trouble("GPU fault"), trouble("GPU fault"), trouble("sampling failed"),
        Event("healed", 3, {"step": 3}), Event("of later versions", 4, {}),
        Event("finished", 5, {"reason": "r", "applied_steps": 1}),
    ]  # fmt: skip
    assert [draft.kind for draft in all_of(Sieve(level=level), *events)[1]] == told


def test_a_trouble_is_told_again_in_the_next_attempt() -> None:
    """It is there again, so it matters again."""
    _, drafts = all_of(Sieve(), trouble("GPU fault"), trouble("GPU fault", "b"))
    assert len(drafts) == 2


def test_what_is_left_is_told_while_the_training_goes_on() -> None:
    """In two units."""
    _, drafts = all_of(Sieve(), trouble("GPU fault"))
    message = written(drafts[0], About(name="x", output_dir="/x", planned=40, eta=7500.0))
    assert message.body.startswith("step 7 of 40, about 2 h 5 min left\n")


def test_no_message_holds_a_secret() -> None:
    """Neither one that looks like one nor one that is known; not in the title either."""
    event = Event("stopped", 1, {"reason": f"--huggingface_token {TOKEN} and my-own-secret", "applied_steps": 0})
    about = About(name="my-own-secret", output_dir="/x", secrets=frozenset({"my-own-secret"}))
    message = written(Draft(kind="stopped", events=(event,)), about)
    assert TOKEN not in str(message)
    assert "my-own-secret" not in str(message)


def test_a_message_is_never_endless() -> None:
    """Some services refuse what is long; the command that shows more is kept."""
    event = Event("stopped", 1, {"reason": "x" * 9000, "applied_steps": 0})
    body = written(Draft(kind="stopped", events=(event,)), ABOUT).body
    assert len(body) < 2000
    assert body.endswith("More: fluxguard status '/data/my lora'")


@pytest.mark.parametrize(
    ("url", "public"),
    [
        ("json://user:secret@10.0.0.1:8080/secret?k=secret", "json://10.0.0.1:8080"),
        ("json://user:sec/ret@host/path", "json://..."),
        ("json://user:pw/secret@host", "json://..."),
        ("mailtos://me:secret@example.org?to=you@example.org", "mailtos://example.org"),
        ("ntfys://my-secret-topic", "ntfys://..."),
        ("tgram://123:secret/42", "tgram://..."),
        ("discord://id/secret", "discord://..."),
    ],
)
def test_of_a_url_only_what_is_public_is_shown(url: str, public: str) -> None:
    """The scheme, and the host only where it is a machine and no key."""
    assert shown(url) == public


def test_urls_are_those_of_the_option_and_of_the_environment() -> None:
    """Each once; a space in one is written as the environment can hold it."""
    assert urls(["json://a", "json://b/c d"], "json://c  json://a") == ("json://a", "json://b/c%20d", "json://c")
    assert urls([], "") == ()


def test_what_is_no_url_is_refused_without_repeating_it() -> None:
    """It may be a key that was pasted alone."""
    with pytest.raises(InputError) as caught:
        urls(["my-secret"], "")
    assert "my-secret" not in str(caught.value)
    assert notifying.OPTION in str(caught.value)


def test_a_command_line_loses_its_urls() -> None:
    """In both ways of writing an option; what follows `--` is the trainer's."""
    words = [
        "supervise",
        "--notify",
        "a://b",
        "--fresh",
        "--notify=c://d",
        "--notify-on",
        "all",
        "--",
        "x",
        "--notify",
        "y",
    ]
    assert without_urls(words) == ["supervise", "--fresh", "--notify-on", "all", "--", "x", "--notify", "y"]


def test_a_stop_that_saved_nothing_says_how_far_it_came() -> None:
    """A trainer without states has no saved steps, and step 0 would be no place."""
    draft = notifying.Draft(kind="stopped", events=(Event("stopped", 1.0, {"reason": "r", "applied_steps": 0}),))
    body = written(draft, About(name="x", output_dir="/x", planned=100, reached=40)).body
    assert body.startswith("step 40 of 100, none of them saved\n")
