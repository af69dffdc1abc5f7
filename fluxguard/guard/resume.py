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

import functools
import logging
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fluxguard.guard import final_weights, pulse
from fluxguard.guard.randoms import States, packed, random_states, restore, tensor
from fluxguard.manifest import Manifest

logger = logging.getLogger(__name__)


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
    step: int
    """Optimizer steps, those of all attempts."""
    trained: bool
    """Whether this process has trained a batch; only then its trainer's own count has been set."""


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """What is known of the state that a training goes on from."""

    folder: Path
    manifest: Manifest | None
    """None for a state of a trainer that was not hardened."""
    states: Mapping[str, States] | None
    """The random states by their use."""
    told: tuple[int, int] | None = None
    """The epoch, from 1, and the step that the trainer itself wrote down; its step may be that of one attempt only."""


@dataclass
class _Course:
    """This process's way through its data."""

    epoch: int = 0
    batch: int = 0
    batches_per_epoch: int = 0
    accumulation: int = 1
    steps: int = 0
    """Optimizer steps embodied when `since` batches of this epoch were."""
    since: int = 0
    trained: bool = False
    loaded: Loaded | None = None
    known: Start | None = None
    """Where the state says to go on, once the trainer has asked."""
    start: Start | None = None
    living: object = None
    """The loader whose workers live on from epoch to epoch."""
    base: States | None = None
    order: States | None = None
    starting: bool = False
    """Whether the sampler's next start is that of the training's epoch."""
    to_set: States | None = None
    """What the sampler's start is to set instead of noting."""
    generator: Any = None
    """The sampler's own, where several processes draw their common order from one."""
    drawn: str | None = None
    """What that generator is to be set to at the sampler's start."""


_course = _Course()


def begin_again() -> None:
    """Forget everything; for a process that trains twice."""
    global _course
    _course = _Course()


def loaded(state: Loaded) -> None:
    """Say what the state held that this training goes on from."""
    _course.loaded = state


def _step() -> int:
    return _course.steps + math.ceil((_course.batch - _course.since) / _course.accumulation)


def position() -> Position | None:
    """Return what a state saved now embodies, or None when the loop is not one of ours."""
    if not _course.epoch or not _course.batches_per_epoch:
        return None
    return Position(
        epoch=_course.epoch,
        batch=_course.batch,
        batches_per_epoch=_course.batches_per_epoch,
        step=_step(),
        trained=_course.trained,
    )


def states_to_save() -> dict[str, States | None]:
    """Return the random states that an exact resume from this moment needs."""
    before = _before()
    if not _course.trained and before:
        return {name: before.get(name) for name in ("base", "order", "now")}  # nothing has moved since
    return {"base": _course.base, "order": _course.order, "now": _states_here()}


def _states_here() -> States:
    states = random_states()
    if _course.generator is not None:
        states["sampler"] = packed(_course.generator.get_state())
    return states


def _before() -> Mapping[str, States]:
    return (_course.loaded.states if _course.loaded else None) or {}


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
    return _at(step, batches_per_epoch, accumulation)


def _at(step: int, batches_per_epoch: int, accumulation: int) -> Start:
    epoch, steps = divmod(step, math.ceil(batches_per_epoch / accumulation))
    return Start(epoch=epoch, batch=steps * accumulation, step=step)


def true_step(told: tuple[int, int], steps_per_epoch: int) -> int:
    """Return the true step of a state of a trainer that was not hardened.

    Its step counts one attempt only, its epoch is right; and its step is congruent to the step within the epoch.
    """
    epoch, step = told
    return max(0, epoch - 1) * steps_per_epoch + (step - 1) % steps_per_epoch + 1


def unless_finished(args: Any, initial_step: int, batches_per_epoch: int) -> int:
    """Return the step at which the training goes on, by the state that was loaded; `initial_step` where none says so.

    A training that its state shows to be finished is told so and ends here, with exit code 0 and nothing touched. Only
    where its final weights are missing or older than the state, it goes on with nothing left to train, and writes them.
    """
    state = _course.loaded
    if state is None or not batches_per_epoch:
        return initial_step
    accumulation = max(1, args.gradient_accumulation_steps)
    start = _known_start(args, initial_step, state, batches_per_epoch, accumulation)
    if start is None:
        return initial_step
    planned = int(args.max_train_steps)
    _course.known = start
    if start.step < planned:
        return start.step
    weights = final_weights.path(args)
    if final_weights.written(weights, state.folder):
        logger.warning(
            "The training is finished: the state holds %d steps and %d are planned. Nothing is trained, and %s stays "
            "as it is. To go on, plan more epochs or steps.", start.step, planned, weights,
        )  # fmt: skip
        raise SystemExit(0)
    logger.warning("All %d planned steps are trained already; only the final weights are written now.", planned)
    epochs = math.ceil(planned / math.ceil(batches_per_epoch / accumulation))
    _course.known = Start(epoch=epochs, batch=0, step=start.step)
    return planned - 1  # what the trainer's own check lets pass; `resume_point` knows better


def _known_start(
    args: Any, initial_step: int, state: Loaded, batches_per_epoch: int, accumulation: int
) -> Start | None:
    """Return where the state says to go on, and say what of it is not exact; None when it does not say."""
    given = getattr(args, "initial_step", None)
    if given is None and getattr(args, "initial_epoch", None) is not None:
        given = initial_step
    if given == 0:
        logger.warning("The steps are counted from 0 on, as was asked for, upon the weights of the state.")
        _course.loaded = None
        return None
    if state.manifest is not None:
        start = find_start(0, 0, batches_per_epoch, accumulation, state.manifest)
        if given is not None and initial_step != start.step:
            logger.warning(
                "The training goes on at step %d, which the state holds, not at %d.", start.step, initial_step
            )
        return start
    if given is not None:
        return None
    if state.told is None:
        logger.warning("The state does not say how many steps it holds: they are counted from 0 on.")
        return None
    start = _at(true_step(state.told, math.ceil(batches_per_epoch / accumulation)), batches_per_epoch, accumulation)
    logger.warning(
        "The state was saved by a trainer that is not hardened: the training goes on at step %d, but the order of the "
        "images and the noise are not those of an undisturbed training.", start.step,
    )  # fmt: skip
    return start


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
    manifest = _course.loaded.manifest if _course.loaded else None
    start = _course.known or find_start(epoch_to_start, initial_step, batches_per_epoch, accumulation, manifest)
    if manifest is not None and manifest.batches_per_epoch not in (0, batches_per_epoch):
        logger.warning(
            "the state was saved with %d batches per epoch, now there are %d: the order of the images is a new one",
            manifest.batches_per_epoch,
            batches_per_epoch,
        )
        _course.loaded = manifest = None
    if _course.known is not None or manifest is not None or start.step:
        logger.info(
            "going on after step %d: epoch %d, %d of %d batches", start.step, start.epoch + 1, start.batch,
            batches_per_epoch,
        )  # fmt: skip
        _course.start = start
    if manifest is not None:
        _course.epoch, _course.batch = manifest.epoch, manifest.batch
    _course.steps, _course.since = start.step, _course.batch
    if (heart := pulse.heart()) is not None:
        heart.step, heart.epoch, heart.batch = start.step, start.epoch + 1, start.batch
    return start.epoch, 0, start.step


def first_step(args: Any, batches_per_epoch: int) -> int:
    """Return the steps that the loaded state embodies; for a trainer that would begin at 0 after any resume."""
    initial_step = unless_finished(args, 0, batches_per_epoch)
    return resume_point(0, initial_step, 0, batches_per_epoch, args.gradient_accumulation_steps)[2]


def epochs(count: int) -> range:
    """Return the epochs to train, counted from 0; with nothing left to train the last one, without any batches."""
    return range(min(_course.start.epoch, count - 1) if _course.start else 0, count)


def bar(planned: int) -> dict[str, int]:
    """Return what a progress bar over the whole training is given."""
    start = _course.start or _course.known
    manifest = _course.loaded.manifest if _course.loaded else None
    done = start.step if start else manifest.true_step if manifest else 0  # some make the bar before they look
    return {"total": planned, "initial": done}


def loss_slot(step: int, losses: list[float]) -> int:
    """Return where the loss of a batch is kept; not behind ones that this process never saw, which count as 0."""
    return min(step, len(losses))


def batches(loader: Any, epoch: int) -> Iterator[tuple[int, Any]]:
    """Yield (number, batch) of an epoch, `epoch` counted from 0; the resumed one goes on where the state was saved."""
    if _course.start is not None and _course.start.epoch > epoch:
        return  # trained already
    start, _course.start = _course.start, None
    if start is not None and start.epoch != epoch:
        logger.warning("the training goes on in epoch %d, not in %d: the order is a new one", epoch + 1, start.epoch)
        start = None
    before = _before() if start is not None else {}
    skipped = start.batch if start is not None else 0
    _prepare(loader, epoch, skipped, before)
    _course.steps, _course.since = _step() if start is None else start.step, skipped
    _course.epoch, _course.batch = epoch + 1, skipped
    _course.starting = True
    rest = _after_skipping(iter(loader), skipped)
    if skipped and before.get("now"):
        if _course.starting:
            logger.warning("the sampler is not ours: the order of the images is a new one")
        restore(before["now"])
    for number, batch in enumerate(rest, skipped):
        _course.starting = False
        _course.trained = True
        _course.batch = number + 1
        if (heart := pulse.heart()) is not None:
            heart.batch = _course.batch
        yield number, batch


def _prepare(loader: Any, epoch: int, skipped: int, before: Mapping[str, States]) -> None:
    """Bring dataset and random states to where they were when this epoch's iterator started."""
    workers = getattr(loader, "num_workers", 0)
    lasting = workers > 0 and bool(getattr(loader, "persistent_workers", False))
    now, order = before.get("now"), before.get("order")
    _course.drawn = ((order if skipped else now) or {}).get("sampler")
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
    _course.generator = getattr(sampler, "generator", None)
    if _course.to_set is not None:
        restore(_course.to_set)
    if _course.generator is not None and _course.drawn is not None:
        _course.generator.set_state(tensor(_course.drawn))
    _course.to_set = _course.drawn = None
    _course.order = _states_here()
