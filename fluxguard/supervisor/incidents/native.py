"""Stacks below Python: where C code stands, from whichever debugger there is."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from fluxguard.clock import Clock
from fluxguard.supervisor.incidents.bounded import NotFound, ask

_LONGEST = 200_000
"""Characters of one process: a hundred threads of a training."""
_FRAMES = "48"
_TOOLS = {
    "gdb": ("-nx", "-q", "-batch", "-iex", "set auto-load off", "-ex", "set pagination off", "-ex"),
    "eu-stack": ("-n", _FRAMES, "-p"),
}
_SHORTEST_TIME = 0.5
"""Below it nobody answers, and half an attached debugger only costs."""


def stacks(pids: Sequence[int], clock: Clock, *, until: float) -> str:
    """Return the native stacks of processes, until a time on the monotonic clock; each says why it has none.

    Raises NotFound when there is nothing to ask or nobody to answer.
    """
    if not pids:
        raise NotFound("no process is there to be looked at")
    tools = list(_tools())
    if not tools:
        raise NotFound("none of py-spy, gdb and eu-stack is installed")
    return "\n".join(f"process {pid}\n{_one(pid, tools, clock, until)}\n" for pid in pids)


def _tools() -> Iterator[tuple[str, ...]]:
    beside = Path(sys.executable).with_name("py-spy.exe" if os.name == "nt" else "py-spy")
    spy = str(beside) if beside.exists() else shutil.which("py-spy")
    if spy and not sys.platform.startswith("darwin"):
        yield (spy, "dump", "--native", "--pid")
    for name, words in _TOOLS.items():
        if found := shutil.which(name):
            yield (found, *words)


def _one(pid: int, tools: Sequence[tuple[str, ...]], clock: Clock, until: float) -> str:
    refused = []
    for tool in tools:
        name = Path(tool[0]).stem
        left = until - clock.monotonic()
        if left < _SHORTEST_TIME:
            refused.append("no time left")
            break
        said = ask(_command(tool, name, pid), left)
        text = said.out.strip()
        if _is_stack(name, text) and (said.code == 0 or name == "gdb"):
            return f"by {name}\n{text[:_LONGEST]}"
        refused.append(f"{name}: {'no answer in time' if said.code is None else _last(said.err) or 'no stacks'}")
    return f"not available ({'; '.join(refused)})"


def _command(tool: tuple[str, ...], name: str, pid: int) -> tuple[str, ...]:
    return (*tool, f"thread apply all bt {_FRAMES}", "-p", str(pid)) if name == "gdb" else (*tool, str(pid))


def _is_stack(name: str, text: str) -> bool:
    return bool(text) and (name != "gdb" or "#0 " in text)


def _last(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""
