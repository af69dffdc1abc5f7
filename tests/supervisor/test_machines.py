"""Laws of two machines: one that is cut off keeps the other neither waiting nor in the dark.

Two agents on loopback addresses, each under a supervisor of its own; what belongs to a machine is stopped or killed
with everything in it. With MACHINES=namespaces (make machines, as root) each has a network of its own, whose link goes
down: nothing is stopped or killed, and no connection is closed.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest

from fluxguard.rundir import RUN_VARIABLE, RunDir
from fluxguard.supervisor import ledger
from tests.conftest import FAULTS, ROOT

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(240),
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="loopback addresses and heartbeats in memory"),
]

OUTER = 100.0
STEPS, NEVER = 30, 5000
PROGRAM = FAULTS / "distributed" / "machines.py"
LIMITS = """
[phase.load]
patience = 30
ceiling = 30
[phase.accelerator]
patience = 30
ceiling = 30
[phase.step]
patience = 3
ceiling = 3
[watch]
evidence = 1
settle = 0.1
grace = 1
backoff = 0.2
"""
RENDEZVOUS = "last_call_timeout=1,join_timeout=20,read_timeout=3,keep_alive_interval=1,keep_alive_max_attempt=2"


def _free_port() -> int:
    with socket.socket() as door:
        door.bind(("127.0.0.1", 0))
        return int(door.getsockname()[1])


@dataclass
class Pair:
    """Two machines that train together; "a" holds the rendezvous."""

    folder: Path
    restarts = 0
    """Of an agent that lost the rendezvous."""
    addresses = ("127.0.0.1", "127.0.0.2")
    port: int = field(default_factory=_free_port)
    supervisors: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Make what the machines need."""

    @property
    def out(self) -> Path:
        """The output folder that both share."""
        return self.folder / "out"

    def start(self, name: str, steps: int, restarts: int) -> None:
        """Start a machine."""
        (self.folder / "limits.toml").write_text(LIMITS)
        here = self.addresses["ab".index(name)]
        argv = [
            *self.prefix(name), sys.executable, "-m", "fluxguard", "supervise", "--node", name,
            "--output-dir", str(self.out), "--limits", "limits.toml", "--max-restarts", str(restarts),
            "--python", sys.executable, "--",
            "torchrun", "--nnodes=1:2", "--rdzv-backend=c10d", f"--rdzv-endpoint={self.addresses[0]}:{self.port}",
            f"--rdzv-conf={RENDEZVOUS},is_host={int(name == 'a')}", f"--local-addr={here}", "--max-restarts=3",
            str(PROGRAM), str(self.out), str(steps),
        ]  # fmt: skip
        env = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "OMP_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": self.interface(name),
        }
        with (self.folder / f"{name}.log").open("wb") as log:
            self.supervisors[name] = subprocess.Popen(
                argv, cwd=self.folder, env=env, stdout=log, stderr=log, start_new_session=True
            )

    def prefix(self, name: str) -> list[str]:
        """Return the words that start something on a machine."""
        return []

    def interface(self, name: str) -> str:
        """Return the network interface of a machine."""
        return "lo"

    def silence(self, name: str) -> None:
        """Let the others hear nothing of a machine any more."""
        self.send(name, signal.SIGSTOP)

    def bring_back(self, name: str) -> None:
        """Take `silence` back."""
        self.send(name, signal.SIGCONT)

    def lose(self, name: str) -> None:
        """Take a machine away for good."""
        self.send(name, signal.SIGKILL)

    def close(self) -> None:
        """End all that is left."""
        for name, supervisor in self.supervisors.items():
            self.send(name, signal.SIGKILL)
            supervisor.wait(OUTER)

    def send(self, name: str, number: signal.Signals) -> None:
        """Signal everything of a machine, its supervisor first."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.supervisors[name].pid, number)
        for process in self.living(name):
            with contextlib.suppress(psutil.Error):
                process.send_signal(number)

    def living(self, name: str) -> list[psutil.Process]:
        """Return what trains on a machine."""
        root, found = str(RunDir(self.out, name).root), []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.environ().get(RUN_VARIABLE) == root:
                    found.append(process)
        return found

    def state(self) -> dict[str, Any]:
        """Return the newest state that the trainer has saved."""
        path = self.out / "state.json"
        return dict(json.loads(path.read_text())) if path.exists() else {"step": 0, "world": 0}

    def events(self, name: str, kind: str) -> list[ledger.Event]:
        """Return what a machine has written down."""
        return [one for one in ledger.read(RunDir(self.out, name).ledger) if one.kind == kind]

    def said(self, name: str) -> str:
        """Return what its supervisor has printed."""
        return (self.folder / f"{name}.log").read_text()

    def until(self, holds: Callable[[], bool]) -> None:
        """Wait for something."""
        began = time.monotonic()
        while not holds():
            if time.monotonic() - began > OUTER:
                pytest.fail("\n".join(f"{name}:\n{self.said(name)}" for name in self.supervisors))
            time.sleep(0.1)

    def ends(self, name: str) -> int:
        """Return the exit code of a supervisor."""
        return self.supervisors[name].wait(OUTER)

    def together(self) -> None:
        """Wait until both train."""
        self.until(lambda: self.state()["world"] == 2 and self.state()["step"] >= 3)


class Namespaces(Pair):
    """The same with a network for each, joined by a cable that can be pulled."""

    restarts = 2
    addresses = ("10.77.77.1", "10.77.77.2")

    def __post_init__(self) -> None:
        self._ip("link add fluxguard-a type veth peer name fluxguard-b")
        for name, address in zip("ab", self.addresses, strict=True):
            self._ip(f"netns add fluxguard-{name}")
            self._ip(f"link set fluxguard-{name} netns fluxguard-{name}")
            self._ip(f"-n fluxguard-{name} addr add {address}/24 dev fluxguard-{name}")
            self._ip(f"-n fluxguard-{name} link set lo up")
            self._ip(f"-n fluxguard-{name} link set fluxguard-{name} up")

    def prefix(self, name: str) -> list[str]:
        return ["ip", "netns", "exec", f"fluxguard-{name}"]

    def interface(self, name: str) -> str:
        return f"fluxguard-{name}"

    def silence(self, name: str) -> None:
        self._ip(f"-n fluxguard-{name} link set fluxguard-{name} down")

    def bring_back(self, name: str) -> None:
        """Leave it away: the one that went on alone is done, and its rendezvous with it."""

    def lose(self, name: str) -> None:
        self.silence(name)

    def close(self) -> None:
        super().close()
        for name in "ab":
            self._ip(f"netns del fluxguard-{name}")

    def _ip(self, words: str) -> None:
        subprocess.run(["ip", *words.split()], check=True, timeout=OUTER)


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    """Give two machines; nothing of them outlives the test."""
    made = (Namespaces if os.environ.get("MACHINES") == "namespaces" else Pair)(tmp_path)
    made.out.mkdir()
    yield made
    made.close()


def test_a_machine_that_falls_silent_is_gone_on_without_and_told_when_it_is_back(pair: Pair) -> None:
    """The others' ranks are ended at the limit, their agent starts a round without it from the newest state."""
    pair.start("a", STEPS, restarts=2)
    pair.start("b", STEPS, restarts=2)
    pair.together()
    pair.silence("b")
    pair.until(lambda: pair.state()["world"] == 1)
    [incident] = pair.events("a", "incident")
    assert incident.values["cause"] == "collective"
    assert [one.values["action"] for one in pair.events("a", "decision")] == ["round"]
    assert pair.ends("a") == 0
    assert len(pair.events("a", "attempt")) == 1
    assert [one.values["number"] for one in pair.events("a", "round")] == [2]
    assert pair.state() == {"step": STEPS, "world": 1}
    pair.bring_back("b")
    assert pair.ends("b") == 0, pair.said("b")
    assert "finished on a, without this machine" in pair.said("b")
    assert [pair.living(name) for name in "ab"] == [[], []]


def test_without_the_machine_that_holds_the_rendezvous_the_other_stops_and_says_so(pair: Pair) -> None:
    """As soon as its restarts are used up; what it had trained stays."""
    pair.start("a", NEVER, restarts=pair.restarts)
    pair.start("b", NEVER, restarts=pair.restarts)
    pair.together()
    pair.lose("a")
    assert pair.ends("b") == 1
    assert "The machine that holds the rendezvous is gone" in pair.said("b")
    assert "it goes on from the newest state that the trainer itself finds" in pair.said("b")
    assert pair.state()["step"] >= 3
    assert pair.living("b") == []
