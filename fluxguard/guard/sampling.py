"""Sample images: one that fails costs itself, never the training.

Whatever sampling leaves half-changed when it fails is put back: random states, train mode, devices, swapped blocks.
With several processes an error is passed on: to leave one rank's sampling early is safe only if all ranks do.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import math
import random
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

from fluxguard import limits
from fluxguard.errors import DeadlineExceeded
from fluxguard.guard import pulse, survived, waits
from fluxguard.guard.deadlines import positive

logger = logging.getLogger(__name__)

T = TypeVar("T")

_WHAT = "sampling an image"
_SWAPPING = ("blocks_to_swap", "double_blocks_to_swap", "single_blocks_to_swap")
"""Where a model says how many of its blocks are swapped; the names of three eras."""


class _Sampling:
    """The image that is sampled now."""

    def __init__(self) -> None:
        self.began = 0.0
        self.limit = math.inf
        self.failed = 0
        self.before: _Chance | None = None
        """The random states before the first image of this call."""

    def restore(self) -> None:
        """Put the random states back, if an image was begun."""
        if self.before is not None:
            self.before.restore()


_sampling = _Sampling()


def samples(function: Callable[..., Any]) -> Callable[..., Any]:
    """Let training go on when `function`, which samples images if it is time to, raises.

    Called at every step, and nearly always not to sample: it keeps nothing until an image is begun. Outside of a
    trainer nothing is changed.
    """

    @functools.wraps(function)
    def surviving(*args: Any, **kwargs: Any) -> Any:
        if not _alone(args, kwargs):
            return function(*args, **kwargs)
        outer, _sampling.before = _sampling.before, None
        try:
            return function(*args, **kwargs)
        except Exception as error:  # noqa: BLE001  (any error of a sampler: what is lost is a picture)
            _sampling.restore()
            _report(error)
            return None
        finally:
            _sampling.before = outer

    return surviving


def sample(function: Callable[..., Any]) -> Callable[..., Any]:
    """Let sampling go on with the next image when `function`, which makes one, raises or takes too long."""

    @functools.wraps(function)
    def surviving(*args: Any, **kwargs: Any) -> Any:
        if not _alone(args, kwargs):
            return function(*args, **kwargs)
        before = [_Model(model) for model in _models(args, kwargs)]
        chance = _Chance()
        _sampling.before = _sampling.before or chance
        _sampling.began, _sampling.limit = time.monotonic(), positive(limits.current().wait.sample)
        try:
            return function(*args, **kwargs)
        except Exception as error:  # noqa: BLE001  (any error of a sampler: what is lost is a picture)
            _report(error)
            for model in before:
                model.restore()
            chance.restore()
            return None
        finally:
            _sampling.limit = math.inf

    return surviving


def denoising(steps: Iterable[T]) -> Iterator[T]:
    """Yield from `steps`, tell of each one, and raise DeadlineExceeded between two of them when the image is late."""
    for done, step in enumerate(steps):
        if _sampling.limit < math.inf:
            pulse.progress(done)
            if time.monotonic() - _sampling.began > _sampling.limit:
                raise DeadlineExceeded(_WHAT, _sampling.limit, limit="sample")
        yield step


def _alone(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Return whether this is a trainer of one process; only then is an error of its own to be survived."""
    if not pulse.begun():
        return False
    given = (*args, *kwargs.values())
    accelerator = next((one for one in given if hasattr(one, "unwrap_model")), None)
    return accelerator is not None and getattr(accelerator, "num_processes", 1) == 1


def _report(error: Exception) -> None:
    _sampling.failed += 1
    if (heart := pulse.heart()) is not None:
        heart.unsampled = _sampling.failed
        heart.beat()
    logger.warning("sampling failed and is left out; the training goes on")
    survived.show(error)
    # The frames hold the tensors of the image, which a full GPU needs back.
    traceback.clear_frames(error.__traceback__)
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    if cuda is not None and cuda.is_initialized():
        cuda.empty_cache()


class _Chance:
    """The random states at one moment, of every source that is in use."""

    def __init__(self) -> None:
        import torch

        self._torch = torch.get_rng_state()
        cuda: Any = torch.cuda
        self._cuda = cuda.get_rng_state() if cuda.is_initialized() else None
        self._python = random.getstate()
        numpy = sys.modules.get("numpy")
        self._numpy: Any = numpy.random.get_state() if numpy is not None else None

    def restore(self) -> None:
        import torch

        torch.set_rng_state(self._torch)
        if self._cuda is not None:
            torch.cuda.set_rng_state(self._cuda)
        random.setstate(self._python)
        if self._numpy is not None:
            sys.modules["numpy"].random.set_state(self._numpy)


def _models(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any]:
    """Return the models among the arguments of a sampling function, those in lists too, and those of a pipeline."""
    from torch import nn

    found: dict[int, Any] = {}
    for given in (*args, *kwargs.values()):
        several = given if isinstance(given, (list, tuple)) else (given,)
        for one in several:
            parts = [one] if isinstance(one, nn.Module) else list(getattr(one, "components", {}).values())
            found.update((id(part), part) for part in parts if isinstance(part, nn.Module))
    return list(found.values())


class _Model:
    """How one model stands before an image is sampled with it."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._modes = [(module, module.training) for module in model.modules()]
        devices = {parameter.device for parameter in model.parameters()}
        self._device = devices.pop() if len(devices) == 1 else None
        self._offloaders = [(one, getattr(one, "forward_only", None)) for one in _offloaders(model)]

    def restore(self) -> None:
        """Put it back as it stood. A block swap that does not come back ends the process, as anywhere."""
        for module, training in self._modes:
            module.training = training
        for offloader, _ in self._offloaders:
            for future in list(offloader.futures.values()):
                # Its own error is one with that of the sampling, which is being reported.
                with contextlib.suppress(Exception):
                    waits.result(future, "block swap")
            offloader.futures.clear()
        for offloader, forward_only in self._offloaders:
            if forward_only is not None:
                offloader.forward_only = forward_only
        if any(getattr(self._model, name, None) for name in _SWAPPING):
            self._model.prepare_block_swap_before_forward()
        if self._device is not None and any(p.device != self._device for p in self._model.parameters()):
            self._model.to(self._device)


def _offloaders(model: Any) -> list[Any]:
    """Return what moves the blocks of a model in the background."""
    own = (one for one in vars(model).values() if hasattr(one, "__dict__"))
    return [one for one in own if isinstance(vars(one).get("futures"), dict)]
