"""Exact resume: the true step, the same order of the images, and the same noise as the training that was cut off.

What was measured on the real trainer, and what this module does about it:

- The sampler draws the order of an epoch from the global random state when its iterator starts: that state (the
  *order* state) is noted in every epoch, and set again in the resumed one.
- Which worker loads which batch, and which batch is a worker's first, changes what is trained. So the batches before
  the resumed one are really loaded and thrown away, after which the random states of the save (the *now* states) are
  set.
- Workers that live over epochs still hold the epoch before in their copy of the dataset when an epoch starts, and
  they keep the seed they were started with (the *base* state).
"""

from __future__ import annotations

import base64
import functools
import logging
import math
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from fluxguard.guard import pulse
from fluxguard.manifest import Manifest

logger = logging.getLogger(__name__)

States = dict[str, Any]
"""Random states as plain values, as JSON holds them."""


@dataclass(frozen=True, kw_only=True)
class Start:
    """Where a training begins or goes on."""

    epoch: int
    """Counted from 0, as the trainer's loop does."""
    batch: int
    """Batches of that epoch that are trained already."""
    step: int
    """Optimizer steps embodied in the weights."""


@dataclass(frozen=True, kw_only=True)
class Position:
    """What a state saved now embodies."""

    epoch: int
    """Counted from 1."""
    batch: int
    """Batches of that epoch."""
    batches_per_epoch: int
    accumulation: int
    """Batches per optimizer step."""

    @property
    def step(self) -> int:
        """Optimizer steps, when every epoch was trained in full."""
        per_epoch = math.ceil(self.batches_per_epoch / self.accumulation)
        return (self.epoch - 1) * per_epoch + math.ceil(self.batch / self.accumulation)


@dataclass
class _Course:
    """This process's way through its data."""

    epoch: int = 0
    batch: int = 0
    batches_per_epoch: int = 0
    accumulation: int = 1
    manifest: Manifest | None = None
    loaded: Mapping[str, States] | None = None
    start: Start | None = None
    living: object = None
    """The loader whose workers live on from epoch to epoch."""
    base: States | None = None
    order: States | None = None
    starting: bool = False
    """Whether the sampler's next start is that of the training's epoch."""
    to_set: States | None = None
    """What the sampler's start is to set instead of noting."""


_course = _Course()


def begin_again() -> None:
    """Forget everything; for a process that trains twice."""
    global _course
    _course = _Course()


def loaded(manifest: Manifest | None, states: Mapping[str, States] | None) -> None:
    """Say what the state held that this training goes on from."""
    _course.manifest = manifest
    _course.loaded = states


def position() -> Position | None:
    """Return what a state saved now embodies, or None when the loop is not one of ours."""
    if not _course.epoch or not _course.batches_per_epoch:
        return None
    return Position(
        epoch=_course.epoch,
        batch=_course.batch,
        batches_per_epoch=_course.batches_per_epoch,
        accumulation=_course.accumulation,
    )


def states_to_save() -> dict[str, States | None]:
    """Return the random states that an exact resume from this moment needs."""
    return {"base": _course.base, "order": _course.order, "now": random_states()}


def find_start(
    epoch_to_start: int, initial_step: int, batches_per_epoch: int, accumulation: int, manifest: Manifest | None
) -> Start:
    """Return where to go on: by the manifest where there is one, else by what the trainer worked out.

    The trainer's own `initial_step` is a number of batches that it has lessened by `epoch_to_start` epochs.
    """
    steps_per_epoch = math.ceil(batches_per_epoch / accumulation)
    if manifest is not None and manifest.batches_per_epoch == batches_per_epoch:
        whole = manifest.batch >= batches_per_epoch
        return Start(epoch=manifest.epoch - (not whole), batch=0 if whole else manifest.batch, step=manifest.true_step)
    if manifest is not None:
        step = manifest.true_step
    elif initial_step:
        step = (initial_step + epoch_to_start * batches_per_epoch) // accumulation
    else:
        step = epoch_to_start * steps_per_epoch
    epoch, steps = divmod(step, steps_per_epoch)
    return Start(epoch=epoch, batch=min(steps * accumulation, batches_per_epoch), step=step)


def resume_point(
    epoch_to_start: int, initial_step: int, global_step: int, batches_per_epoch: int, accumulation: int = 1
) -> tuple[int, int, int]:
    """Return `epoch_to_start`, `initial_step` and `global_step` as they truly are.

    `initial_step` is 0 from here on, because `batches` skips for itself, and counts what it skips.
    """
    accumulation = max(1, accumulation)
    _course.batches_per_epoch = batches_per_epoch
    _course.accumulation = accumulation
    if not batches_per_epoch:
        return epoch_to_start, initial_step, global_step
    start = find_start(epoch_to_start, initial_step, batches_per_epoch, accumulation, _course.manifest)
    if _course.manifest is not None and _course.manifest.batches_per_epoch not in (0, batches_per_epoch):
        logger.warning(
            "the state was saved with %d batches per epoch, now there are %d: the order of the images is a new one",
            _course.manifest.batches_per_epoch,
            batches_per_epoch,
        )
        _course.loaded = None
    if _course.manifest is not None or start.step:
        logger.info(
            "going on after step %d: epoch %d, %d of %d batches", start.step, start.epoch + 1, start.batch,
            batches_per_epoch,
        )  # fmt: skip
        _course.start = start
    if (heart := pulse.heart()) is not None:
        heart.step, heart.epoch, heart.batch = start.step, start.epoch + 1, start.batch
    return start.epoch, 0, start.step


def batches(loader: Any, epoch: int) -> Iterator[tuple[int, Any]]:
    """Yield (number, batch) of an epoch, `epoch` counted from 0; the resumed one goes on where the state was saved."""
    start, _course.start = _course.start, None
    if start is not None and start.epoch != epoch:
        logger.warning("the training goes on in epoch %d, not in %d: the order is a new one", epoch + 1, start.epoch)
        start = None
    before = (_course.loaded or {}) if start is not None else {}
    skipped = start.batch if start is not None else 0
    _prepare(loader, epoch, skipped, before)
    _course.epoch, _course.batch = epoch + 1, 0
    _course.starting = True
    rest = _after_skipping(iter(loader), skipped)
    if skipped and before.get("now"):
        if _course.starting:
            logger.warning("the sampler is not ours: the order of the images is a new one")
        restore(before["now"])
    for number, batch in enumerate(rest, skipped):
        _course.starting = False
        _course.batch = number + 1
        if (heart := pulse.heart()) is not None:
            heart.batch = _course.batch
        yield number, batch


def _prepare(loader: Any, epoch: int, skipped: int, before: Mapping[str, States]) -> None:
    """Bring dataset and random states to where they were when this epoch's iterator started."""
    workers = getattr(loader, "num_workers", 0)
    lasting = workers > 0 and bool(getattr(loader, "persistent_workers", False))
    now, order = before.get("now"), before.get("order")
    if now is None:
        _course.to_set = None
    else:
        # Without living workers the copies of the dataset start from the beginning in every epoch.
        if epoch and (lasting or not workers) and hasattr(loader.dataset, "set_current_epoch"):
            loader.dataset.set_current_epoch(epoch)
        if skipped:
            base, _course.to_set = before.get("base"), order
        elif lasting:
            base, _course.to_set = before.get("base"), now
        else:
            base, _course.to_set = now, None
        restore(base or now)
    if not lasting or _course.living is not loader:
        _course.base = random_states()
    _course.living = loader if lasting else None


def _after_skipping(iterator: Iterator[Any], count: int) -> Iterator[Any]:
    for done in range(count):
        next(iterator)
        pulse.progress(done + 1, count)
    return iterator


@functools.cache
def _sampler_class() -> Any:
    from torch.utils.data import RandomSampler

    class NotedSampler(RandomSampler):
        """A RandomSampler that notes the random states from which it draws its order, or sets them."""

        def __iter__(self) -> Iterator[int]:
            _sampler_starts(self)
            yield from super().__iter__()

    return NotedSampler


def noted_sampler(dataset: Any, generator: Any = None) -> Any:
    """Return a RandomSampler for `dataset` whose order an exact resume can repeat."""
    return _sampler_class()(dataset, generator=generator)


def _sampler_starts(sampler: Any) -> None:
    if not _course.starting:
        return
    _course.starting = False
    own = getattr(sampler, "generator", None)
    if _course.to_set is not None:
        restore(_course.to_set)
        if own is not None and "sampler" in _course.to_set:
            own.set_state(_tensor(_course.to_set["sampler"]))
        _course.to_set = None
    _course.order = random_states()
    if own is not None:  # of several processes, which draw their common order from a generator of its own
        _course.order["sampler"] = _packed(own.get_state())


def random_states() -> States:
    """Return the random states of this process, of every source that a training draws from, as plain values."""
    import numpy
    import torch

    version, inner, gauss = random.getstate()
    legacy: Any = numpy.random.get_state()
    name, keys, at, has_gauss, cached = legacy
    states: States = {
        "torch": _packed(torch.get_rng_state()),
        "python": [version, list(inner), gauss],
        "numpy": [str(name), base64.b64encode(keys.tobytes()).decode(), int(at), int(has_gauss), float(cached)],
    }
    if torch.cuda.is_available():
        states["cuda"] = _packed(torch.cuda.get_rng_state())
    return states


def restore(states: States) -> None:
    """Set the random states of this process to what `random_states` returned, maybe in another process."""
    import numpy
    import torch

    version, inner, gauss = states["python"]
    random.setstate((version, tuple(inner), gauss))
    name, keys, at, has_gauss, cached = states["numpy"]
    words = numpy.frombuffer(base64.b64decode(keys), dtype=numpy.uint32)
    numpy.random.set_state((name, words, at, has_gauss, cached))
    torch.set_rng_state(_tensor(states["torch"]))
    if "cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state(_tensor(states["cuda"]))


def _packed(state: Any) -> str:
    return base64.b64encode(bytes(state.tolist())).decode()


def _tensor(packed: str) -> Any:
    import torch

    return torch.tensor(list(base64.b64decode(packed)), dtype=torch.uint8)
