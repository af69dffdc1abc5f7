"""Laws of the table of causes: what is printed, and which row it means, in whatever dress it comes."""

from __future__ import annotations

import ast
import re
from dataclasses import replace
from pathlib import Path

import pytest

import fluxguard.supervisor
from fluxguard.launch.remedies import CACHE_ASIDE, FEWER_WORKERS, MORE_SWAP, NO_SAMPLING, REMEDIES
from fluxguard.limits import PHASES
from fluxguard.supervisor.causes import BY_NAME, CAUSES
from fluxguard.supervisor.causes.cause import Cause, Ends, Judged, Says, Seen, Told, Waits
from fluxguard.supervisor.causes.diagnosis import Evidence, diagnose, named
from fluxguard.supervisor.causes.signatures import INPUT, MACHINE, OUTSIDE, TRAINER
from fluxguard.supervisor.detecting.detectors import Symptom
from fluxguard.supervisor.detecting.observation import Exit
from fluxguard.supervisor.sensing.gpu import Card
from fluxguard.supervisor.sensing.host import Host
from fluxguard.supervisor.sensing.processes import Usage
from tests.supervisor import ends

ENDED = Symptom(kind="ended", phase="step", since=0.2)
GIB = 1 << 30
ALL = list(ends.ends())
SAID = [(cause.name, proof) for cause in CAUSES for proof in cause.shown if isinstance(proof, Says)]


def found(
    lines: list[str] | tuple[str, ...], exit: Exit | None = None, symptom: Symptom = ENDED, **more: object
) -> str:
    """Return the name of the cause."""
    return diagnose(symptom, Evidence(exit=exit or Exit(code=1), lines=lines, **more)).cause  # type: ignore[arg-type]


@pytest.mark.parametrize("end", ALL, ids=lambda end: end.name)
def test_every_end_has_its_cause(end: ends.End) -> None:
    """As it is, behind a healthy start and glued to its bar, on FluxGym's page, and in colours."""
    assert found(end.lines, end.exit) == end.cause
    whole = ends.after_start(end.lines)
    assert found(whole, end.exit) == end.cause
    assert found(ends.on_the_page(whole), end.exit) == end.cause
    assert found(ends.coloured(whole), end.exit) == end.cause


@pytest.mark.parametrize(
    "end", [end for end in ALL if end.exit == Exit(code=1) and end.lines], ids=lambda end: end.name
)
def test_the_launcher_behind_it_says_nothing(end: ends.End) -> None:
    """Its own error repeats the whole command line, and names no cause."""
    if "accelerate/commands" in "".join(end.lines):
        pytest.skip("it is the launcher's own")
    whole = [*ends.after_start(end.lines), *ends.LAUNCHER.splitlines()]
    assert found(whole) == end.cause
    assert found([*ends.on_the_page(whole), "[2026-02-01 17:36:18] [ERROR] Command exited with code 1"]) == end.cause


@pytest.mark.parametrize("end", [end for end in ALL if end.lines], ids=lambda end: end.name)
def test_what_was_survived_is_no_cause(end: ends.End) -> None:
    """Behind it the training went on for hours, and then was killed: that is all there is to say."""
    went_on = [*ends.after_start(end.lines), "steps:  98%|#########8| 39/40 [09:15<00:01,  1.00it/s, avr_loss=0.71]"]
    assert found(went_on, Exit(signal=9)) == "killed from outside (SIGKILL)"
    assert found(went_on, Exit(code=3)) == "ended without a word"


@pytest.mark.parametrize(("name", "proof"), SAID, ids=lambda value: value if isinstance(value, str) else "")
def test_every_example_means_its_row(name: str, proof: Says) -> None:
    """The messages that the documentation shows."""
    assert found([proof.example]) == name


def test_every_row_has_an_output_that_gives_it() -> None:
    """A row without one is a guess; rows of runs without progress are in the tests below."""
    shown = {re.sub(r"\(\w+\)$", "({what})", end.cause) for end in ALL} | {end.cause for end in ALL}
    for cause in CAUSES:
        if any(isinstance(proof, (Says, Ends)) for proof in cause.shown):
            assert cause.name in shown, cause.name


def test_every_row_is_whole() -> None:
    """A name of its own, a sentence, an advice, a proof, and only words that others know."""
    assert len(BY_NAME) == len(CAUSES)
    for cause in CAUSES:
        assert cause.words.endswith((".", "{said}")), cause.name
        assert cause.advice.endswith("."), cause.name
        assert cause.shown, cause.name
        assert cause.origin in (TRAINER, OUTSIDE, MACHINE, INPUT), cause.name
        assert set(cause.remedies) <= set(REMEDIES), cause.name
        assert (cause.name + cause.words + cause.advice).isascii(), cause.name


def test_no_line_takes_long() -> None:
    """A line without end, as binary data or a command gives it, is searched once per row, not once per letter."""
    for name, proof in SAID:
        assert not proof.pattern.pattern.startswith((".*", "(?:.*")), name


def test_causes_that_others_name_are_in_the_table() -> None:
    """A diagnosis that is made elsewhere in the supervisor has its row."""
    for path in Path(fluxguard.supervisor.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Diagnosis":
                for word in node.keywords:
                    if word.arg == "cause" and isinstance(word.value, ast.Constant):
                        assert word.value.value in BY_NAME, path.name


HOST = Host(available=GIB // 4, total=32 * GIB, swap_used=1 * GIB, swap_total=16 * GIB)
ROOM = Host(available=20 * GIB, total=32 * GIB)
FULL_GROUP = Host(available=20 * GIB, total=64 * GIB, cgroup_used=int(15.9 * GIB), cgroup_limit=16 * GIB)
KILLED = "killed from outside (SIGKILL)"


@pytest.mark.parametrize(
    ("exit", "host", "kills", "cause"),
    [
        (Exit(signal=9), None, True, "system memory full"),
        (Exit(code=137), None, True, "system memory full"),
        (Exit(signal=9), HOST, False, "system memory full"),
        (Exit(signal=9), FULL_GROUP, False, "system memory full"),
        (Exit(code=3221225477), HOST, False, "system memory full"),
        (Exit(code=-1073741819), HOST, False, "system memory full"),
        (Exit(code=3221225773), None, False, "system memory full"),
        (Exit(signal=9), ROOM, False, KILLED),
        (Exit(signal=9), Host(), False, KILLED),
        (Exit(signal=9), None, False, KILLED),
        (Exit(code=1), HOST, False, "ended without a word"),
        (Exit(code=1), None, True, "ended without a word"),
        (Exit(signal=15), HOST, True, "killed from outside (SIGTERM)"),
        (Exit(code=3221225477), ROOM, False, "crashed (0xC0000005)"),
    ],
)  # fmt: skip
def test_memory_is_blamed_only_with_counters(exit: Exit, host: Host | None, kills: bool, cause: str) -> None:
    """The kernel's count, or memory that was nearly gone; unknown is neither."""
    diagnosis = diagnose(ENDED, Evidence(exit=exit, host=host, out_of_memory=kills))
    assert diagnosis.cause == cause
    assert diagnosis.again == (cause not in ("system memory full",))


OOM = ["Traceback (most recent call last):", '  File "a.py", line 3', "torch.OutOfMemoryError: CUDA out of memory."]
GOES_ON = "2026-11-21 18:00:00 INFO     caching latents with caching strategy.     train_util.py:1000"


def test_a_rank_that_goes_on_for_a_while_hides_no_end_of_another_one() -> None:
    """The launcher says that one raised an error of its own, and takes seconds to end the others."""
    lines = [*(f"[rank1]: {line}" for line in OOM), GOES_ON, "Traceback (most recent call last):"]
    lines.append("torch.distributed.elastic.multiprocessing.errors.ChildFailedError:")
    assert found([*lines, "  exitcode  : 1 (pid: 77)"]) == "GPU memory full"
    assert found([*lines, "  exitcode  : -9 (pid: 77)"]) == KILLED


TRITON = [
    "Traceback (most recent call last):",
    '  File "/env/xformers/__init__.py", line 57, in _is_triton_available',
    "    import triton  # noqa",
    "ModuleNotFoundError: No module named 'triton'",
]
STARTS = ["accelerator device: cuda", "loading image sizes."]


@pytest.mark.parametrize(
    ("exit", "cause"),
    [
        (Exit(signal=9), KILLED),
        (Exit(signal=11), "crashed (SIGSEGV)"),
        (Exit(code=3221225477), "crashed (0xC0000005)"),
    ],
)
def test_an_error_at_the_start_explains_no_sudden_end(exit: Exit, cause: str) -> None:
    """Packages print what they miss, traceback and all, and go on; nothing but a progress would show it survived."""
    assert found([*TRITON, *STARTS], exit) == cause
    assert found(TRITON, exit) == "triton missing"
    assert found([*TRITON, *STARTS]) == "triton missing"  # it ended by itself, and said nothing else


@pytest.mark.parametrize(
    "line",
    [
        "[W socket.cpp:426] [c10d] The server socket has failed to bind to [::]:29500 (errno: 98).",
        "[W1121 10:00:00.123456789 socket.cpp:426] [c10d] The server socket has failed to bind to [::]:29500.",
        "2026-10-01 11:11:11.1: W tensorflow/dso_loader.cc:64] libcudart.so.11.0: cannot open shared object file",
    ],
)
def test_a_warning_of_a_library_is_no_cause(line: str) -> None:
    """It tries another way, or does without."""
    assert found([line, *STARTS]) == "ended without a word"


@pytest.mark.parametrize("mark", ["Exception ignored in: <function A.__del__ at 0x7f>", "--- Logging error ---"])
def test_what_python_itself_ignores_is_no_cause(mark: str) -> None:
    """An object that cannot be taken apart, a console that cannot show a character."""
    ignored = [mark, *TRITON[:3], "UnicodeEncodeError: 'charmap' codec can't encode character", "Call stack:"]
    assert found(ignored, Exit(code=1)) == "ended without a word"
    assert found([*OOM, *ignored], Exit(code=1)) == "GPU memory full"


def test_a_bar_of_the_validation_is_none_of_the_training() -> None:
    """It counts from 0, and the bar of the training that is drawn at the end did not move meanwhile."""
    bar = "steps:  40%|####      | 400/1000 [10:00<15:00,  1.5s/it, avr_loss=0.3]"
    assert found([bar, "validation steps:  10%|#   | 5/50 [00:10<01:00,  1.5s/it]", *OOM, bar]) == "GPU memory full"


def test_a_launcher_that_saw_the_kill_counts_too() -> None:
    """Its own exit code is 1."""
    lines = ["subprocess.CalledProcessError: Command '['python']' died with <Signals.SIGKILL: 9>."]
    assert found(lines, out_of_memory=True) == "system memory full"
    assert found(lines) == KILLED


def test_a_request_to_stop_is_no_matter_of_workers() -> None:
    """Ctrl-C reaches the loader workers too, and the trainer then misses them."""
    lines = ["Traceback (most recent call last):", "KeyboardInterrupt", "", ends.CHAINED, "", ends.HEAD]
    lines.append("RuntimeError: DataLoader worker (pid(s) 77, 78) exited unexpectedly")
    assert found(lines) == "killed from outside (SIGINT)"
    assert found(lines[-2:]) == "loader worker killed"


def test_a_worker_that_was_killed_for_memory_is_a_matter_of_memory() -> None:
    """The trainer itself ends with an error then."""
    lines = ["RuntimeError: DataLoader worker (pid 77) is killed by signal: Killed."]
    assert found(lines, out_of_memory=True) == "system memory full"
    assert found(lines) == "loader worker killed"


@pytest.mark.parametrize(
    ("lines", "phase", "again", "remedies"),
    [
        (["torch.OutOfMemoryError: CUDA out of memory."], "step", False, (MORE_SWAP,)),
        (["torch.OutOfMemoryError: CUDA out of memory."], "sampling", False, (NO_SAMPLING, MORE_SWAP)),
        (
            [
                "Traceback (most recent call last):",
                '  File "library/flux_train_utils.py", line 139, in sample_image_inference',
                "torch.OutOfMemoryError: CUDA out of memory.",
            ],
            "step",
            False,
            (NO_SAMPLING, MORE_SWAP),
        ),
        (["RuntimeError: DataLoader worker (pid 7) is killed by signal: Killed."], "step", True, (FEWER_WORKERS,)),
        (["zipfile.BadZipFile: Bad CRC-32 for file 'a'"], "step", True, (CACHE_ASIDE,)),
        (["OSError: [Errno 28] No space left on device"], "sampling", False, ()),
        (["ValueError: nobody knows"], "step", True, ()),
        (["ValueError: nobody knows"], "sampling", True, (NO_SAMPLING,)),
    ],
)  # fmt: skip
def test_what_another_attempt_may_do_otherwise(
    lines: list[str], phase: str, again: bool, remedies: tuple[str, ...]
) -> None:
    """What ended in sampling can do without it; what would end the same has a remedy or none."""
    symptom = Symptom(kind="ended", phase=phase, since=0.2)
    diagnosis = diagnose(symptom, Evidence(exit=Exit(code=1), lines=lines))
    assert (diagnosis.again, diagnosis.remedies) == (again, remedies)


CARD = Card(index=0, used=23 * GIB, total=24 * GIB, utilisation=100.0, watts=90.0, watt_limit=230.0)
WORKING = Card(index=0, used=12 * GIB, total=24 * GIB, utilisation=100.0, watts=200.0, watt_limit=230.0)
FULL = Card(index=0, used=int(23.9 * GIB), total=24 * GIB, utilisation=98.0, watts=200.0, watt_limit=230.0)
STOPPED = Usage(1.0, 0, ((5, "python", "sleeping"), (6, "python", "stopped")))
ON_CPU = "accelerator device: cpu"
IN_KERNEL = Usage(1.0, 0, ((5, "python", "disk-sleep"),))


def hang(kind: str = "stuck", phase: str = "step", what: str = "", name: str = "", then: str = "restart") -> Symptom:
    """Return the symptom of a run without progress."""
    return Symptom(kind=kind, phase=phase, since=301.0, limit=300.0, what=what, name=name, then=then)


def stack(function: str) -> dict[int, str]:
    """Return the stacks of a process that stands in a function."""
    return {
        5: f"Process 5: python x --save_state\n    {function} (somewhere.py:158)\n    train (train_network.py:1415)"
    }


@pytest.mark.parametrize(
    ("symptom", "evidence", "cause"),
    [
        (hang(), Evidence(), "no progress (step)"),
        (hang(), Evidence(cards=(CARD,), system="linux"), "GPU busy without work"),
        (hang(phase="first step"), Evidence(cards=(CARD,), system="linux"), "GPU busy without work"),
        (hang(phase="saving"), Evidence(cards=(CARD,), system="linux"), "no progress (saving)"),
        (hang(), Evidence(cards=(CARD,), stacks=stack("all_reduce")), "collective"),
        (hang(), Evidence(cards=(CARD, replace(CARD, index=1, held={99: 1}))), "no progress (step)"),
        (hang(), Evidence(cards=(WORKING,), system="linux"), "no progress (step)"),
        (hang(), Evidence(cards=(Card(index=0),), system="linux"), "no progress (step)"),
        (hang(), Evidence(cards=(FULL,), system="linux"), "no progress (step)"),
        (hang(), Evidence(cards=(FULL,), system="win32"), "GPU memory spilled"),
        (hang(), Evidence(host=HOST), "no progress (step)"),
        (
            hang("idle", "load"),
            Evidence(host=Host(available=0, total=32 * GIB, swap_used=12 * GIB, swap_total=16 * GIB)),
            "system memory swapping",
        ),
        (hang("idle"), Evidence(usage=STOPPED), "trainer stopped"),
        (hang("idle"), Evidence(usage=STOPPED, workers=frozenset({6})), "loader worker stopped"),
        (hang("idle"), Evidence(usage=IN_KERNEL), "disk or driver"),
        (hang("idle"), Evidence(usage=IN_KERNEL, stacks=stack("save_state")), "saving"),
        (hang("overdue", what="block swap"), Evidence(), "block swap"),
        (hang("overdue", what="a batch from the loader"), Evidence(), "loader worker"),
        (hang("overdue", what="reading /data/a.npz"), Evidence(), "file read"),
        (hang("overdue", what="barrier (rank 3 did not come)"), Evidence(), "barrier"),
        (hang("overdue", what="sampling an image"), Evidence(), "sampling"),
        (hang("overdue", what="something else"), Evidence(), "wait"),
        (hang(), Evidence(stacks=stack("_wait_blocks_move")), "block swap"),
        (hang(), Evidence(stacks=stack("_try_get_data")), "loader worker"),
        (hang(), Evidence(stacks=stack("wait_for_everyone")), "barrier"),
        (hang(), Evidence(stacks=stack("all_reduce_network")), "collective"),
        (hang(phase="sampling"), Evidence(stacks=stack("sample_image_inference")), "sampling"),
        (hang(phase="latent cache"), Evidence(stacks=stack("load_latents_from_disk")), "cache read"),
        (hang(phase="tokenizers"), Evidence(stacks=stack("hf_hub_download")), "download stuck"),
        (hang(phase="trackers"), Evidence(stacks=stack("init_trackers")), "tracker"),
        (hang("idle", "load"), Evidence(cards=(WORKING,), lines=[ON_CPU]), "training on the CPU"),
        (hang("idle", "load"), Evidence(cards=(), lines=[ON_CPU]), "no progress (load)"),
        (hang("idle"), Evidence(xids=("Xid 79 (GPU has fallen off the bus)",)), "GPU lost"),
        (hang("idle"), Evidence(xids=("NVRM: Xid (PCI:0000:01:00): 94, pid=7",)), "GPU memory faulty"),
        (hang("idle"), Evidence(xids=("Xid 62",)), "GPU fault"),
        (hang("watched log", what="loss: not finite", name="loss"), Evidence(), "watched log: loss"),
    ],
)  # fmt: skip
def test_a_run_without_progress_has_a_cause(symptom: Symptom, evidence: Evidence, cause: str) -> None:
    """By what is stopped, by the wait that is open, by the stacks, by the figures, else by its phase."""
    diagnosis = diagnose(symptom, evidence)
    assert diagnosis.cause == cause
    assert diagnosis.proof
    assert diagnosis.words.endswith(".")


def test_every_row_of_runs_without_progress_is_met() -> None:
    """Rows that only waits, figures or last words prove are in the table above, or are phases."""
    met = {mark[2] for mark in test_a_run_without_progress_has_a_cause.pytestmark[0].args[1]}  # type: ignore[attr-defined]
    others = {f"no progress ({phase})" for phase in PHASES} | {"watched log: {what}", "disk full", "could not start"}
    for cause in CAUSES:
        if all(isinstance(proof, (Waits, Seen)) for proof in cause.shown):
            assert cause.name in met | others, cause.name


@pytest.mark.parametrize("phase", PHASES)
def test_every_phase_has_a_row(phase: str) -> None:
    """Whatever a training does, it may stop doing it."""
    diagnosis = diagnose(hang("idle", phase), Evidence())
    assert diagnosis.cause == f"no progress ({phase})"
    assert BY_NAME[diagnosis.cause].advice == diagnosis.advice


def test_a_pattern_of_the_users_own_may_stop_the_run() -> None:
    """It says so itself."""
    again = diagnose(hang("watched log", what="loss: not finite", name="loss"), Evidence())
    never = diagnose(hang("watched log", what="loss: not finite", name="loss", then="stop"), Evidence())
    assert (again.again, never.again) == (True, False)
    assert "not finite" in again.words


def test_figures_of_the_machine_do_not_explain_an_end_that_says_why() -> None:
    """A report of the driver that any faulty program causes, and memory that is low, stand beside the error."""
    lines = ["ValueError: nobody knows"]
    assert found(lines, xids=("Xid 13",), host=HOST, cards=(CARD,)) == "error in the trainer (ValueError)"


@pytest.mark.parametrize("cause", CAUSES, ids=lambda cause: cause.name)
def test_every_row_can_be_named_from_elsewhere(cause: Cause) -> None:
    """With every hole of its texts filled."""
    diagnosis = named(cause.name, "a line", what="x")
    assert "{" not in diagnosis.cause + diagnosis.words + diagnosis.advice
    assert diagnosis.place


@pytest.mark.parametrize(
    "proof", [p for c in CAUSES for p in c.shown if isinstance(p, Told)], ids=lambda proof: proof.cause
)
def test_the_guards_last_words_have_their_row(proof: Told) -> None:
    """By the cause that they name."""
    words = {
        "cause": proof.cause,
        "verdict": "again",
        "what": "something",
        "limit": 2.0,
        "waited": 2.1,
        "file": "a.npz",
    }
    diagnosis = diagnose(hang("given up"), Evidence(last_words=words))
    assert diagnosis.cause == proof.cause
    assert diagnosis.proof == ("the guard's last words: something",)


def test_a_disk_without_room_is_known_by_itself() -> None:
    """Also when the trainer could not say so."""
    assert found([], disk_full=True) == "disk full"
    assert found([], Exit(error="No such file or directory: 'python9'")) == "could not start"


def test_judgements_are_few() -> None:
    """Rows that no pattern proves are named here, so that none is added without a thought."""
    judged = {cause.name for cause in CAUSES if any(isinstance(proof, Judged) for proof in cause.shown)}
    assert judged == {
        "error in sampling ({what})",
        "error in the trainer ({what})",
        "the same error again and again",
        "loss not finite",
        "killed from outside",
        "machine restarted",
        "no verified weights",
        "output folder gone",
        "weights not finite",
        "wrong number of steps",
        "ended without a word",
    }


MISFIT = (
    "Traceback (most recent call last):",
    '  File "/sd-scripts/flux_train_network.py", line 70, in load_target_model',
    "    model = self.load_flow(args)",
    '  File "/sd-scripts/library/flux_utils.py", line 130, in FUNCTION',
    "    info = model.load_state_dict(sd, strict=False, assign=True)",
    "RuntimeError: Error(s) in loading state_dict for NETWORK:",
    "\tsize mismatch for img_in.weight: copying a param with shape torch.Size([3072, 384]) from checkpoint, the shape"
    " in current model is torch.Size([3072, 64]).",
)


@pytest.mark.parametrize(
    ("network", "function", "cause"),
    [
        ("Flux", "load_flow_model", "wrong model file"),
        ("AutoEncoder", "load_ae", "wrong model file"),
        ("CLIPTextModel", "load_clip_l", "wrong model file"),
        ("T5EncoderModel", "load_t5xxl", "wrong model file"),
        ("Another", "load_flow_model", "wrong model file"),
        ("LoRANetwork", "load_weights", "state of another network"),
        ("Flux", "load_state", "state of another network"),
    ],
)
def test_a_base_model_of_another_shape_is_a_wrong_file_and_no_state(network: str, function: str, cause: str) -> None:
    """A Fill or Control model does not fit; what is read while resuming is a state, whatever it is of."""
    lines = [line.replace("NETWORK", network).replace("FUNCTION", function) for line in MISFIT]
    if function in ("load_weights", "load_state"):
        lines = [lines[0], *lines[3:]]
    assert found(lines) == cause


LOADS = "2026-02-01 17:36:18 INFO     Loading state dict from /models/flux1-dev.safetensors      flux_utils.py:118"


@pytest.mark.parametrize("behind", [(), ("Killed",), tuple(ends.LAUNCHER.splitlines()[1:])])
def test_a_sigkill_while_models_are_loaded_is_most_likely_memory(behind: tuple[str, ...]) -> None:
    """Nothing proves it, so the cause stays; the advice is about RAM, and none of it is said once a step was made."""
    stepped = "steps:  1%|#| 1/100 [00:01<01:39]"
    for lines, memory in {(LOADS, *behind): True, (LOADS, stepped, *behind): False}.items():
        diagnosis = diagnose(ENDED, Evidence(exit=Exit(signal=9), lines=lines))
        assert diagnosis.cause == KILLED
        assert ("memory (RAM)" in diagnosis.words, "GB of RAM" in diagnosis.advice) == (memory, memory)
        assert ("Nothing has to be done" in diagnosis.advice) is not memory


def test_a_keeper_that_is_gone_as_well_was_ended_from_outside() -> None:
    """It outlives every end of its trainer; only what the output says explains it better."""
    diagnosis = diagnose(ENDED, Evidence(exit=Exit(), lines=["steps:  1%|#| 1/100 [00:01<01:39]"]))
    assert (diagnosis.cause, diagnosis.origin, diagnosis.again) == ("killed from outside", OUTSIDE, True)
    assert found(MISFIT, Exit()) == "wrong model file"
    assert found(["steps:  1%|#| 1/100 [00:01<01:39]"], Exit(code=3)) == "ended without a word"


MISSED = "[rank0]: fluxguard.errors.RanksMissing: barrier 'x' (#4); rank 1 (pid 4) is dead: its process has ended"
HEAD = "[rank0]: Traceback (most recent call last):"
ROUND_ENDED = "E1121 22:18 24142 torch/api.py:1002] failed (exitcode: 1) local_rank: 0 (pid: 1) of binary: python"


def root(rank: int, code: int) -> list[str]:
    """Return what torch's launcher says of the rank that ended first."""
    said = f"  rank      : {rank} (local_rank: {rank})"
    return ["Root Cause (first observed failure):", "[0]:", said, f"  exitcode  : {code} (pid: 4)"]


@pytest.mark.parametrize(
    ("code", "cause"), [(-9, KILLED), (-11, "crashed (SIGSEGV)"), (1, "ranks missing"), (-6, "ranks missing")]
)
def test_who_missed_a_rank_does_not_say_how_that_rank_ended(code: int, cause: str) -> None:
    """The launcher does, where it was a signal; an abort may come from what our own error leaves behind."""
    assert found([HEAD, MISSED, *root(1, code)]) == cause


def test_an_error_of_an_earlier_round_is_no_cause() -> None:
    """Its agent started the ranks again, and then they ended by something else."""
    disagree = "[rank0]: fluxguard.errors.RanksDisagree: the ranks have come to different places: rank 0 is at #1"
    later = [HEAD, '[rank0]:   File "a.py", line 1', "[rank0]: ValueError: nobody knows"]
    assert found([HEAD, disagree, ROUND_ENDED, *later, ROUND_ENDED]) == "error in the trainer (ValueError)"
    assert found([*later, ROUND_ENDED, HEAD, disagree, ROUND_ENDED]) == "ranks disagree"


def test_what_a_rank_survived_before_the_ranks_met_is_no_cause() -> None:
    """Torch says of which rank a traceback is once they have; an optional package that is missing was survived."""
    survived = [HEAD.removeprefix("[rank0]: "), "ModuleNotFoundError: No module named 'triton'"]
    failed = [
        HEAD.removeprefix("[rank0]: "),
        "fluxguard.errors.SetupFailed: rank 1: torch: is 2.1.0, but rank 0 has 2.2.0",
    ]
    assert found([*survived, *failed]) == "setup failed"
    assert found([*failed, *survived]) == "setup failed"


def test_a_crash_while_collectives_are_debugged_says_so() -> None:
    """Some versions of torch crash by it: neither the machine nor the model is to blame."""
    crash = Evidence(exit=Exit(signal=11), debugging=True)
    assert "TORCH_DISTRIBUTED_DEBUG=DETAIL" in diagnose(ENDED, crash).words
    assert "--debug-distributed" in diagnose(ENDED, crash).advice
    assert "GPU driver" not in diagnose(ENDED, crash).advice
    plain = diagnose(ENDED, replace(crash, debugging=False))
    assert "DETAIL" not in plain.words + plain.advice


@pytest.mark.parametrize("cause", ["ranks cannot connect", "collective timed out"])
def test_advice_of_several_ranks_names_whose_option_it_is(cause: str) -> None:
    """And a trainer that is not known is told no option of another launcher."""
    advice = BY_NAME[cause].advice
    assert re.search(r"--main_process_port of accelerate|--ddp_timeout of sd-scripts", advice)
    foreign = diagnose(ENDED, Evidence(lines=[str(dict(SAID)[cause].example)], foreign=True))
    assert foreign.cause == cause
    assert "_port" not in foreign.advice
    assert "_timeout" not in foreign.advice
