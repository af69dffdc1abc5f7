"""What is done to a run from outside: signals, files, disks. Each takes the run, and may raise Missed."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from fluxguard.rundir import RunDir
from tests.campaign.play import Missed, Play

Act = Callable[[Play], None]

DISK = "48m"
"""A disk that takes the output of a run, and little more."""
LEAVE = 1 << 15
CGROUPS = Path("/sys/fs/cgroup")
MEMORY = 2 << 30
"""Twice what a run of the miniature takes, all its processes together."""


def signalled(whom: Callable[[Play], psutil.Process | None], number: int, when: Act = Play.at_step) -> Act:
    """Send a signal to some process of a run."""

    def act(play: Play) -> None:
        when(play)
        process = play.until(lambda: whom(play))
        assert process is not None
        try:
            process.send_signal(number)
        except psutil.Error:
            raise Missed from None

    return act


def asked(name: str, words: str = "", *, at_step: bool = False) -> Act:
    """Ask the miniature for a fault, at a random step if wanted."""
    return lambda play: play.ask(name, f"{play.some_step()} {words}" if at_step else words)


def in_turn(*acts: Act) -> Act:
    """Do one after the other."""

    def act(play: Play) -> None:
        moments = []
        for one in acts:
            one(play)
            moments.append(play.moment)
        play.moment = ", then ".join(moments)

    return act


def kill_supervisor(play: Play) -> None:
    """Kill the supervisor, and start another one some time later."""
    play.supervisor.kill()
    play.supervisor.wait()
    later = play.chance.uniform(0.0, 2.0)
    time.sleep(later)
    play.supervise()
    play.moment = f"another supervisor {later:.1f} s later"


def kill_everything(play: Play) -> None:
    """End all that belongs to the run at once, as the loss of power does, and start again."""
    play.supervisor.kill()
    keeper, left = play.keeper(), play.left()
    for process in (keeper, *left):
        with contextlib.suppress(psutil.Error):
            process.kill()
    play.supervisor.wait()
    play.supervise()


def with_state(damage: Callable[[Path], None]) -> Act:
    """Kill supervisor and trainer, damage the newest state behind their backs, then start the run again."""

    def act(play: Play) -> None:
        play.at_step(play.chance.randint(7, play.steps - 4))  # a state is saved each fifth step
        play.supervisor.kill()
        play.supervisor.wait()
        for process in play.living():
            with contextlib.suppress(psutil.Error):
                process.kill()
        damage(newest_state(play.workshop.output_dir))
        play.supervise()

    return act


def newest_state(output_dir: Path) -> Path:
    """Return the state written last. Raises Missed."""
    states = [path for path in output_dir.glob("*-state") if path.is_dir()]
    states += RunDir(output_dir).states.glob("step-*")
    if not states:
        raise Missed
    return max(states, key=lambda path: path.stat().st_mtime)


def truncate(state: Path) -> None:
    """Cut its largest file in the middle."""
    path = max(state.iterdir(), key=lambda path: path.stat().st_size)
    os.truncate(path, path.stat().st_size // 2)


def flip(path: Path) -> None:
    """Change one bit in the middle of a file, or of the largest one in a folder."""
    if path.is_dir():
        path = max(path.iterdir(), key=lambda path: path.stat().st_size)
    with path.open("rb+") as file:
        file.seek(path.stat().st_size // 2)
        byte = file.read(1)[0]
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 16]))


def remove_a_file(state: Path) -> None:
    """Take the optimizer out of it."""
    (state / "optimizer.bin").unlink()


def replace_by_older(state: Path) -> None:
    """Put the weights of an older state into it, as a copy that went wrong does."""
    others = [path for path in state.parent.glob("*-state") if path != state]
    others += [path for path in state.parent.glob("*step-*") if path != state]
    source = min(others, key=lambda path: path.stat().st_mtime) / "model.safetensors" if others else None
    if source is None:
        raise Missed
    shutil.copyfile(source, state / "model.safetensors")


def forget_randoms(state: Path) -> None:
    """Leave an archive that is whole, but holds no random states: accelerate then ends with KeyError: 'step'."""
    import zipfile

    with zipfile.ZipFile(state / "random_states_0.pkl", "w") as archive:
        archive.writestr("random_states_0/data.pkl", b"\x80\x02X\x09\0\0\0no pickle.")


def caches(play: Play) -> list[Path]:
    """Return the cache files of a run."""
    return sorted((play.folder / "images").glob("*.npz"))


def with_cache(damage: Callable[[Path], None], when: Act = Play.at_step) -> Act:
    """Damage one cache file."""

    def act(play: Play) -> None:
        when(play)
        path = play.chance.choice(caches(play))
        damage(path)
        play.moment += f", {path.name}"

    return act


def now(play: Play) -> None:
    """Do it at once."""


def fifo(path: Path) -> None:
    """Put a pipe in the place of a file."""
    fresh = path.with_suffix(".fifo")
    os.mkfifo(fresh)
    fresh.replace(path)


def halve(path: Path) -> None:
    """Cut a file in the middle."""
    os.truncate(path, path.stat().st_size // 2)


def small_disk(play: Play) -> None:
    """Let the run save on a disk of its own, which is nearly full after some steps."""
    output = play.workshop.output_dir
    script = play.workshop.train_sh.read_bytes()
    _mount(play, output, "-t", "tmpfs", "-o", f"size={DISK}", "tmpfs")
    (output / "train.sh").write_bytes(script)


def fill(play: Play) -> None:
    """Leave next to no room on that disk."""
    play.at_step()
    ballast = play.workshop.output_dir / "ballast"
    room = shutil.disk_usage(play.workshop.output_dir).free - LEAVE
    with ballast.open("wb") as file, contextlib.suppress(OSError):
        for _ in range(room // LEAVE):
            file.write(bytes(LEAVE))
    play.undo.callback(ballast.unlink, missing_ok=True)


def read_only(play: Play) -> None:
    """Make the output folder one that nothing can be written to."""
    output = play.workshop.output_dir
    _mount(play, output, "--bind", str(output))
    subprocess.run(["mount", "-o", "remount,ro,bind", str(output)], check=True, capture_output=True)


def _mount(play: Play, where: Path, *words: str) -> None:
    subprocess.run(["mount", *words, str(where)], check=True, capture_output=True)
    play.mounted.callback(subprocess.run, ["umount", "-l", str(where)], check=False, capture_output=True)


def memory_groups() -> Path | None:
    """Return where groups of processes are given limits of memory, when that can be done here."""
    for folder, limit in ((CGROUPS / "memory", "memory.limit_in_bytes"), (CGROUPS, "memory.max")):
        group = folder / f"campaign-{os.getpid()}-probe"
        try:
            group.mkdir()
            there = (group / limit).exists()
            group.rmdir()
        except OSError:
            continue
        if there and os.geteuid() == 0:
            return folder
    return None


def starve(play: Play) -> None:
    """Let all of the run have little memory, as in a container, and the trainer take more: the kernel ends it then."""
    folder = memory_groups()
    if folder is None:
        raise Missed
    group = folder / f"campaign-{play.folder.name}"
    group.mkdir(exist_ok=True)
    play.mounted.callback(_without, group)
    (group / ("memory.max" if folder == CGROUPS else "memory.limit_in_bytes")).write_text(str(MEMORY))
    play.within = ("sh", "-c", f'echo $$ > {group}/cgroup.procs && exec "$@"', "sh")
    play.ask("step.hog", str(play.some_step()))


def _without(group: Path) -> None:
    with contextlib.suppress(OSError):
        group.rmdir()


def forget_beats(play: Play) -> None:
    """Remove the files of the heartbeat, as a cleaner of temporary files does."""
    play.at_step()
    for path in play.run.beats().glob("beat.*"):
        path.unlink()


def suspend_all(seconds: float) -> Act:
    """Stop everything for some time, the supervisor too, as a suspend of the machine does."""

    def act(play: Play) -> None:
        play.at_step()
        everything = [psutil.Process(play.supervisor.pid), play.keeper(), *play.living()]
        for process in everything:
            process.send_signal(signal.SIGSTOP)
        time.sleep(seconds)
        for process in reversed(everything):
            process.send_signal(signal.SIGCONT)

    return act


def delete(state: Path) -> None:
    """Remove it altogether."""
    shutil.rmtree(state)


def sampled(name: str) -> Act:
    """Ask for a fault while a picture is made; the prompts are written first."""

    def act(play: Play) -> None:
        (play.folder / "prompts.txt").write_text("a red circle --d 7\n")
        play.ask(name)

    return act
