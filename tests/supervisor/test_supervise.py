"""Laws of a supervised run, on real processes that train nothing."""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections.abc import Callable

import psutil
import pytest

from fluxguard import heartbeat, limits
from fluxguard.clock import SystemClock
from fluxguard.heartbeat import Heart
from fluxguard.supervisor import attempt as attempts
from fluxguard.supervisor import ledger, stopping
from fluxguard.supervisor.checkpoints.states import Sealed
from fluxguard.supervisor.ledger import Event
from fluxguard.supervisor.showing import status
from fluxguard.supervisor.supervise import Supervision
from tests.supervisor.conftest import QUICK, FakeRun

pytestmark = pytest.mark.integration

MakeRun = Callable[..., FakeRun]
ALL = [float(step) for step in range(40)]


def incidents(fake: FakeRun) -> list[str]:
    """Return the causes named so far."""
    found = status.read(fake.run)
    assert found is not None
    return [str(one["cause"]) for one in found.incidents]


def test_an_undisturbed_run_finishes_verified(fake: MakeRun) -> None:
    """Exit 0, verified weights, every planned step once, no incident."""
    run = fake()
    outcome = run.supervision().to_the_end()
    assert outcome.finished
    assert run.embodied() == ALL
    seen = status.read(run.run)
    assert seen is not None
    assert (seen.state, seen.planned_steps, seen.applied_steps, seen.attempts) == ("finished", 40, 40, 1)
    assert seen.weights == {"path": str(run.run.output_dir / "fake.safetensors"), "verified": True}
    assert seen.incidents == []


def test_hangs_are_ended_explained_and_resumed(fake: MakeRun) -> None:
    """After two hangs in one run each planned step is embodied exactly once, in order."""
    run = fake("--save_every_n_steps", "4")
    run.fault("hang", 15)
    run.fault("spin", 12)  # the first process comes to its 12th step first, and would go on for ever
    assert run.supervision().to_the_end().finished
    assert run.embodied() == ALL
    assert incidents(run) == ["no progress (step)", "no progress (step)"]


def test_gradient_accumulation_resumes_at_epochs(fake: MakeRun) -> None:
    """With accumulation only epoch states resume exactly, so the newest of those is taken."""
    run = fake("--gradient_accumulation_steps", "2", "--save_every_n_epochs", "1", "--save_every_n_steps", "4")
    run.fault("hang", 8)
    assert run.supervision().to_the_end().finished
    assert run.embodied() == [float(step) for step in range(20)]
    seen = status.read(run.run)
    assert seen is not None
    assert seen.incidents[0]["resumed_step"] == 5
    assert seen.incidents[0]["lost_steps"] == 3


def test_the_same_error_at_the_same_step_stops_the_run(fake: MakeRun) -> None:
    """Twice at one place is not bad luck: the run stops, explained, and can be resumed."""
    run = fake()
    run.fault("raise", 6)
    supervision = run.supervision()
    thread = threading.Thread(target=supervision.to_the_end, daemon=True)
    thread.start()
    # The state of step 4 is resumed: its step 2 is the same place.
    deadline = time.monotonic() + 10
    while (run.faults / "raise").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    run.fault("raise", 2)
    thread.join(15)
    seen = status.read(run.run)
    assert seen is not None
    assert seen.state == "stopped"
    assert "twice at the same place" in seen.reason
    assert "the fake was told to fail" in seen.incidents[0]["words"]
    assert seen.applied_steps == 4


def test_not_finite_weights_are_no_success(fake: MakeRun) -> None:
    """Exit code 0 does not make a finished run."""
    run = fake()
    run.fault("nan", 39)
    supervision = run.supervision()
    assert supervision.to_the_end().finished
    assert incidents(run) == ["weights not finite"]
    assert run.embodied() == ALL


def test_an_early_end_with_exit_code_0_is_no_success(fake: MakeRun) -> None:
    """A trainer that ends at once and says all is well is not believed."""
    run = fake()
    run.fault("zero", 3)
    assert run.supervision().to_the_end().finished
    assert incidents(run) == ["no verified weights"]


def test_a_broken_state_is_set_aside_and_the_one_before_is_used(fake: MakeRun) -> None:
    """A torn newest state costs its steps, never the run."""
    run = fake()
    run.fault("hang", 10)
    supervision = run.supervision()
    seal = supervision._seal

    def tear_then_seal() -> Sealed:
        for state in run.run.output_dir.glob("*00000008-state"):
            (state / "optimizer.bin").write_bytes((state / "optimizer.bin").read_bytes()[:900])
        return seal()

    supervision._seal = tear_then_seal  # type: ignore[method-assign]
    assert supervision.to_the_end().finished
    assert run.embodied() == ALL
    seen = status.read(run.run)
    assert seen is not None
    assert seen.incidents[0]["resumed_step"] == 4


def test_a_killed_supervisor_is_followed_by_one_that_adopts(fake: MakeRun) -> None:
    """The trainer goes on; the next supervisor starts no second one, and the end is right."""
    run = fake(step=0.1)
    first = run.supervision()
    started = first._start(first._restart())
    assert isinstance(started, attempts.Attempt)
    time.sleep(1)
    trainers = started.processes()
    assert run.supervision().to_the_end().finished
    assert run.embodied() == ALL
    seen = status.read(run.run)
    assert seen is not None
    assert seen.attempts == 1
    assert not any(trainer.alive() for trainer in trainers)


def test_a_stop_ends_everything_and_can_be_resumed(fake: MakeRun) -> None:
    """The request is a file; afterwards nothing lives, and the next supervise goes on from the state."""
    run = fake(step=0.05)
    supervision = run.supervision()
    outcomes = []
    thread = threading.Thread(target=lambda: outcomes.append(supervision.to_the_end()), daemon=True)
    thread.start()
    time.sleep(1.5)
    run.run.stop.write_text("{}")
    thread.join(10)
    assert not outcomes[0].finished
    last = attempts.last(run.run, supervision.ledger.events)
    assert last is not None
    assert last.processes() == []
    assert run.supervision().to_the_end().finished
    assert run.embodied() == ALL


def test_a_kill_is_named_and_noticed_within_a_second(fake: MakeRun) -> None:
    """SIGKILL from outside is no fault of the trainer."""
    run = fake(step=0.05)
    supervision = run.supervision()
    thread = threading.Thread(target=supervision.to_the_end, daemon=True)
    thread.start()
    time.sleep(1.2)
    last = attempts.last(run.run, supervision.ledger.events)
    assert last is not None
    for identity in last.processes():
        psutil.Process(identity.pid).kill()
    thread.join(15)
    seen = status.read(run.run)
    assert seen is not None
    assert seen.state == "finished"
    assert incidents(run) == ["killed from outside (SIGKILL)"]
    assert seen.incidents[0]["detected_after_s"] < 1
    assert run.embodied() == ALL


class Crashed(BaseException):
    """Stands in for the SIGKILL of a supervisor."""


@pytest.mark.parametrize("kind", ["attempt", "spawned", "plan", "ended", "incident", "decision", "finished", "adopted"])
def test_a_supervisor_may_die_behind_any_event(fake: MakeRun, kind: str) -> None:
    """Whatever was written last, the next supervisor brings the run to the same end."""
    run = fake()
    run.fault("hang", 10)
    if kind == "adopted":
        started = run.supervision()
        started._start(started._restart())
    first = run.supervision()

    def crash(event: Event) -> None:
        if event.kind == kind:
            raise Crashed

    first.ledger._subscribers.append(crash)
    with pytest.raises(Crashed):
        first.to_the_end()
    second = run.supervision()
    if kind == "finished":
        assert second.ledger.events[-1].kind == "finished"
    else:
        assert second.to_the_end().finished
    assert run.embodied() == ALL
    left = attempts.last(run.run, second.ledger.events)
    assert left is not None
    assert left.processes() == []


def test_a_dead_keeper_does_not_kill_its_trainer(fake: MakeRun) -> None:
    """The keeper is ours: when it is gone, the trainer is watched without it and judged by what it leaves."""
    run = fake(step=0.06)
    supervision = run.supervision()
    outcomes = []
    thread = threading.Thread(target=lambda: outcomes.append(supervision.to_the_end()), daemon=True)
    thread.start()
    last = None
    while last is None or last.keeper is None or not last.processes():
        time.sleep(0.05)
        last = attempts.last(run.run, supervision.ledger.events)
    psutil.Process(last.keeper.pid).kill()
    thread.join(15)
    assert outcomes[0].finished
    seen = status.read(run.run)
    assert seen is not None
    assert (seen.attempts, seen.incidents) == (1, [])
    assert run.embodied() == ALL


def test_a_trainer_that_ignores_sigterm_is_ended(fake: MakeRun) -> None:
    """The ladder has a last rung."""
    run = fake()
    run.fault("hang", 10)
    run.fault("stubborn", 0)
    assert run.supervision().to_the_end().finished
    assert run.embodied() == ALL


def test_a_stop_during_an_incident_starts_no_other_attempt(fake: MakeRun) -> None:
    """It is looked at before the next trainer loads its models."""
    run = fake()
    run.fault("hang", 10)
    supervision = run.supervision()

    def ask(event: Event) -> None:
        if event.kind == "incident":
            run.run.stop.write_text("{}")

    supervision.ledger._subscribers.append(ask)
    assert not supervision.to_the_end().finished
    seen = status.read(run.run)
    assert seen is not None
    assert (seen.attempts, seen.state) == (1, "stopped")


def test_a_run_that_nobody_watches_is_stopped_without_losing_its_plan(fake: MakeRun) -> None:
    """What its supervisor did not live to see is read from the log."""
    run = fake(step=0.05)
    first = run.supervision()
    first._start(first._restart())
    while not list(run.run.output_dir.glob("*-state")):
        time.sleep(0.05)
    assert "resumes it" in stopping.stop(run.run, SystemClock())
    assert run.supervision().to_the_end().finished
    assert run.embodied() == ALL


def living(fake: FakeRun) -> str:
    """Wait until an attempt lives; return its uuid."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        attempt = attempts.last(fake.run, ledger.read(fake.run.ledger))
        if attempt is not None and attempt.processes():
            return attempt.uuid
        time.sleep(0.01)
    pytest.fail("no attempt was started")


def beside(supervision: Supervision) -> threading.Thread:
    """Supervise in a thread."""
    thread = threading.Thread(target=supervision.to_the_end, daemon=True)
    thread.start()
    return thread


def test_what_an_attempt_has_waited_for_holds_for_the_next(fake: MakeRun) -> None:
    """Also when it was killed: in the file of the guard, in the same supervision, and for the supervisor after it."""
    run = fake()
    run.fault("hang", 10)
    supervision = run.supervision()
    thread = beside(supervision)
    mark = living(run)
    run.run.beats().mkdir(exist_ok=True)
    heart = Heart(heartbeat.path_for(run.run.beats(), 1), rank=1, attempt=uuid.UUID(mark).bytes)
    heart.longest_batch, heart.phase = 7.5, b"step"  # the only rank of this machine that beats speaks for all
    heart.beat()
    thread.join(30)
    assert incidents(run) == ["no progress (step)"]
    assert limits.read(run.run.limits).wait.batch == 75.0
    assert limits.read(run.run.limits).phase == QUICK.limits.phase  # which the tests have chosen
    assert supervision.limits.wait.batch == run.supervision().limits.wait.batch == 75.0


def test_what_an_attempt_has_waited_for_is_learned_when_nobody_watched_its_end(fake: MakeRun) -> None:
    """By the next supervisor, from the last heartbeat."""
    run = fake()
    mark = str(uuid.uuid4())
    first = run.supervision()
    first.ledger.add("attempt", attempt=mark, number=1, start_step=0, log_from=0)
    first.ledger.add("ended", attempt=mark, step=3)
    run.run.beats().mkdir(exist_ok=True)
    heart = Heart(heartbeat.path_for(run.run.beats(), 0), attempt=uuid.UUID(mark).bytes)
    heart.longest_swap = 4.0
    heart.beat()
    after = run.supervision()
    assert after._adopted() is None
    assert after.limits.wait.block_swap == limits.read(run.run.limits).wait.block_swap == 40.0


def test_what_was_put_right_is_told_and_counted_at_the_end(fake: MakeRun) -> None:
    """Once each, and it is no incident."""
    run = fake(step=0.05)
    supervision = run.supervision()
    thread = beside(supervision)
    heal = {
        "version": 1, "attempt": living(run), "rank": 0, "step": 3, "time": 1.7e9, "what": "a batch", "why": "stuck",
        "cause": "loader worker", "seconds": 2.0, "identical": True, "doubt": "", "file": None, "workers": [7],
    }  # fmt: skip
    with run.run.healed(0).open("w") as file:
        file.write(f"{json.dumps(heal)}\nnot ours\n{json.dumps({**heal, 'step': 4})}\n{json.dumps(heal)[:30]}")
    thread.join(30)
    seen = status.read(run.run)
    assert seen is not None
    assert (seen.state, seen.incidents) == ("finished", [])
    assert [one["step"] for one in seen.healed] == [3, 4]
    assert seen.healing == "healed 2 times in place, still bit-identical"
    assert seen.reason.endswith(seen.healing)
