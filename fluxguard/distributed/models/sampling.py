"""Which samples a rank trains, so that every optimizer step has the same ones for any number of ranks."""

from __future__ import annotations

from collections.abc import Iterator, Sized

from fluxguard.distributed import world
from fluxguard.errors import InputError


class Sampler:
    """The share of one rank in a common order, which depends on seed and epoch alone; for a DataLoader's `sampler`.

    torch's DistributedSampler with three differences: it knows how many samples an optimizer step takes over all
    ranks, so that a step has the same samples on one rank and on four; it leaves out the incomplete step at the end of
    an epoch (other samples in each) in place of repeating samples; and it can go on in the middle of an epoch without
    loading what is trained already.
    """

    def __init__(
        self, dataset: Sized, *, batch_size: int, step_size: int | None = None, seed: int = 0, shuffle: bool = True
    ) -> None:
        """`batch_size`: samples of one rank in a batch. `step_size`: samples of all ranks in an optimizer step.

        Without `step_size` each batch is a step. Raises InputError when one of them is less than 1, or `step_size` no
        whole number of batches for this many ranks, or larger than the dataset.
        """
        for name, size in (("batch_size", batch_size), ("step_size", step_size)):
            if size is not None and size < 1:
                raise InputError(name, f"must be at least 1, not {size}")
        here = world.current()
        self.rank, self.ranks = here.rank, here.size
        self.batch_size = batch_size
        self.step_size = step_size or batch_size * self.ranks
        self.seed, self.shuffle = seed, shuffle
        self.epoch = self.begun = 0
        self._known = len(dataset)
        self.accumulation = accumulation(self.step_size, batch_size, self.ranks)
        """Batches of one rank in an optimizer step."""
        self.steps = self._known // self.step_size
        """Optimizer steps in an epoch."""
        self._go_on = (0, 0)
        if not self.steps:
            raise InputError("step_size", f"{self.step_size} samples are more than the {self._known} of the dataset")

    def go_on(self, epoch: int, batch: int) -> None:
        """Say that `batch` batches of `epoch` are trained already; `load_state` does. Other epochs are whole."""
        self._go_on = (epoch, batch)
        self.set_epoch(epoch)

    def set_epoch(self, epoch: int) -> None:
        """Choose the order of `epoch`, counted from 0; before each of them, or the order stays that of before.

        `begun` is then the number of its batches that are trained already.
        """
        self.epoch = epoch
        self.begun = self._go_on[1] if epoch == self._go_on[0] else 0

    def __len__(self) -> int:
        """Return how many samples of this epoch are left for this rank."""
        return self.steps * self.step_size // self.ranks - self.begun * self.batch_size

    def __iter__(self) -> Iterator[int]:
        """Yield the samples of this epoch that are left for this rank."""
        order = self._order()[: self.steps * self.step_size]
        return iter(order[self.begun * self.batch_size * self.ranks + self.rank :: self.ranks])

    def _order(self) -> list[int]:
        if not self.shuffle:
            return list(range(self._known))
        import torch

        generator = torch.Generator().manual_seed(self.seed + self.epoch)  # as torch's own does it
        order: list[int] = torch.randperm(self._known, generator=generator).tolist()
        return order


def accumulation(step_size: int, batch_size: int, ranks: int) -> int:
    """Return the batches of one rank in an optimizer step. Raises InputError when that is no whole number."""
    batches, left = divmod(step_size, batch_size * ranks)
    if left or not batches:
        why = f"{step_size} samples are no whole number of batches of {batch_size} on {ranks} rank(s)"
        raise InputError("step_size", f"{why}: choose a multiple of {batch_size * ranks}")
    return batches


def batch_after(samples: int, batch_size: int, ranks: int) -> int | None:
    """Return after how many batches of an epoch so many samples are trained by all ranks; None between two batches."""
    batches, left = divmod(samples, batch_size * ranks)
    return None if left else batches
