"""Laws of a patched FluxGym, as its user meets it: a page that runs the train script, and what its death does."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fluxguard.clock import SystemClock
from fluxguard.errors import FluxguardError
from fluxguard.rundir import RunDir, write_json
from fluxguard.supervisor import stopping
from fluxguard.supervisor.showing import status
from tests.conftest import ROOT
from tests.supervisor.conftest import FAKE

pytestmark = [pytest.mark.integration, pytest.mark.timeout(90)]

OUTER = 60.0
PAGE = '''\
import os, subprocess, sys
import fluxguard

class Runner:
    """Runs a command as FluxGym's log view does: a child of the page, ended when nobody looks any more."""
    def run_command(self, command, cwd):
        process = subprocess.Popen(command, cwd=cwd, shell=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        try:
            for line in process.stdout:
                yield line.decode()
        finally:
            process.terminate()

def start_training(sh_filepath):
    command = f"bash \\"{sh_filepath}\\""
    runner = Runner()
    cwd = os.path.dirname(os.path.abspath(__file__))
    yield from runner.run_command([fluxguard.supervised(command)], cwd=cwd)
    yield fluxguard.outcome("Training Complete", sh_filepath)

shown = start_training(sys.argv[1])
for line in shown:
    print(line, end="", flush=True)
    if len(sys.argv) > 2 and sys.argv[2] in line:
        shown.close()
        print("closed", flush=True)
        break
'''


class Gym:
    """A FluxGym of our own: its page, its trainer and the vendored guard."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "flux gym"
        self.script = self.root / "outputs" / "x" / "train.sh"
        self.script.parent.mkdir(parents=True)
        (self.root / "app.py").write_text(PAGE)
        (self.root / "sd-scripts").mkdir()
        (self.root / "sd-scripts" / FAKE.name).write_text(FAKE.read_text())
        shutil.copytree(ROOT / "fluxguard" / "guard", self.root / "fluxguard" / "guard")
        for path in (ROOT / "fluxguard").glob("*.py"):
            if path.name != "__main__.py":
                shutil.copy(path, self.root / "fluxguard")
        write_json(self.root / ".fluxguard-stamp.json", {"python": sys.executable})
        self.pages: list[subprocess.Popen[str]] = []

    def start(self, *flags: str, close_at: str = "", step: float = 0.03) -> subprocess.Popen[str]:
        """Write the train script as FluxGym does, and press its button."""
        self.script.write_text(
            f"{shlex.quote(sys.executable)} \\\n  sd-scripts/{FAKE.name} \\\n"
            f'  --output_dir "{self.script.parent}" \\\n  --output_name x --save_every_n_steps 4 {" ".join(flags)}\\\n'
        )
        words = [sys.executable, "app.py", str(self.script), *([close_at] if close_at else [])]
        env = {**os.environ, "FAKE_STEP": str(step), "FAKE_FAULTS": str(self.root)}
        page = subprocess.Popen(
            words, cwd=self.root, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, bufsize=1
        )
        self.pages.append(page)
        return page

    def ends(self, page: subprocess.Popen[str]) -> str:
        """Wait for the end of a page and return what it showed."""
        return page.communicate(timeout=OUTER)[0]

    def until(self, state: str, *, phase: str | None = None) -> status.Status:
        """Wait for a state of the run."""
        deadline = time.monotonic() + OUTER
        while time.monotonic() < deadline:
            seen = status.read(RunDir(self.script.parent))
            if seen is not None and seen.state == state and phase in (None, seen.phase):
                return seen
            time.sleep(0.05)
        pytest.fail(f"never {state}")


@pytest.fixture
def gym(tmp_path: Path) -> Iterator[Gym]:
    """A FluxGym in an empty folder; its run is stopped at the end."""
    made = Gym(tmp_path)
    yield made
    for page in made.pages:
        page.kill()
        page.communicate()
    with contextlib.suppress(FluxguardError):
        stopping.stop(RunDir(made.script.parent), SystemClock())


def test_the_button_shows_a_supervised_training_to_its_end(gym: Gym) -> None:
    """What the trainer prints, what fluxguard says, and that it is done."""
    shown = gym.ends(gym.start())
    assert "attempt 1 starts from the beginning" in shown
    assert "steps:" in shown
    assert "finished and verified: 40 steps" in shown
    assert shown.endswith("Training Complete")


@pytest.mark.parametrize("how", ["closed", "killed"])
def test_a_dead_page_harms_nothing(gym: Gym, how: str) -> None:
    """A closed tab ends the page's child, SIGKILL the page: the training goes on, is watched, and finishes."""
    page = gym.start("--max_train_epochs 8", close_at="attempt 1" if how == "closed" else "")
    seen = gym.until("running", phase="step")
    if how == "killed":
        page.send_signal(signal.SIGKILL)
    page.wait(timeout=OUTER)
    assert seen.step < 80
    seen = gym.until("finished")
    assert (seen.attempts, seen.applied_steps) == (1, 80)


def test_a_page_that_comes_back_shows_the_same_training(gym: Gym) -> None:
    """Nobody starts a second one on the same folder; changed settings are not taken for a new run while it lives."""
    gym.ends(gym.start("--max_train_epochs 8", close_at="attempt 1", step=0.05))
    shown = gym.ends(gym.start("--max_train_epochs 9"))
    assert "is going on in this folder" in shown
    assert "finished and verified: 80 steps" in shown
    assert "attempt 2" not in shown


def test_a_finished_training_is_left_alone(gym: Gym) -> None:
    """The same settings once more have nothing to do, and that is said."""
    gym.ends(gym.start())
    shown = gym.ends(gym.start())
    assert "nothing to do" in shown
    assert shown.endswith("Training Complete")


def test_changed_settings_begin_anew_and_keep_what_was(gym: Gym) -> None:
    """As the button always did, except that nothing is overwritten."""
    gym.ends(gym.start())
    shown = gym.ends(gym.start("--max_train_epochs 5"))
    assert "finished and verified: 50 steps" in shown
    assert [path.name for path in gym.script.parent.glob("old-*/*.safetensors")] == ["x.safetensors"]


def test_a_dead_training_is_not_called_complete(gym: Gym) -> None:
    """With the reason."""
    shown = gym.ends(gym.start("--no_such_flag "))
    assert "The training has STOPPED" in shown
    assert "--no_such_flag" in shown
    assert "Training Complete" not in shown


def test_without_fluxguard_it_trains_as_before(gym: Gym) -> None:
    """And says so."""
    write_json(gym.root / ".fluxguard-stamp.json", {"python": str(gym.root / "gone")})
    shown = gym.ends(gym.start())
    assert "NOT supervised" in shown
    assert not (gym.script.parent / ".fluxguard").exists()
    assert shown.endswith("Training Complete")


def test_a_script_that_cannot_be_read_trains_as_before(gym: Gym) -> None:
    """The user's own edit of it is not refused by us."""
    page = gym.start("| cat ")
    assert "NOT supervised" in (shown := gym.ends(page))
    assert "a pipe is not read" in shown
    assert shown.endswith("Training Complete")
