"""What a train script says, as a value."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from fluxguard.errors import InputError

INSTEAD = "use: fluxguard supervise --output-dir DIR -- COMMAND..."


@dataclass(frozen=True, kw_only=True)
class Script:
    """One command and the little that is set up before it."""

    argv: tuple[str, ...]
    """The words of the command, as the shell would pass them."""
    cwd: Path | None = None
    """Where it changes to; relative to the folder of whoever runs it; None when it stays there."""
    env: dict[str, str] = field(default_factory=dict)
    """What it exports, in its order."""
    activate: Path | None = None
    """The virtual environment it activates; relative as `cwd` is."""


def outside(source: str, line: int, reason: str) -> InputError:
    """Return the error for a line that is outside the grammar; it names the way around it."""
    return InputError(f"{source}:{line}", f"{reason}; {INSTEAD}")


def control_character(text: str) -> tuple[int, str] | None:
    """Return the first character that no text file holds, as (line, character)."""
    for number, line in enumerate(text.split("\n"), start=1):
        for character in line:
            if (character < " " and character != "\t") or character == "\x7f":
                return number, character
    return None
