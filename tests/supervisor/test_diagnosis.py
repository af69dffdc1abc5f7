"""Laws of the diagnosis: what is seen, and what it is called."""

from __future__ import annotations

import pytest

from fluxguard.supervisor.causes.diagnosis import Evidence, diagnose
from fluxguard.supervisor.detecting.detectors import Symptom
from fluxguard.supervisor.detecting.observation import Exit
from fluxguard.supervisor.sensing.processes import Usage

ENDED = Symptom(kind="ended", phase="step", since=0.2)
IDLE = Symptom(kind="idle", phase="step", since=301.0, limit=300.0)


@pytest.mark.parametrize(
    ("lines", "cause", "again"),
    [
        (["torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"], "GPU memory full", False),
        (["OSError: [Errno 28] No space left on device"], "disk full", False),
        (["flux_train_network.py: error: unrecognized arguments: --foo"], "bad argument", False),
        (["ModuleNotFoundError: No module named 'bitsandbytes'"], "missing package", False),
        (["FileNotFoundError: [Errno 2] No such file or directory: 'ae.sft'"], "missing file", False),
        (["zipfile.BadZipFile: Bad CRC-32 for file 'latents.npy'"], "cache file", True),
        (["fluxguard.errors.DeadlineExceeded: reading a.npz did not finish within 30 s"], "file read", True),
        (["RuntimeError: DataLoader worker (pid 77) is killed by signal: Killed."], "loader worker killed", True),
        (["ValueError: nope", "subprocess.CalledProcessError: x"], "error in the trainer (ValueError)", True),
        (["died with <Signals.SIGKILL: 9>."], "killed from outside (SIGKILL)", True),
        (["died with <Signals.SIGSEGV: 11>."], "crashed (SIGSEGV)", True),
        (["steps: 10%"], "ended without a word", True),
    ],
)  # fmt: skip
def test_the_output_names_the_cause(lines: list[str], cause: str, again: bool) -> None:
    """Known lines have known causes, also behind the launcher's own error."""
    found = diagnose(ENDED, Evidence(exit=Exit(code=1), lines=lines))
    assert (found.cause, found.again) == (cause, again)


def test_a_kill_for_memory_is_not_a_kill_from_outside() -> None:
    """The kernel's count decides, and the advice is about RAM."""
    found = diagnose(ENDED, Evidence(exit=Exit(signal=9), out_of_memory=True))
    assert found.cause == "system memory full"
    assert "RAM" in found.words


def test_the_guard_is_believed_first() -> None:
    """Its last words say more than the output."""
    words = {"cause": "block swap", "verdict": "again", "what": "block swap", "limit": 2.0, "waited": 2.1}
    found = diagnose(ENDED, Evidence(exit=Exit(code=1), last_words=words, lines=["ValueError: nope"]))
    assert found.cause == "block swap"
    assert "2.1 s" in found.words
    assert found.again


def test_ranks_that_did_not_come_are_named() -> None:
    """As the guard names them."""
    words = {
        "cause": "barrier",
        "verdict": "again",
        "what": "barrier (rank 3 did not come)",
        "limit": 300,
        "waited": 301,
    }
    found = diagnose(ENDED, Evidence(exit=Exit(code=1), last_words=words))
    assert "rank 3 did not come" in found.words
    assert "300 s" in found.words


def test_the_guard_may_ask_for_no_other_attempt() -> None:
    """Never means never."""
    words = {"cause": "wait", "verdict": "never", "what": "something", "limit": 2.0, "waited": 2.1}
    assert not diagnose(ENDED, Evidence(exit=Exit(code=1), last_words=words)).again


@pytest.mark.parametrize("state", ["/out/run-000004-state", None])
def test_losses_that_are_not_a_number_stop_the_run(state: str | None) -> None:
    """With the state to go on from, and no other attempt."""
    what = "the loss was not a number 20 times in a row, from step 41 on"
    words = {"cause": "loss not finite", "verdict": "never", "what": what, "limit": 20, "waited": 0.0, "file": state}
    found = diagnose(ENDED, Evidence(exit=Exit(code=1), last_words=words))
    assert (found.cause, found.again) == ("loss not finite", False)
    assert "20 times in a row, from step 41 on" in found.words
    assert (state or "start again") in found.advice


def test_an_error_that_was_survived_is_no_cause() -> None:
    """A picture that did not fit into memory hours ago did not end the run."""
    told = ["Traceback (most recent call last):", "torch.OutOfMemoryError: CUDA out of memory"]
    survived = [f"fluxguard| {line}" for line in told]
    assert diagnose(ENDED, Evidence(exit=Exit(code=3), lines=survived)).cause == "ended without a word"
    raised = ["Traceback (most recent call last):", "ValueError: nope"]
    assert "ValueError" in diagnose(ENDED, Evidence(exit=Exit(code=1), lines=[*raised, *survived])).cause


def test_a_stopped_worker_is_named() -> None:
    """One stopped process among others that wait for it."""
    usage = Usage(1.0, 0, ((5, "python", "sleeping"), (6, "python", "stopped")))
    found = diagnose(IDLE, Evidence(usage=usage, workers=frozenset({6})))
    assert found.cause == "loader worker stopped"
    assert "Process 6" in found.words
    assert diagnose(IDLE, Evidence(usage=usage)).cause == "trainer stopped"


def test_an_old_line_does_not_decide() -> None:
    """A warning at start-up that reads like a cause is not the cause of an end hours later."""
    lines = ["ModuleNotFoundError: No module named 'triton'", *["steps: 1%"] * 50]
    trace = ["Traceback (most recent call last):", '  File "x.py", line 1', "RuntimeError: CUDA error: unspecified"]
    launcher = ["Traceback (most recent call last):", "subprocess.CalledProcessError: Command '['python']' died"]
    found = diagnose(ENDED, Evidence(exit=Exit(code=1), lines=[*lines, *trace, *launcher]))
    assert (found.cause, found.again) == ("GPU fault", True)
    assert diagnose(IDLE, Evidence(lines=lines)).cause == "no progress (step)"


def test_the_stacks_name_the_wait() -> None:
    """What stands in the stacks is what it waits for."""
    found = diagnose(
        IDLE,
        Evidence(
            stacks={5: "Process 5: python x --save_state\n    _wait_blocks_move (custom_offloading_utils.py:158)"}
        ),
    )
    assert found.cause == "block swap"


def test_nothing_known_is_said_as_such() -> None:
    """Without any evidence the phase and the time are named."""
    found = diagnose(IDLE, Evidence())
    assert found.cause == "no progress (step)"
    assert "301 s" in found.words


@pytest.mark.parametrize("phase", ["load", "cast", "first step", "step", "sampling"])
def test_no_advice_for_a_foreign_trainer_names_what_only_sd_scripts_has(phase: str) -> None:
    """Neither a flag nor blocks to swap; something is still said."""
    hung = Symptom(kind="idle", phase=phase, since=300.0)
    advice = diagnose(hung, Evidence(foreign=True)).advice
    assert advice
    assert "--" not in advice
    assert "blocks" not in advice
    full = diagnose(ENDED, Evidence(lines=["torch.OutOfMemoryError: CUDA out of memory."], foreign=True)).advice
    assert full
    assert "--" not in full
