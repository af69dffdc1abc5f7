"""What a command trains: which trainer of which checkout, started by what."""

from __future__ import annotations

import fnmatch
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from fluxguard.errors import InputError

COMMAND = "COMMAND"
KNOWN = (
    "flux_train_network.py",
    "train_network.py",
    "sdxl_train_network.py",
    "sd3_train_network.py",
    "lumina_train_network.py",
)
_PATTERN = "*_train_network.py"
_SEPARATORS = re.compile(r"[\\/]")
_PYTHON = re.compile(r"python(\d+(\.\d+)*)?|pypy3?|py")
_COUNTS = {"accelerate": "num_processes", "torchrun": "nproc_per_node"}


@dataclass(frozen=True, kw_only=True)
class Trainer:
    """The trainer that a command runs."""

    argv: tuple[str, ...]
    """The whole command."""
    index: int
    """Where in it the script stands."""
    script: Path
    """The script, with links followed, as Python does for the folder it imports from."""
    cwd: Path
    """Where the command runs, absolute."""
    launcher: str
    """`accelerate`, `torchrun`, `python`, or the name of whatever else starts it."""

    @property
    def checkout(self) -> Path:
        """The folder of the script."""
        return self.script.parent

    @property
    def args(self) -> tuple[str, ...]:
        """What follows the script."""
        return self.argv[self.index + 1 :]

    @property
    def processes(self) -> int | None:
        """Trainer processes it starts; None when they are several but not counted in the command.

        1 when nothing is said: what accelerate's own file says is not read.
        """
        said = dict(_named(self.argv[: self.index]))
        count = said.get(_COUNTS.get(self.launcher, ""))
        if count is None:
            devices = said.get("gpu_ids")
            if "multi_gpu" not in said:
                return 1
            return devices.count(",") + 1 if devices and devices != "all" else None
        if not count.isdecimal() or int(count) < 1:
            return None
        nodes = said.get("nnodes", "1") if self.launcher == "torchrun" else "1"
        return int(count) * int(nodes) if nodes.isdecimal() else None


def _named(head: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield name and value of the launcher's flags; both `-` and `_` separate words in them."""
    for word, following in pairwise([*head, ""]):
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            yield name.replace("-", "_"), value if equals else "" if following.startswith("--") else following


def base(word: str) -> str:
    """Return the name of a program: no folder, no `.exe`, in lower case."""
    return _SEPARATORS.split(word)[-1].lower().removesuffix(".exe")


def is_python(word: str) -> bool:
    """Whether a word of a command names a Python interpreter."""
    return _PYTHON.fullmatch(base(word)) is not None


def script_index(argv: Sequence[str]) -> int | None:
    """Return where the trainer script stands in a command, or None."""
    for index, word in enumerate(argv):
        name = _SEPARATORS.split(word)[-1]
        if name in KNOWN or fnmatch.fnmatchcase(name, _PATTERN):
            return index
    return None


def find(argv: Sequence[str], cwd: Path) -> Trainer:
    """Return the trainer that a command runs in `cwd`.

    Raises InputError when it runs none that is known, or one that is not there.
    """
    index = script_index(argv)
    if index is None:
        looked = f"looked for {', '.join(KNOWN)} and {_PATTERN}"
        raise InputError(COMMAND, f"runs no known trainer ({looked}); any other one needs --output-dir")
    here = cwd.absolute()
    script = here / argv[index]
    if not os.path.isfile(script):
        raise InputError(COMMAND, f"runs {argv[index]}, which is no file in {here}")
    head = tuple(argv[:index])
    return Trainer(argv=tuple(argv), index=index, script=script.resolve(), cwd=here, launcher=_launcher(head))


def _launcher(head: tuple[str, ...]) -> str:
    if not head:
        return "script"
    first = base(head[0])
    modules = {word for flag, word in pairwise(head) if flag == "-m"}
    if first in ("accelerate", "accelerate-launch") or any(word.startswith("accelerate") for word in modules):
        return "accelerate"
    if first == "torchrun" or modules & {"torch.distributed.run", "torch.distributed.launch"}:
        return "torchrun"
    return "python" if is_python(head[0]) else first
