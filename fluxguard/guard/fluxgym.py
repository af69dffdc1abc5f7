"""What FluxGym's page calls: its Start button's command made a supervised one, and the truth at the end of it.

It runs in the page's process, and whatever goes wrong here must not keep a training from starting: then the page's own
command is what it was.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

from fluxguard.rundir import RunDir, read_json

Command = TypeVar("Command", bound="str | list[str]")

_STAMP = ".fluxguard-stamp.json"
_ROOT = Path(__file__).resolve().parents[2]
_SCRIPTS = (".sh", ".bat", ".cmd")
_SHELLS = ("bash", "sh", "/bin/bash", "/bin/sh")
_BATCH = "{name}-supervised.bat"
_ANSWERS_WITHIN = 60.0
_CONCLUDES = ("finished", "stopped")
_bare: set[str] = set()
"""Train scripts that were started without us."""


def supervised(command: Command, *, root: Path = _ROOT, windows: bool = os.name == "nt") -> Command:
    """Return the shell command that runs a train script under `fluxguard supervise`, given the one that runs it bare.

    The Python of fluxguard is the one that hardened this FluxGym. Where that is gone, or says that it cannot supervise
    this script, `command` is returned as it is, and why is written to standard error. A list of words gives a list.
    """
    script = None
    try:
        script = _script(command, windows=windows)
        _bare.discard(str(script))
        words = [_python(root), "-I", "-m", "fluxguard", "supervise", "--follow", "--replace", str(script)]
        _ask([*words[:-1], "--check", words[-1]], root)
        if isinstance(command, list):
            return words  # type: ignore[return-value]
        return _batch(words, script) if windows else shlex.join(words)  # type: ignore[return-value]
    except (_Cannot, OSError, ValueError) as error:
        _bare.add(str(script))
        sys.stderr.write(f"fluxguard: WARNING: this training is NOT supervised: {error}\n")
        sys.stderr.flush()
        return command


class _Cannot(Exception):
    """Raised when a training cannot be supervised."""


def _script(command: str | list[str], *, windows: bool) -> Path:
    """Return the train script that a command runs: `bash "PATH"`, or just PATH, as on Windows."""
    if isinstance(command, list):
        words = list(command)
    else:
        words = [command.strip().strip('"')] if windows else shlex.split(command)
    if words[:1] and words[0] in _SHELLS:
        del words[0]
    if len(words) != 1 or not words[0].endswith(_SCRIPTS):
        raise _Cannot(f"no train script is seen in the command {command!r}")
    return Path(words[0])


def _python(root: Path) -> str:
    stamp = read_json(root / _STAMP) or {}
    python = stamp.get("python")
    again = f"run `fluxguard apply-patches {root}` again"
    if not isinstance(python, str):
        raise _Cannot(f"{root / _STAMP} does not say which Python fluxguard runs on; {again}")
    if not os.path.isfile(python):
        raise _Cannot(f"the Python that fluxguard ran on is gone ({python}); {again}")
    return python


def _ask(words: Sequence[str], root: Path) -> None:
    """Raise unless fluxguard answers that it can supervise this."""
    try:
        done = subprocess.run(
            words,
            cwd=root,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=_ANSWERS_WITHIN,
        )
    except subprocess.TimeoutExpired:
        raise _Cannot(f"fluxguard did not answer within {_ANSWERS_WITHIN:g} s") from None
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines()
        raise _Cannot(said[-1] if said else f"fluxguard ended with exit code {done.returncode}")


def _batch(words: Sequence[str], script: Path) -> str:
    """Write the command into a file of its own beside the script, and return its path.

    The page hands its command to cmd.exe as the one word of a list, and such a word can hold no quotes.
    """
    path = script.with_name(_BATCH.format(name=script.stem))
    line = " ".join(f'"{word}"' for word in words).replace("%", "%%")
    path.write_bytes(f"@chcp 65001 >nul\r\n@{line}\r\n".encode())
    return str(path)


def outcome(text: str, script: str) -> str:
    """Return what to tell when the page's command has ended: `text`, which says that it is done, or what is true."""
    try:
        return _outcome(text, Path(script))
    except (OSError, ValueError):
        return text


def _outcome(text: str, script: Path) -> str:
    started = script.stat().st_mtime
    # Of a training that is not supervised, the ledger of an earlier one knows nothing.
    last = {} if str(script) in _bare else _last(RunDir(script.parent).ledger)
    if last.get("event") == "finished" and os.path.isfile(str(last.get("weights"))):
        return text
    if last.get("at", 0) >= started:
        if last["event"] == "stopped":
            return f"The training has STOPPED: {last.get('reason')} Start it again to resume."
        return f"The training goes on without this page; see it by: fluxguard status {shlex.quote(str(script.parent))}"
    if any(path.stat().st_mtime >= started for path in script.parent.glob("*.safetensors")):
        return text
    return "The training has ended WITHOUT a new LoRA file. The end of the train log says why."


def _last(ledger: Path) -> dict[str, Any]:
    """Return what concluded the run, or the attempt that began since; empty when there is neither."""
    try:
        lines = ledger.read_bytes().splitlines()
    except OSError:
        return {}
    for line in reversed(lines):
        try:
            event = json.loads(line)
        except ValueError:
            continue
        if isinstance(event, dict) and event.get("event") in (*_CONCLUDES, "attempt"):
            return event
    return {}
