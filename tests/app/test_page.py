"""Laws of the served page, on real processes: who is let in, and that a training does not depend on it."""

from __future__ import annotations

import contextlib
import json
import shlex
import socket
import sys
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fluxguard.clock import SystemClock
from fluxguard.errors import InputError
from fluxguard.rundir import RunDir
from fluxguard.supervisor import attempt as attempts
from fluxguard.supervisor import ledger, stopping
from fluxguard.supervisor.ownership import owner
from fluxguard.supervisor.showing import status
from tests.conftest import ROOT, Spawn, Spawned

pytestmark = [pytest.mark.integration, pytest.mark.timeout(400)]

APP = ROOT / "app" / "app.py"
FAKE = ROOT / "tests" / "faults" / "fake" / "flux_train_network.py"
TOKEN = "hf_" + "abcDEF0123" * 3
REQUEST = 30.0
LIMIT = 90.0
POLL = 0.1


def free_port() -> int:
    """Return a port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Page:
    """A page as a browser sees it."""

    def __init__(self, port: int) -> None:
        self.base = f"http://127.0.0.1:{port}"
        self.session = uuid.uuid4().hex

    def get(self, path: str, body: Any = None, **headers: str) -> str:
        """Return an answer as text. Raises OSError."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.base + path, data, {"Content-Type": "application/json", **headers})
        with urllib.request.urlopen(request, timeout=REQUEST) as answer:
            return str(answer.read().decode())

    def code(self, path: str, **headers: str) -> int:
        """Return the status code of an answer."""
        try:
            self.get(path, **headers)
        except urllib.error.HTTPError as error:
            with error:
                return error.code
        return 200

    def answers(self) -> bool:
        """Whether it is up."""
        try:
            return bool(self.get("/"))
        except OSError:
            return False

    def press(self, button: str, *values: Any, event: str = "click") -> str:
        """Do what a browser does when a button is pressed (or another part is used), and return what comes back."""
        config = json.loads(self.get("/config"))
        ids = {part["props"].get("elem_id"): part["id"] for part in config["components"]}
        (found,) = [one for one in config["dependencies"] if [ids[button], event] in map(list, one["targets"])]
        join = {"data": [*values, None], "fn_index": found["id"], "session_hash": self.session}
        self.get("/gradio_api/queue/join", join)
        return self.get(f"/gradio_api/queue/data?session_hash={self.session}")

    def status(self) -> dict[str, Any]:
        """Return what the page says to scripts about the newest run."""
        event = json.loads(self.get("/gradio_api/call/status", {"data": [""]}))["event_id"]
        for line in self.get(f"/gradio_api/call/status/{event}").splitlines():
            if line.startswith("data: "):
                return dict(json.loads(line.removeprefix("data: "))[0])
        raise AssertionError("no answer")


@pytest.fixture
def training(tmp_path: Path) -> Iterator[Path]:
    """Return a train.sh of a trainer that would go on for minutes; what it leaves is ended."""
    output_dir = tmp_path / "outputs" / "lora"
    output_dir.mkdir(parents=True)
    words = [sys.executable, str(FAKE), "--output_dir", str(output_dir), "--output_name", "lora", "--save_state"]
    words += ["--save_every_n_steps", "4", "--max_train_epochs", "200"]
    script = output_dir / "train.sh"
    script.write_text(f"export FAKE_STEP=0.1\nexport HF_TOKEN={TOKEN}\n{shlex.join(words)}\n")
    yield script
    with contextlib.suppress(InputError):
        stopping.stop(RunDir(output_dir), SystemClock())


@pytest.fixture
def serve(spawn: Spawn, tmp_path: Path) -> Callable[..., tuple[Spawned, Page]]:
    """Start a page on a free port of this computer and return it when it is up."""

    def start(**env: str) -> tuple[Spawned, Page]:
        port = free_port()
        app = spawn(APP, "--port", str(port), cwd=tmp_path, env=env)
        page = Page(port)
        app.when(page.answers, LIMIT)
        return app, page

    return start


def eventually(holds: Callable[[], bool]) -> None:
    """Wait until something holds. Fails after a hard limit."""
    deadline = time.monotonic() + LIMIT
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(POLL)


def test_a_wide_bind_without_a_password_is_refused(spawn: Spawn) -> None:
    """One line, exit code 2."""
    app = spawn(APP, "--host", "0.0.0.0", "--port", str(free_port()))
    assert app.ends() == 2
    assert app.output.count("\n") == 1
    assert "FLUXGUARD_PASSWORD" in app.output


def test_a_taken_port_is_refused(spawn: Spawn) -> None:
    """One line, exit code 2; no other port is tried."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        app = spawn(APP, "--port", str(taken.getsockname()[1]))
        assert app.ends() == 2
    assert app.output.count("\n") == 1
    assert "in use" in app.output


def test_an_empty_password_file_is_refused(spawn: Spawn, tmp_path: Path) -> None:
    """It lets nobody in by accident."""
    (tmp_path / "password").write_text("\n")
    assert spawn(APP, "--password-file", str(tmp_path / "password"), "--port", str(free_port())).ends() == 2


def test_a_password_closes_the_page(serve: Callable[..., tuple[Spawned, Page]]) -> None:
    """Neither the configuration nor the status is told to others, and no child inherits the password."""
    app, page = serve(FLUXGUARD_PASSWORD="open sesame")
    assert page.code("/config") == 401
    with pytest.raises(urllib.error.HTTPError) as refused:
        page.status()
    refused.value.close()
    assert refused.value.code == 401
    assert "open sesame" not in app.output


def test_a_training_outlives_the_page_and_is_found_again(
    serve: Callable[..., tuple[Spawned, Page]], training: Path
) -> None:
    """Started by a button, left alone by SIGKILL of the page, shown by the next page, stopped by a button."""
    run = RunDir(training.parent)
    first, page = serve()
    home = page.get("/")
    assert "googleapis" not in home
    assert "cdnjs" not in home
    assert page.code("/", Host="evil.example") == 400
    assert "There is no file" in page.press("fg-begin", "My own train.sh", "/nowhere/train.sh", False, None)
    assert TOKEN not in page.press("fg-begin", "My own train.sh", str(training), False, None)
    eventually(lambda: (page.status()["status"].get("step") or 0) > 2)
    first.look()
    for file in (run.ledger, run.job, training):
        assert page.code(f"/gradio_api/file={file}") in (403, 404)
    first.process.kill()
    first.process.wait(REQUEST)
    before = status.read(run)
    assert before is not None
    eventually(lambda: (after := status.read(run)) is not None and after.step > before.step + 4)

    _, page = serve()
    told = page.status()
    assert told["output_dir"] == str(run.output_dir)
    assert (told["status"]["state"], told["status"]["watched"]) == ("running", True)
    assert TOKEN not in json.dumps(told)
    page.press("fg-stop", str(run.output_dir))
    eventually(lambda: page.status()["status"]["state"] == "stopped" and owner(run) is None)
    last = attempts.last(run, ledger.read(run.ledger))
    assert last is not None
    assert last.processes() == []


def test_a_start_that_fails_is_said(serve: Callable[..., tuple[Spawned, Page]], training: Path) -> None:
    """Here the job changed since the run began."""
    run = RunDir(training.parent)
    _, page = serve()
    page.press("fg-begin", "My own train.sh", str(training), False, None)
    # Before its first step a command may still be corrected.
    eventually(lambda: page.status()["status"].get("step", 0) > 0)
    page.press("fg-stop", str(run.output_dir))
    eventually(lambda: page.status()["status"]["state"] == "stopped" and owner(run) is None)
    training.write_text(training.read_text().replace("200", "300"))
    page.press("fg-begin", "My own train.sh", str(training), False, str(run.output_dir))
    eventually(lambda: "the job changed" in page.press("fg-runs", str(run.output_dir), event="input"))
