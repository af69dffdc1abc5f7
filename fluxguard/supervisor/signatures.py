"""Lines of a trainer's output that name the cause of its end, and which lines tell of the end at all."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

TRAINER, OUTSIDE, MACHINE, INPUT = "trainer", "outside", "machine", "input"
"""Where a cause comes from."""


@dataclass(frozen=True)
class Signature:
    """A line in the output that names its cause."""

    pattern: re.Pattern[str]
    cause: str
    words: str
    advice: str
    origin: str
    again: bool


def _line(pattern: str, cause: str, words: str, advice: str, origin: str, again: bool) -> Signature:
    return Signature(re.compile(pattern), cause, words, advice, origin, again)


SIGNATURES = (
    _line(
        r"CUDA out of memory|torch\.(cuda\.)?OutOfMemoryError|CUBLAS_STATUS_ALLOC_FAILED",
        "GPU memory full",
        "The GPU ran out of memory.",
        "Swap more blocks (--blocks_to_swap), lower the resolution or the batch size, or close what else uses the GPU.",
        MACHINE,
        False,
    ),
    _line(
        r"No space left on device|\[Errno 28\]|Disk quota exceeded|os error 28",
        "disk full",
        "The disk is full.",
        "Free some space, then start the run again: it resumes.",
        MACHINE,
        False,
    ),
    _line(
        r"error: (unrecognized arguments|argument |the following arguments|ambiguous option).*",
        "bad argument",
        "The trainer does not accept its command line: {line}",
        "Correct the command.",
        INPUT,
        False,
    ),
    _line(
        r"^(\w+\.)*(ModuleNotFoundError|ImportError): .*",
        "missing package",
        "The trainer's environment is not complete: {line}",
        "Install the package into the trainer's environment, or name the right one with --python.",
        INPUT,
        False,
    ),
    _line(
        r"^MemoryError|DefaultCPUAllocator: can't allocate memory|Cannot allocate memory",
        "system memory full",
        "The machine ran out of memory (RAM, not the GPU's).",
        "Use fp8 model files, fewer loader workers, or a machine with more RAM.",
        MACHINE,
        False,
    ),
    _line(
        r"CacheBroken: .*|BadZipFile: .*",
        "cache file",
        "A cache file is broken: {line}",
        "If it comes again, delete the .npz files beside the images; they are made anew.",
        TRAINER,
        True,
    ),
    _line(
        r"DeadlineExceeded: reading .*",
        "file read",
        "A file gave no new byte for too long: {line}",
        "Look at the disk or network share that holds the file.",
        TRAINER,
        True,
    ),
    _line(
        r"^FileNotFoundError: .*",
        "missing file",
        "A file is missing: {line}",
        "Put the file there, then start the run again.",
        INPUT,
        False,
    ),
    _line(
        r"DataLoader worker \(pid(\(s\))? [\d, ]+\) (is killed|exited unexpectedly).*",
        "loader worker killed",
        "A DataLoader worker died: {line}",
        "If it comes again: fewer workers, and more shared memory in a container (--shm-size).",
        OUTSIDE,
        True,
    ),
    _line(
        r"CUDA error: .*|cudaError\w+|NCCL (error|WARN).*|NVRM: Xid.*",
        "GPU fault",
        "The GPU or its driver failed: {line}",
        "If it comes again: update the driver, lower the clocks, look at the temperature and the power supply.",
        MACHINE,
        True,
    ),
)


_CLOSING_LINES = 30
_SURVIVED = "fluxguard| "
"""Begins the lines of an error that the trainer survived, as the guard writes them."""
_CHAINED = ("During handling of the above exception", "The above exception was the direct cause")


def closing(lines: Sequence[str]) -> Sequence[str]:
    """Return the lines that tell how it ended: the trainer's last traceback with what it was chained to, else the end.

    The launcher raises an error of its own behind the trainer's, which says nothing.
    """
    lines = [line for line in lines if not line.startswith(_SURVIVED)]
    tracebacks = [index for index, line in enumerate(lines) if line.startswith("Traceback (most recent call last)")]
    if tracebacks and any("CalledProcessError" in line for line in lines[tracebacks[-1] :]):
        lines = lines[: tracebacks.pop()]
    if not tracebacks:
        return lines[-_CLOSING_LINES:]
    start = tracebacks.pop()
    while tracebacks and any(text in line for line in lines[max(0, start - 2) : start] for text in _CHAINED):
        start = tracebacks.pop()
    return lines[start:]
