"""Laws of the screen: what a status says to a person."""

from __future__ import annotations

import re
from typing import Any

import pytest
from fluxguard.app import markup, view
from fluxguard.app.view import Launch

from fluxguard.launch import masking
from fluxguard.limits import PHASES
from fluxguard.supervisor.showing.readings import readings
from fluxguard.supervisor.timeline import Point

NOW = 1_700_000_000.0


def seen(**changes: Any) -> dict[str, Any]:
    """Return the status of a training in its middle, with changes."""
    values: dict[str, Any] = {
        "state": "running", "watched": True, "next_attempt_at": None, "planned_steps": 400, "applied_steps": 123,
        "attempts": 1, "phase": "step", "step": 123, "loss": 0.12345, "eta_s": 720.0, "reason": "training",
        "weights": {"path": "/out/lora.safetensors", "verified": False}, "incidents": [], "output_dir": "/out",
        "hardened": True, "lines": ["one", "two"],
    }  # fmt: skip
    return {**values, **changes}


def launch(*, alive: bool = False, heard: bool = False, said: str = "") -> Launch:
    """Return what is known of a supervisor that was just started."""
    return Launch(at=NOW, alive=alive, said=said, heard=heard)


def shown(status: dict[str, Any] | None, started: Launch | None = None, **more: Any) -> view.Screen:
    """Return the screen of a status."""
    screen: view.Screen = view.screen(status, started, **{"stopping": False, "now": NOW, **more})
    return screen


INCIDENT: dict[str, Any] = {
    "cause": "block swap", "phase": "step", "detected_after_s": 31.2, "step": 77, "resumed_step": 75, "lost_steps": 2,
    "words": "A block swap never came back.", "report": "/out/.fluxguard/incidents/0001/report.md", "at": NOW,
    "advice": "Nothing.", "text": "# Incident 1",
}  # fmt: skip


def test_a_training_says_where_it_is_and_how_long_it_takes() -> None:
    """State line, bar and four figures."""
    screen = shown(seen())
    assert screen.headline == "Training: step 123 of 400, about 12 min left"
    assert screen.share == pytest.approx(123 / 400)
    assert dict(screen.figures) == {
        "Phase": "Training", "Step": "123 of 400", "Loss": "0.1235", "Time left": "12 min",
    }  # fmt: skip
    assert (screen.can_stop, screen.can_resume) == (True, False)


@pytest.mark.parametrize(
    ("changes", "headline"),
    [
        ({"phase": "load", "step": 0}, "Getting ready: loading the model"),
        ({"phase": "latent cache", "step": 0, "planned_steps": None}, "Getting ready: preparing the images"),
        ({"phase": "load", "step": 0, "attempts": 2}, "Getting ready again: loading the model"),
        ({"phase": "first step", "step": 75, "eta_s": None}, "Training: step 75 of 400"),
        ({"phase": "sampling"}, "Drawing sample images, at step 123 of 400"),
        ({"phase": "saving"}, "Saving, at step 123 of 400"),
        ({"phase": "ending"}, "All steps are trained: writing the result"),
        ({"phase": "step", "planned_steps": None, "eta_s": None}, "Training: step 123"),
        ({"phase": None, "next_attempt_at": NOW + 12.2}, "Starting again in 12 s"),
        ({"phase": None, "step": 75}, "Starting again from step 75"),
    ],
)
def test_every_phase_has_words(changes: dict[str, Any], headline: str) -> None:
    """No phase is shown by its internal name."""
    assert shown(seen(**changes)).headline == headline


def test_a_finished_run_says_that_it_was_verified_and_where_it_lies() -> None:
    """Nothing can be stopped or resumed any more."""
    screen = shown(
        seen(state="finished", applied_steps=400, phase=None, weights={"path": "/out/a.st", "verified": True})
    )
    assert (screen.tone, screen.headline) == ("good", "Finished and verified")
    assert "400 steps" in screen.detail
    assert "/out/a.st" in screen.detail
    assert (screen.share, screen.can_stop, screen.can_resume) == (1.0, False, False)


def test_a_stop_on_request_is_no_failure() -> None:
    """It says what is kept, and how it goes on."""
    screen = shown(
        seen(state="stopped", applied_steps=120, reason="stopped on request; the state of step 120 resumes it")
    )
    assert (screen.tone, screen.headline, screen.can_resume) == ("stopped", "Stopped on request", True)
    assert screen.detail == "Step 120 of 400 is saved. Resume goes on from step 120."


def test_a_failure_is_named_in_the_state_line() -> None:
    """The cause first, then the reason in full, then what can be done."""
    reason = "The disk is full. Another attempt would end the same way; it resumes from the beginning"
    screen = shown(
        seen(state="stopped", applied_steps=0, reason=reason, incidents=[{**INCIDENT, "cause": "disk full"}])
    )
    assert (screen.tone, screen.headline) == ("bad", "Stopped: disk full")
    assert screen.detail.startswith("The disk is full. Another attempt would end the same way.")
    assert screen.detail.endswith("Resume begins again at the first step.")


def test_the_advice_for_a_terminal_is_not_given_on_the_page() -> None:
    """The buttons say it better."""
    reason = "its supervisor ended before the training did; run `fluxguard supervise` again to resume"
    screen = shown(seen(state="stopped", applied_steps=8, reason=reason))
    assert "fluxguard supervise" not in screen.detail
    assert screen.detail.startswith("Its supervisor ended before the training did.")


def test_a_training_that_nobody_watches_can_be_watched_again() -> None:
    """It goes on, but a hang would not be noticed."""
    screen = shown(seen(watched=False))
    assert (screen.tone, screen.resume_label, screen.can_resume, screen.can_stop) == (
        "waiting",
        "Watch again",
        True,
        False,
    )


def test_a_stop_under_way_is_shown_and_cannot_be_pressed_twice() -> None:
    """The button says so."""
    screen = shown(seen(), stopping=True)
    assert (screen.headline, screen.stop_label, screen.can_stop) == ("Stopping", "Stopping...", False)


def test_a_stop_that_is_over_leaves_no_trace() -> None:
    """A stop request that is still there does not count once the run is stopped."""
    screen = shown(seen(state="stopped", reason="stopped on request; the state of step 4 resumes it"), stopping=True)
    assert (screen.stop_label, screen.can_resume) == ("Stop", True)


def test_incidents_are_cards_newest_first() -> None:
    """Cause in words, what was done, when."""
    later = {**INCIDENT, "cause": "killed from outside (SIGKILL)", "resumed_step": None, "detected_after_s": 0.1}
    newest, oldest = shown(seen(incidents=[INCIDENT, later])).cards
    assert (newest.number, oldest.number) == (2, 1)
    assert newest.cause == "Killed from outside (SIGKILL)"
    assert newest.done == "The training was stopped."
    assert "noticed at once" in newest.facts
    assert oldest.done == "Started again from step 75; 2 steps had to be trained again."
    assert "noticed after 31 s" in oldest.facts


def test_an_incident_without_its_report_is_still_shown() -> None:
    """Files can be gone."""
    (card,) = shown(seen(incidents=[{"cause": None, "words": None}])).cards
    assert card.cause == "Unknown cause"


HEAL = {"words": "put right in place at step 12 after 61.2 s: a <batch>, because it was stuck", "identical": True}


def test_what_was_put_right_is_shown_and_is_no_incident() -> None:
    """Newest first, escaped, and never as if nothing had happened."""
    quiet = "Nothing went wrong so far."
    assert quiet in markup.incidents(shown(seen()))
    screen = shown(seen(healed=[HEAL, {**HEAL, "words": "put right later"}], healing="healed 2 times in place"))
    assert [line[:15] for line in screen.heals] == ["Put right later", "Put right in pl"]
    made = markup.incidents(screen)
    assert "a &lt;batch&gt;" in made
    assert quiet not in made


def test_a_finished_run_says_that_it_was_healed() -> None:
    """And whether it is the same to the last bit."""
    screen = shown(seen(state="finished", healed=[HEAL], healing="healed once in place, still bit-identical"))
    assert "Healed once in place, still bit-identical. The result is complete" in screen.detail
    assert "ealed" not in shown(seen(state="finished", healed=[], healing="")).detail


def test_the_log_ends_with_the_last_lines_without_escape_codes() -> None:
    """Twenty lines, plain."""
    log = shown(seen(lines=[f"\x1b[32mline {number}\x1b[0m" for number in range(40)])).log.splitlines()
    assert log[0] == "line 20"
    assert log[-1] == "line 39"


def test_a_supervisor_that_just_began_is_starting() -> None:
    """Also over the end of the run before."""
    assert shown(None, launch(alive=True)).headline == "Starting"
    assert shown(seen(state="stopped"), launch(alive=True)).headline == "Starting"


def test_a_failed_start_shows_what_the_supervisor_said() -> None:
    """Its error, without the name of the program; else its last lines."""
    screen = shown(None, launch(said="12:00:00 attempt\nfluxguard: /out: the job changed: argv\n"))
    assert (screen.tone, screen.headline, screen.detail) == ("bad", "It could not start", "/out: the job changed: argv")
    assert screen.can_resume
    assert shown(None, launch(said="Traceback\nValueError: no\n")).detail == "Traceback\nValueError: no"
    assert "without a word" in shown(None, launch()).detail


def test_a_failed_start_is_shown_over_an_earlier_stop() -> None:
    """What was asked last is what is answered."""
    assert shown(seen(state="stopped"), launch(said="fluxguard: no")).headline == "It could not start"


def test_starting_a_finished_run_leaves_it_finished() -> None:
    """The supervisor ends at once, because there is nothing to do."""
    assert shown(seen(state="finished"), launch(said="nothing to do")).headline == "Finished and verified"


def test_nothing_known_invites() -> None:
    """The first screen of all."""
    assert shown(None).headline == "No training yet"


def test_trouble_comes_first_in_the_detail() -> None:
    """Such as a stop that was not done."""
    assert shown(seen(), trouble="Not stopped: busy.").detail.startswith("Not stopped: busy.")


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0, "0 s"), (42.4, "42 s"), (60, "1 min"), (3599, "1 h 00 min"), (11_100, "3 h 05 min"), (187_300, "2 d 4 h")],
)
def test_durations_have_two_units(seconds: float, words: str) -> None:
    """Enough to plan by."""
    assert view.brief(seconds) == words


@pytest.mark.parametrize(
    ("seconds", "words"), [(5, "under a minute"), (720, "about 12 min"), (11_100, "about 3 h 05 min")]
)
def test_waits_are_rounded(seconds: float, words: str) -> None:
    """As a person would say it."""
    assert view.about(seconds) == words


@pytest.mark.parametrize(
    "text",
    [
        "hf_abcdefghijklmnopqrstuvwx",
        "Command '['python', 'x.py', '--huggingface_token', 'S3CRET-value', '--seed', '1']' returned 1",
        "--wandb_api_key=S3CRET-value",
        "the environment said S3CRET-value",
    ],
)
def test_secrets_never_reach_the_page(text: str) -> None:
    """By their look, by the flag before them, by their value."""
    masked = masking.mask(text, {"S3CRET-value"} if "environment" in text else ())
    assert "***" in masked
    assert not re.search(r"S3CRET|abcdef", masked)
    assert "'--seed', '1'" in masked or "--seed" not in text


@pytest.mark.parametrize(
    "text", ["--keep_tokens 1", "--max_token_length 225", "--huggingface_token --seed 1", "a token"]
)
def test_what_is_no_secret_stays(text: str) -> None:
    """Flags that only sound like it."""
    assert masking.mask(text) == text


def test_the_secrets_of_a_command_are_found() -> None:
    """The values of secret flags and variables, not those too short to be one."""
    argv = ["python", "x.py", "--huggingface_token", "long-enough", "--wandb_api_key=also-long", "--api_key", "no"]
    found = masking.secrets_of(argv, {"HF_TOKEN": "from-the-environment", "HOME": "/home/somebody"})
    assert found == {"long-enough", "also-long", "from-the-environment"}


@pytest.mark.parametrize("phase", PHASES)
def test_no_phase_is_shown_by_its_inner_name(phase: str) -> None:
    """Each has words of its own, long and short."""
    assert phase in view._SHORT
    assert phase in {"step", "ending"} or phase in {**view._PREPARING, **view._BESIDES}


def test_the_rank_that_the_others_wait_for_is_named_while_the_training_goes_on() -> None:
    """Beside what the sensors show."""
    words = {"ranks": "rank 1 did not come to #41 'end of epoch': it is in step 7 since 60 s", "debugging": "debugs"}
    assert dict(shown(seen(**words)).machine) == words
    assert "#41 &#x27;end of epoch&#x27;" in markup.state(shown(seen(**words)))
    assert shown(seen(state="stopped", phase=None, **words)).machine == ()


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"action": "round", "resumed_step": None}, "Its ranks were ended, and their own launcher starts them again."),
        ({"action": "restart", "resumed_step": None}, "Started again."),
        ({"action": "stop", "resumed_step": None}, "The training was stopped."),
        ({"resumed_step": None}, "The training was stopped."),
    ],
)
def test_an_incident_says_how_it_went_on_where_no_step_is_known(more: dict[str, Any], said: str) -> None:
    """A round that was ended stopped nothing."""
    assert shown(seen(incidents=[{**INCIDENT, **more}])).cards[0].done == said


def test_troubles_are_listed_while_the_training_goes_on() -> None:
    """A sentence each, apart from the incidents; a run that is over has none any more."""
    troubles = ["an optimizer did not step, once: a part of the model is not trained"]
    assert shown(seen(troubles=troubles)).troubles == (
        "An optimizer did not step, once: a part of the model is not trained.",
    )
    assert "An optimizer did not step" in markup.incidents(shown(seen(troubles=troubles)))
    assert shown(seen(state="finished", phase=None, troubles=troubles)).troubles == ()


def test_what_is_done_otherwise_is_listed_with_its_reason() -> None:
    """Also when the run is over: its result was made so."""
    remedy = {"name": "more swap", "flags": ["--blocks_to_swap 20"], "reason": "GPU memory was full", "at": NOW,
              "words": "more swap (--blocks_to_swap 20)"}  # fmt: skip
    for state in ("running", "finished"):
        screen = shown(seen(state=state, remedies=[remedy]))
        assert screen.remedies == ("More swap (--blocks_to_swap 20): GPU memory was full.",)
        assert "GPU memory was full" in markup.incidents(screen)


def test_a_card_says_what_was_decided_and_why() -> None:
    """In the words of the report."""
    [card] = shown(seen(incidents=[{**INCIDENT, "decision": "restart: the first one after progress"}])).cards
    assert card.done.endswith("Restart: the first one after progress.")


def test_sensors_are_shown_in_the_words_of_the_terminal() -> None:
    """What is unknown is called so."""
    bare = Point(at=NOW, attempt=1, phase="step", step=1)
    screen = shown(seen(machine=readings(bare, NOW)))
    assert dict(screen.machine)["GPU"] == "busy unknown, memory unknown, power unknown"
    assert "GPU: busy unknown, memory unknown, power unknown<br>RAM: " in markup.state(screen)
    assert dict(shown(seen(machine=readings(bare, NOW + 90))).machine) == {
        "sensors": "unknown: the last sample is 1 min 30 s old"
    }
    assert "fg-machine" not in markup.state(shown(seen()))
