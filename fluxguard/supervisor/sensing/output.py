"""What the trainer's log says: a tail that follows the file, and a pure reading of its lines.

sd-scripts writes its bar with carriage returns and no newline, refreshes it twice a step, and glues log lines to its
end; rich wraps paths at 80 columns. So lines are split at both, and only numbers are read, never paths. Of a trainer
that is not known the bars and the lines that most trainers share are understood.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

_BAR = re.compile(
    r"(?<!validation )steps:\s+\d+%\|[^|]*\|\s*(?P<done>\d+)/(?P<total>\d+)\s*"
    r"\[[\d:?]+<(?P<eta>[\d:?]+)[^\]]*?(?:avr_loss=(?P<loss>[-+\w.]+))?\]"
)
"""The bar of sd-scripts: once it was seen, nothing else counts its steps."""
_STEPS = "steps:"
_COUNT = re.compile(r"(?:^|[\s|:(])(\d+)/(\d+)\s*\[(?:[\d:]+<(?P<eta>[\d:?]+))?")
_UNENDING = re.compile(r"(?:^|[\s|:])(\d+)it \[\d+:\d+")
_TRAINS = re.compile(r"\b(?:steps?|training|iterations?)\b", re.IGNORECASE)
_STEP = re.compile(
    r"""(?:^|[\s{\[,(|])["']?(?:(?:global|train|current)[_ ])?(?:steps?|iter(?:ation)?)["']?\s*[:=]?\s*\[?\s*"""
    r"(?P<done>\d+)(?:\s*(?:/|of)\s*(?P<total>\d+))?(?![\w.]|/)"
)
"""This and the next two are searched for in lower case."""
_LOSS = re.compile(
    r"""\b(?:(?:avr|avg|train|step|mean|total|smooth)[_ ])?loss["']?\s*[:=]\s*"""
    r"([-+]?(?:\d+\.?\d*(?:e[-+]?\d+)?|nan|inf(?:inity)?))"
)
_EPOCH = re.compile(r"^epoch (\d+)/(\d+)\s*$")
_ANY_EPOCH = re.compile(r"""\bepoch["']?\s*[:=]?\s*\[?\s*(\d+)(?:\s*(?:/|of)\s*(\d+))?(?![\w.])""")
_BATCHES = re.compile(r"num batches per epoch\b.*:\s*(\d+)\s*$")
_PLANNED = re.compile(r"total optimization steps\b.*:\s*(\d+)\s*$", re.IGNORECASE)
_DEVICE = re.compile(r"accelerator device: (\w+)")
_FAILING = ("error", "exception", "fail", "cannot", "could not", "unable", "timed out", "timeout", "refused", "denied")
_WARNS = re.compile(r"\bWARNING\b|\bwarn:|Warning: ")
_TRIES_AGAIN = re.compile(r"\bretry|\bretries\b|\btimed? ?out\b", re.IGNORECASE)
_NUMBERS = re.compile(r"0x[0-9a-f]+|\d+(?:\.\d+)?", re.IGNORECASE)

_HEAD = 1 << 18
"""Bytes of the beginning of a very long log: the totals are there."""
_READ_AT_ONCE = 1 << 18
_READ_IN_A_FLOOD = 1 << 16
_BACKLOG = 1 << 20
"""Bytes that a reader may be behind; what is older is passed over, so that a flood or a log of gigabytes costs no more
than a short one."""
_FAR, _FLOOD = 4, 32
_TAIL_LINES = 200
_LONGEST_LINE = 4000
_LONGEST_ERROR = 160
_MOST_ERRORS = 16


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
    total: int = 0
    """Steps that a trainer which is not known counts to; 0 until said. A guess: nothing is verified by it."""
    device: str = ""
    """What the trainer says it trains on; empty until said."""
    known: bool = False
    """Whether the bar of sd-scripts was seen, which alone counts its steps from then on."""
    errors: Mapping[str, int] = field(default_factory=dict)
    """Lines that tell of something failing, numbers left out, by how often they came."""
    said: Mapping[str, str] = field(default_factory=dict)
    """The same as they first came, for people; they may hold secrets."""


def shown_after(shown: Shown, lines: Iterable[str]) -> Shown:
    """Return what has been shown once `lines` have been read too."""
    bar = ""
    for line in lines:
        # Of the states of one bar in a row the last one says it all.
        if bar and not line.startswith(_STEPS):
            shown = _after(shown, bar)
        bar = line if line.startswith(_STEPS) else ""
        shown = shown if bar else _after(shown, line)
    return _after(shown, bar) if bar else shown


def _after(shown: Shown, line: str) -> Shown:
    # Most lines say nothing: what is quickly seen not to be in them is not searched for.
    if _STEPS in line and (bar := _BAR.search(line)):
        done, total = int(bar["done"]), int(bar["total"])
        moved = done > shown.bar or not shown.known
        # The bar is drawn once more when anything else prints; only a step that came ends another phase.
        phase = "first step" if done == 0 and shown.phase == "load" else "step" if moved and done else shown.phase
        loss = _number(bar["loss"]) if bar["loss"] else shown.loss
        eta = _seconds(bar["eta"])
        return replace(shown, bar=done, loss=loss, eta=eta, phase=phase, count=(done, total), known=True)
    if "[" in line and (count := _COUNT.search(line)):
        return _any_bar(shown, line, count)
    if "it [" in line and (unending := _UNENDING.search(line)):
        return replace(shown, count=(int(unending[1]), 0))
    if line.startswith("epoch") and (epoch := _EPOCH.search(line)):
        phase = "first step" if shown.bar == 0 else "step"
        return replace(shown, epoch=int(epoch[1]), epochs=int(epoch[2]), phase=phase)
    if "num batches" in line and (batches := _BATCHES.search(line)):
        return replace(shown, batches_per_epoch=int(batches[1]))
    if "optimization steps" in line and (planned := _PLANNED.search(line)):
        return replace(shown, planned=int(planned[1]))
    if "saving checkpoint:" in line:
        return replace(shown, phase="saving", saves=shown.saves + 1)
    if "generating sample images" in line:
        return replace(shown, phase="sampling")
    if "caching latents" in line:
        return replace(shown, phase="latent cache")
    if "caching Text Encoder outputs" in line:
        return replace(shown, phase="text cache")
    if "accelerator device" in line and (device := _DEVICE.search(line)):
        return replace(shown, device=device[1])
    low = line.lower()
    if not shown.known and (told := _any_step(shown, low)) is not shown:
        return told
    return _any_error(shown, line) if any(word in low for word in _FAILING) and not _harmless(line) else shown


def _harmless(line: str) -> bool:
    """Whether a line only warns: whoever wrote it goes on, unless it has to try again."""
    return bool(_WARNS.search(line)) and not _TRIES_AGAIN.search(line)


def _any_bar(shown: Shown, line: str, count: re.Match[str]) -> Shown:
    """Read a bar in the manner of tqdm. One that speaks of steps or shows a loss is that of the training."""
    done, total = int(count[1]), int(count[2])
    counted = replace(shown, count=(done, total))
    loss = _LOSS.search(line.lower(), count.end())
    if shown.known or "validation" in line:
        return counted
    if not (loss or _TRAINS.search(line, 0, count.start())):
        # A bar without a name that stands where the steps do counts them.
        return replace(counted, total=total) if done and done == shown.bar and not shown.total else counted
    counted = stepped(counted, done, total)
    eta = _seconds(count["eta"]) if count["eta"] else None
    return replace(counted, eta=eta, loss=_number(loss[1]) if loss else shown.loss)


def _any_step(shown: Shown, line: str) -> Shown:
    """Read a line of a trainer without a bar, such as `step 12/100`, `{'step': 12, 'loss': 0.1}` or `epoch 3/10`."""
    loss = _LOSS.search(line) if "loss" in line else None
    step = _STEP.search(line) if "step" in line or "iter" in line else None
    if step and (step["total"] or loss or "=" in step[0] or ":" in step[0]):
        shown = stepped(shown, int(step["done"]), int(step["total"] or 0))
    epoch = _ANY_EPOCH.search(line) if "epoch" in line else None
    if epoch and (epoch[2] or loss):
        shown = replace(shown, epoch=int(epoch[1]), epochs=int(epoch[2] or shown.epochs))
    return replace(shown, loss=_number(loss[1])) if loss else shown


def stepped(shown: Shown, done: int, total: int = 0) -> Shown:
    """Return what is shown by a trainer that is not known after it said how many steps it has done; 0 is no total."""
    phase = "step" if done and done != shown.bar else "first step" if not done else shown.phase
    total = total or shown.total or (shown.count[1] if done and done == shown.count[0] else 0)
    return replace(shown, bar=done, total=total, phase=phase, count=(done, total))


def _any_error(shown: Shown, line: str) -> Shown:
    """Count a line that tells of something failing; of many kinds those that came often are kept."""
    text = _NUMBERS.sub("#", line.strip()[:_LONGEST_ERROR])
    errors = {**shown.errors, text: shown.errors.get(text, 0) + 1}
    said = {text: line.strip(), **shown.said}
    if len(errors) > _MOST_ERRORS:
        rare = min((one for one in errors if one != text), key=lambda one: errors[one])
        del errors[rare], said[rare]
    return replace(shown, errors=errors, said=said)


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
    """Follows a log from a position on; a log that was cut short is followed from its new beginning.

    What it costs is bounded: of what it is too far behind of it reads the beginning and the end only.
    """

    def __init__(self, path: Path, position: int) -> None:
        self._path = path
        self.position = position
        self.skipped = 0
        """Bytes that were passed over."""
        self._begun = False
        self._rest = b""
        self.lines: deque[str] = deque(maxlen=_TAIL_LINES)
        """The last lines, the repeated states of one bar kept once."""

    def read(self) -> list[str]:
        """Return the lines that are new, each ended by a newline or a carriage return; a whole bar counts as ended.

        They may be a part of what is new: none are left when `position` has come to an end.
        """
        data = self._data()
        if not data:
            return []
        *whole, self._rest = (self._rest + data).replace(b"\r", b"\n").split(b"\n")
        if self._rest.rstrip().endswith(b"]") or len(self._rest) > _LONGEST_LINE:
            whole, self._rest = [*whole, self._rest], b""
        lines = [line[:_LONGEST_LINE].decode("utf-8", "replace") for line in whole if line.strip()]
        for line in lines:
            self._remember(line)
        return lines

    def _data(self) -> bytes:
        try:
            with self._path.open("rb", buffering=0) as file:
                size = file.seek(0, 2)
                if size < self.position:
                    self.position, self._rest = 0, b""
                behind = size - self.position
                if not behind:
                    return b""
                at_once = _READ_AT_ONCE
                if behind > _BACKLOG and not self._begun:
                    at_once = _HEAD
                elif behind > _BACKLOG:
                    self._skip(size - _READ_IN_A_FLOOD)
                self._begun = True
                file.seek(self.position)
                data = file.read(at_once) or b""
        except OSError:
            return b""
        self.position += len(data)
        return data

    def _skip(self, to: int) -> None:
        """Pass over what nobody can read in time; the line it begins in is torn, and never ends well."""
        self.skipped += to - self.position
        self.position, self._rest = to, b""

    def _remember(self, line: str) -> None:
        if self.lines and _is_bar(line) and _is_bar(self.lines[-1]):
            self.lines.pop()
        self.lines.append(line)


def _is_bar(line: str) -> bool:
    return line.startswith(_STEPS) or ("[" in line and _COUNT.search(line) is not None)


def bound(path: Path, largest: int, *, flood: bool = False) -> bool:
    """Cut a log that outgrew `largest` bytes: its old part is copied beside it, the trainer writes on from the start.

    Of one that outgrew them by far, or within moments (`flood`), its end alone is copied. Return whether it was cut.
    The trainer appends, so that no write can land behind the cut; what it writes while we copy is lost.
    """
    try:
        size = path.stat().st_size
        if size <= largest:
            return False
        kept = largest // _FLOOD if flood else largest if size > _FAR * largest else size
        _copy_end(path, path.with_suffix(".log.1"), size, kept)
        with path.open("r+b") as file:
            file.truncate(0)
    except OSError:
        return False
    return True


def _copy_end(source: Path, target: Path, size: int, kept: int) -> None:
    """Copy the last `kept` of `size` bytes, and no more: who writes faster than we copy must not be followed."""
    with source.open("rb") as old, target.open("wb") as copy:
        old.seek(size - kept)
        while kept > 0 and (data := old.read(min(_READ_AT_ONCE, kept))):
            copy.write(data)
            kept -= len(data)
