"""Laws of the scene: what can be seen is taken, what cannot says why, and nothing holds up the end."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

from fluxguard.clock import FakeClock, SystemClock
from fluxguard.limits import WatchLimits
from fluxguard.rundir import RunDir
from fluxguard.supervisor.attempt import Attempt
from fluxguard.supervisor.detecting.detectors import Symptom
from fluxguard.supervisor.detecting.observation import History
from fluxguard.supervisor.incidents import evidence, kernel, native, recorder, scene
from fluxguard.supervisor.incidents.bounded import NotFound, Task, ask
from fluxguard.supervisor.sensing import machine
from fluxguard.supervisor.sensing.identity import Identity
from fluxguard.supervisor.sensing.sensors import Sensors
from tests.conftest import Spawn

LINUX = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
MARK = "0b9f7c1e-0000-4000-8000-000000000002"


def test_work_that_hangs_is_left_behind() -> None:
    """It says so, and is waited for no longer than its time."""
    free = threading.Event()
    found, why = Task("the work", free.wait).result(0.01)
    free.set()
    assert found is None
    assert why == "not available: no answer within the time for evidence (the work)"


def test_work_that_fails_says_why() -> None:
    """Whatever it raises; what it finds comes with no reason."""

    def fails() -> None:
        raise KeyError("x")

    def finds_nothing() -> None:
        raise NotFound("gdb is not installed")

    assert Task("a", fails).result(5) == (None, "not available: KeyError: 'x'")
    assert Task("a", finds_nothing).result(5) == (None, "not available: gdb is not installed")
    assert Task("a", lambda: 7).result(5) == (7, "")


@pytest.mark.integration
def test_a_program_that_does_not_answer_is_ended() -> None:
    """Whatever it has said is gone with it; one that is not there is named."""
    began = time.monotonic()
    said = ask([sys.executable, "-c", "import time; print('x', flush=True); time.sleep(60)"], 0.3)
    assert said.code is None
    assert time.monotonic() - began < 10
    assert ask([sys.executable, "-c", "print('said')"], 20).out == "said\n"
    with pytest.raises(NotFound, match="no-such-program cannot be run"):
        ask(["no-such-program"], 1)


@LINUX
@pytest.mark.integration
def test_the_kernel_tells_what_a_process_waits_for(spawn: Spawn, tmp_path: Path) -> None:
    """The call, the file it is on, the threads; a process that is gone is said to be."""
    os.mkfifo(tmp_path / "cache.npz")
    program = spawn(
        "-c",
        f"import os; f = os.open({str(tmp_path / 'cache.npz')!r}, os.O_RDWR); print('on', flush=True); os.read(f, 1)",
    )
    program.until("on")
    one = Identity.of(program.pid)
    assert one is not None
    program.when(lambda: "read on" in kernel.described([one], {}))
    said = kernel.described([one], {program.pid: "trainer, rank 0"})
    assert f"process {program.pid} (trainer, rank 0)" in said
    assert f"system call   read on {tmp_path / 'cache.npz'}" in said
    assert "state         S (sleeping)" in said
    assert "threads       1: 1 S" in said
    program.kill()
    assert "is gone" in kernel.described([one], {})


@LINUX
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("running", "none (running)"),
        ("", "unknown (not allowed to see it)"),
        ("99999 0x1 0x2", "number 99999"),
        ("-1 0x0", "number -1"),
    ],
)
def test_a_call_that_is_not_known_is_no_guess(tmp_path: Path, text: str, said: str) -> None:
    """Its number is told."""
    (tmp_path / "syscall").write_text(text)
    assert kernel.call(tmp_path) == said


@LINUX
@pytest.mark.integration
def test_native_stacks_come_from_what_there_is(spawn: Spawn) -> None:
    """And a stopped process shows its own too."""
    program = spawn("-c", "import threading; print('on', flush=True); threading.Event().wait()")
    program.until("on")
    clock = SystemClock()
    for stopped in (False, True):
        if stopped:
            os.kill(program.pid, signal.SIGSTOP)
        said = native.stacks([program.pid], clock, until=clock.monotonic() + 15)
        assert said.startswith(f"process {program.pid}\n")
        assert "by " in said or "not available (" in said
    os.kill(program.pid, signal.SIGCONT)
    assert program.process.poll() is None


def test_native_stacks_without_time_or_tools_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is started that could not answer any more."""
    clock = FakeClock()
    monkeypatch.setattr(native, "_tools", lambda: iter([("no-such-tool", "x")]))
    assert native.stacks([7], clock, until=clock.monotonic()) == "process 7\nnot available (no time left)\n"
    monkeypatch.setattr(native, "_tools", lambda: iter([]))
    with pytest.raises(NotFound, match="none of py-spy, gdb"):
        native.stacks([7], clock, until=clock.monotonic() + 9)
    with pytest.raises(NotFound, match="no process"):
        native.stacks([], clock, until=clock.monotonic() + 9)


def test_flight_recorder_dumps_are_found_by_name_age_and_owner(tmp_path: Path) -> None:
    """Where the trainer was told to put them; no link, no folder, nothing old, nothing of another name."""
    env = {"TORCH_NCCL_DEBUG_INFO_TEMP_FILE": str(tmp_path / "nccl_trace_rank_"), "HOME": str(tmp_path)}
    for name in ("nccl_trace_rank_0", "nccl_trace_rank_11", "nccl_trace_rank_1", "nccl_trace_rank_x", "other_0"):
        (tmp_path / name).write_bytes(b"\x80\x04.")
    os.utime(tmp_path / "nccl_trace_rank_1", (1, 1))
    (tmp_path / "nccl_trace_rank_2").symlink_to(tmp_path / "nccl_trace_rank_0")
    (tmp_path / "nccl_trace_rank_3").mkdir()
    found = recorder.dumps(env, since=1000.0)
    assert [path.name for path in found] == ["nccl_trace_rank_0", "nccl_trace_rank_11"]
    usual = tmp_path / ".cache" / "torch" / "comm_lib_trace_rank_0"
    usual.parent.mkdir(parents=True)
    usual.write_bytes(b"x")
    assert recorder.dumps({"HOME": str(tmp_path)}, since=1000.0)[:1] == [usual]
    assert recorder.dumps({"TORCH_FR_DUMP_TEMP_FILE": "/no/such/folder/x"}, 0.0) == []


class Bomb:
    """What executes code when it is unpickled."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        """Say what to call."""
        return os.mkdir, ("unpickled",)


def test_a_dump_is_copied_and_never_unpickled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its bytes are the same, but for secrets, which are overwritten at their length."""
    import pickle

    monkeypatch.chdir(tmp_path)
    path = tmp_path / "trace_0"
    path.write_bytes(pickle.dumps([Bomb(), "s3cret-value"]))
    copied = recorder.copied(path, {"s3cret-value"})
    assert copied == path.read_bytes().replace(b"s3cret-value", b"*" * 12)
    assert not (tmp_path / "unpickled").exists()
    (tmp_path / "link").symlink_to(path)
    if hasattr(os, "O_NOFOLLOW"):
        with pytest.raises(OSError, match="link"):
            recorder.copied(tmp_path / "link", ())


def test_a_file_of_the_scene_is_of_bounded_size() -> None:
    """And an empty one is none."""
    seen = scene.Scene().then("a", "x" * (3 << 20), "").then("b", " ", "").then("c", None, "not available: no")
    assert len(seen.files["a"]) == 1 << 20
    assert dict(seen.missing) == {"b": "not available: nothing was to be seen", "c": "not available: no"}


@LINUX
@pytest.mark.integration
def test_everything_is_taken_of_a_program_that_hangs(
    spawn: Spawn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though a part of it never answers, and another fails: those say so, and the time limit holds."""
    never = threading.Event()
    monkeypatch.setattr(machine, "figures", lambda *_: never.wait())
    monkeypatch.setattr(machine, "disk_full", lambda *_: 1 / 0)
    run = RunDir(tmp_path / "out")
    run.create()
    program = spawn(
        "-c", "import threading; print('on', flush=True); threading.Event().wait()", env={"FLUXGUARD_ATTEMPT": MARK}
    )
    program.until("on")
    attempt = Attempt(uuid=MARK, number=1, start_step=0, log_from=0, at=0.0, keeper=None)
    history = History.begun(Sensors(run, attempt, SystemClock()).look())
    limits = WatchLimits(evidence=4.0, settle=0.1)
    began = time.monotonic()
    taken = evidence.take(run, attempt, Symptom(kind="idle", phase="step", since=1.0), history, SystemClock(), limits)
    took = time.monotonic() - began
    never.set()
    assert took < limits.evidence + limits.settle + 4.0
    assert "threading.py" in taken.evidence.stacks[program.pid]
    assert f"process {program.pid}" in taken.scene.files["processes.txt"]
    assert set(taken.scene.files) | set(taken.scene.missing) == {"processes.txt", "native-stacks.txt"}
    assert taken.figures["figures of the machine"].startswith("unknown (not available: no answer")
    assert not taken.evidence.disk_full
