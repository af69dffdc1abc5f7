"""The peers: others that bound waits or watch trainers, each installed aside and measured in the same run.

Each gets a folder of its own in .bench-peers/ (ignored by git), filled by pip without its dependencies and with the few
small ones that it imports; torch is the one of this environment, as constraints.txt pins it. One that cannot be
installed, for want of a network say, is named with the reason and left out.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.bench.measure import ROOT, Figures, environment, figures_of, say

CACHE = ROOT / ".bench-peers"
PATIENCE = 180.0
"""Seconds that one call of pip may take, and a program that says nothing."""
STUCK = 30.0
"""Seconds after which a process that should be gone is called hung, and killed."""
SHOWN = 200
POLL = 0.05


@dataclass(frozen=True)
class Peer:
    """One peer: what pip installs, and the program of ours that measures it."""

    program: str
    requirement: str = ""
    needs: tuple[str, ...] = ()
    folder: Path | None = None
    """Where its sources lie, when they are not to be installed."""


_NVRX = ("defusedxml", "pynvml")
_TORCHFT = ("opentelemetry-exporter-otlp-proto-http", "opentelemetry-sdk")
PEERS = (
    Peer("peer_nvrx", "nvidia-resiliency-ext==0.4.1", _NVRX),
    Peer("peer_nvrx", "nvidia-resiliency-ext", _NVRX),
    Peer("peer_torchft", "torchft", _TORCHFT),
    Peer("peer_torchft", "torchft-nightly", _TORCHFT),
    Peer("peer_file_timer"),
)


def others() -> dict[str, Figures]:
    """Measure every peer that can be installed and return its figures by its name and version."""
    told: dict[str, Figures] = {}
    for peer in (*PEERS, *_given()):
        try:
            paths = _installed(peer)
            name = _name(peer, paths)
            if name in told:
                continue  # the newest is the one we have already
            say(f"measuring {name}")
            told[name] = figures_of(peer.program, env=environment({}, *paths))
            if peer.program == "peer_file_timer":
                told[name]["late"] = _late_file_timer()
        except subprocess.CalledProcessError as error:
            what = "installable" if "pip" in error.cmd else "measurable"
            say(f"{peer.requirement or peer.program}: not {what} here: {_reason(error)}")
        except (OSError, subprocess.TimeoutExpired, ValueError) as error:
            say(f"{peer.requirement or peer.program}: not measurable here: {error}")
    return told


def _given() -> tuple[Peer, ...]:
    """Return the peer whose sources the user has: what is newer than any release."""
    folder = os.environ.get("BENCH_NVRX")
    return (Peer("peer_nvrx", needs=_NVRX, folder=Path(folder).resolve()),) if folder else ()


def _installed(peer: Peer) -> tuple[Path, ...]:
    """Return the folders in which a peer and its dependencies lie, filled if they are not yet."""
    if not peer.requirement and not peer.folder:
        return ()  # it is in torch itself
    paths = [peer.folder or _fill(CACHE / peer.requirement, "--no-deps", peer.requirement)]
    return (*paths, _fill(CACHE / f"{peer.program}-needs", *peer.needs))


def _fill(folder: Path, *what: str) -> Path:
    if not folder.exists():
        say(f"installing {' '.join(what)}")
        CACHE.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE) as name:
            fresh = Path(name) / "fresh"
            pip = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check"]
            pip += ["--only-binary", ":all:", "-c", str(ROOT / "constraints.txt"), "--target", str(fresh), *what]
            subprocess.run(
                pip, check=True, timeout=PATIENCE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
            )
            fresh.rename(folder)
    return folder


def _name(peer: Peer, paths: Sequence[Path]) -> str:
    if not paths:
        return "torch FileTimer"
    found = next(paths[0].glob("*.dist-info"), None)
    if found is None:
        return "nvidia-resiliency-ext (BENCH_NVRX)"
    name, version = found.stem.split("-")[:2]
    return f"{name.replace('_', '-')} {version}"


def _reason(error: subprocess.CalledProcessError) -> str:
    lines = (error.stderr or "").strip().splitlines() or [f"exit code {error.returncode}"]
    telling = [line for line in lines if "rror" in line] or lines
    return telling[-1].strip()[:SHOWN]


def _late_file_timer() -> float:
    """Return how late torch's FileTimer ends a worker, with its defaults: it kills its own process with it."""
    from tests.bench.peer_file_timer import LIMIT

    command = [sys.executable, "-m", "tests.bench.peer_file_timer", "late"]
    with subprocess.Popen(command, env=environment({}), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        process.stdout.readline()
        began = time.monotonic()
        try:
            process.wait(STUCK)
        except subprocess.TimeoutExpired:
            process.kill()
        return time.monotonic() - began - LIMIT


class HangingLoader:
    """torch's own DataLoader with a stopped worker and a timeout of 1 s, started now and looked at later."""

    def __init__(self, folder: Path) -> None:
        self._log = folder / "loader.log"
        with self._log.open("wb") as log:
            command = [sys.executable, "-m", "tests.bench.peer_loader"]
            self._process = subprocess.Popen(
                command, env=environment({}), stdout=log, stderr=log, start_new_session=True
            )

    def outcome(self) -> str:
        """Return what it did within STUCK of its error, or of its first batch if it raised none; and end it."""
        outer = time.monotonic() + PATIENCE
        try:
            while (since := self._since()) is None or time.monotonic() < since[1] + STUCK:
                if self._process.poll() is not None or time.monotonic() > outer:
                    return f"torch DataLoader: gone within {time.monotonic() - since[1]:.1f} s" if since else ""
                time.sleep(POLL)
            told = "its error" if since[0] == b"raised" else "its first batch, and without an error"
            return f"torch DataLoader (timeout=1): not gone {STUCK:.0f} s after {told}"
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def _since(self) -> tuple[bytes, float] | None:
        """Return the last thing it has told, and when that was."""
        told = re.findall(rb"(begun|raised) (\S+)\n", self._log.read_bytes())
        return (told[-1][0], float(told[-1][1])) if told else None
