"""What the trainer's log says: a tail that follows the file, and a pure reading of its lines.

sd-scripts writes its bar with carriage returns and no newline, refreshes it twice a step, and glues log lines to its
end; rich wraps paths at 80 columns. So lines are split at both, and only numbers are read, never paths.
"""

from __future__ import annotations

import re
import shutil
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

_BAR = re.compile(
    r"steps:\s+\d+%\|[^|]*\|\s*(?P<done>\d+)/(?P<total>\d+)\s*"
    r"\[[\d:?]+<(?P<eta>[\d:?]+)[^\]]*?(?:avr_loss=(?P<loss>[-+\w.]+))?\]"
)
_COUNT = re.compile(r"\|\s*(\d+)/(\d+)\s*\[")
_EPOCH = re.compile(r"^epoch (\d+)/(\d+)\s*$")
_BATCHES = re.compile(r"num batches per epoch\b.*:\s*(\d+)\s*$")
_PLANNED = re.compile(r"total optimization steps\b.*:\s*(\d+)\s*$")
_SPLIT = re.compile(rb"[\r\n]")

_READ_AT_ONCE = 1 << 20
_TAIL_LINES = 200
_LONGEST_LINE = 4000


@dataclass(frozen=True, kw_only=True)
class Shown:
    """What one attempt has shown on its output so far."""

    bar: int = 0
    """Steps on the bar, which upstream counts from 0 in every process."""
    epoch: int = 0
    """The epoch, counted from 1; 0 before the first."""
    epochs: int = 0
    planned: int = 0
    """Planned optimizer steps of the whole run; 0 until said."""
    batches_per_epoch: int = 0
    loss: float | None = None
    """The averaged loss on the bar."""
    eta: float | None = None
    """Seconds to the end, as the bar estimates them."""
    phase: str = "load"
    """The phase that the lines suggest."""
    count: tuple[int, int] = (0, 0)
    """The numbers of whichever bar moved last: caching and sampling have bars of their own."""
    saves: int = 0
    """Saves begun."""


def shown_after(shown: Shown, lines: Iterable[str]) -> Shown:
    """Return what has been shown once `lines` have been read too."""
    for line in lines:
        shown = _after(shown, line)
    return shown


def _after(shown: Shown, line: str) -> Shown:
    if bar := _BAR.search(line):
        done, total = int(bar["done"]), int(bar["total"])
        moved = done > shown.bar
        # The bar is drawn once more when anything else prints; only a step that came ends another phase.
        phase = "step" if moved else ("first step" if done == 0 and shown.phase == "load" else shown.phase)
        loss = _number(bar["loss"]) if bar["loss"] else shown.loss
        eta = _seconds(bar["eta"])
        return replace(shown, bar=done, loss=loss, eta=eta, phase=phase, count=(done, total))
    if count := _COUNT.search(line):
        return replace(shown, count=(int(count[1]), int(count[2])))
    if epoch := _EPOCH.search(line):
        phase = "first step" if shown.bar == 0 else "step"
        return replace(shown, epoch=int(epoch[1]), epochs=int(epoch[2]), phase=phase)
    if batches := _BATCHES.search(line):
        return replace(shown, batches_per_epoch=int(batches[1]))
    if planned := _PLANNED.search(line):
        return replace(shown, planned=int(planned[1]))
    if "saving checkpoint:" in line:
        return replace(shown, phase="saving", saves=shown.saves + 1)
    if "generating sample images" in line:
        return replace(shown, phase="sampling")
    if "caching latents" in line:
        return replace(shown, phase="latent cache")
    if "caching Text Encoder outputs" in line:
        return replace(shown, phase="text cache")
    return shown


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _seconds(clock: str) -> float | None:
    """Return the seconds in `[H:]MM:SS`, or None for the bar's question mark."""
    try:
        seconds = 0.0
        for part in clock.split(":"):
            seconds = 60 * seconds + int(part)
    except ValueError:
        return None
    return seconds


class Tail:
    """Follows a log from a position on; a log that was cut short is followed from its new beginning."""

    def __init__(self, path: Path, position: int) -> None:
        self._path = path
        self.position = position
        self._rest = b""
        self.lines: deque[str] = deque(maxlen=_TAIL_LINES)
        """The last lines, the repeated states of one bar kept once."""

    def read(self) -> list[str]:
        """Return the lines that are new, each ended by a newline or a carriage return; a whole bar counts as ended."""
        try:
            with self._path.open("rb") as file:
                size = file.seek(0, 2)
                if size < self.position:
                    self.position, self._rest = 0, b""
                if size == self.position:
                    return []
                file.seek(self.position)
                data = file.read(_READ_AT_ONCE)
        except OSError:
            return []
        self.position += len(data)
        *whole, self._rest = _SPLIT.split(self._rest + data)
        if self._rest.rstrip().endswith(b"]") or len(self._rest) > _LONGEST_LINE:
            whole, self._rest = [*whole, self._rest], b""
        lines = [line.decode("utf-8", "replace") for line in whole if line.strip()]
        for line in lines:
            self._remember(line[:_LONGEST_LINE])
        return lines

    def _remember(self, line: str) -> None:
        if self.lines and _COUNT.search(line) and _COUNT.search(self.lines[-1]):
            self.lines.pop()
        self.lines.append(line)


def bound(path: Path, largest: int) -> bool:
    """Cut a log that outgrew `largest` bytes: its old part is copied beside it, the trainer writes on from the start.

    Return whether it was cut. The trainer appends, so that no write can land behind the cut.
    """
    try:
        if path.stat().st_size <= largest:
            return False
        shutil.copyfile(path, path.with_suffix(".log.1"))
        with path.open("r+b") as file:
            file.truncate(0)
    except OSError:
        return False
    return True
