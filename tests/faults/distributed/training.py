"""One rank of two that wraps, loads, saves and fails in every way, and says what came of it; cases by their names."""

import contextlib
import errno
import os
import random
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from fluxguard import distributed, limits
from fluxguard.distributed.models import gradients
from fluxguard.distributed.saving import sealing
from fluxguard.errors import FluxguardError

RANK = int(os.environ["RANK"])
FOLDER = Path(sys.argv[1])


def model(width=4):
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(3, width), nn.Dropout(0.5), nn.Linear(width, 2))


def differs_in_values():
    one = model()
    if RANK:
        one[2].bias.data[1] += 1e-6
    distributed.wrap(one)


def differs_in_shape():
    distributed.wrap(model(4 + RANK))


def differs_in_what_is_trained():
    one = model()
    one[0].weight.requires_grad = RANK == 0
    distributed.wrap(one)


def differs_in_layers():
    distributed.wrap(model() if RANK else nn.Sequential(*model(), nn.Linear(2, 2)))


def takes_rank_0s_values():
    one = model()
    one[0].weight.data += RANK
    return same(distributed.wrap(one, from_rank_0=True))


def unknown_compression_on_one_rank():
    distributed.wrap(model(), compression="gzip" if RANK else None)


def sync_batchnorm_on_a_cpu():
    distributed.wrap(model(), sync_batchnorm=True)


def wrapped_twice():
    distributed.wrap(distributed.wrap(model()))


def compressed():
    told = []
    for compression in (None, "bf16", "fp16", "powersgd"):
        wrapped = distributed.wrap(model(), compression=compression, powersgd={"start_powerSGD_iter": 2})
        optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1)
        for _ in range(4):
            wrapped(torch.randn(5, 3)).square().sum().backward()
            optimizer.step()
        told.append(f"{compression} {same(wrapped)}")
    return told


def lays_its_buckets_before_the_first_step():
    told = []
    others = ("find_unused_parameters", "static_graph", "gradient_as_bucket_view")
    for given in ({}, {"exact": False}, *({name: True} for name in others)):
        before = model()
        wrapped = distributed.wrap(before, **given)
        untouched = wrapped.module is before and all(one.grad is None for one in wrapped.parameters())
        laid = wrapped.reducer._rebuild_buckets()
        for _ in range(2):
            wrapped(torch.full((1, 3), 1.0 + RANK)).sum().backward()
        told.append((untouched, laid, same(wrapped, of=lambda one: one.grad)))
    return told


class Everything(nn.Module):
    """With all that a backward of zeros may stumble over."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5)).bfloat16()
        self.waves = nn.Parameter(torch.ones(2, dtype=torch.complex64))
        self.nothing = nn.Parameter(torch.empty(0, 3))

    def forward(self, given):
        return self.net(given).float().sum() + self.waves.abs().sum() + self.nothing.sum()


def lays_the_buckets_of_any_model_and_leaves_it_as_it_was():
    one = Everything()
    before = [*(tensor.clone() for tensor in one.state_dict().values()), torch.get_rng_state()]
    called = []
    one.register_forward_hook(lambda *given: called.append(given))
    with torch.no_grad():
        wrapped = distributed.wrap(one)
    untouched = not called and all(map(torch.equal, before, [*one.state_dict().values(), torch.get_rng_state()]))
    wrapped(torch.randn(2, 3).bfloat16()).backward()
    return untouched, wrapped.broadcast_buffers, same(wrapped, of=lambda one: one.grad)


def leaves_an_optimizer_within_the_backward_alone():
    one = model()
    called = []
    for parameter in one.parameters():
        parameter.register_post_accumulate_grad_hook(called.append)
    distributed.wrap(one)
    return len(called)


def accumulates_without_meeting():
    wrapped = distributed.wrap(model().eval())
    with wrapped.no_sync():
        wrapped(torch.full((1, 3), 1.0 + RANK)).sum().backward()
    apart = not same(wrapped, of=lambda one: one.grad)
    wrapped(torch.full((1, 3), 1.0 + RANK)).sum().backward()
    return (
        apart,
        same(wrapped, of=lambda one: one.grad),
        next(iter(wrapped.state_dict())),
        type(getattr(wrapped, "0")).__name__,
    )


def names_who_is_missing_in_a_backward():
    wrapped = distributed.wrap(model(), process_group=dist.new_group(timeout=timedelta(seconds=1)))
    loss = wrapped(torch.ones(1, 3)).sum()
    if RANK:
        time.sleep(2)
        return "did not come"
    try:
        return loss.backward()
    except RuntimeError as error:
        gradients.explain(error)  # what the end of `with setup()` does
        raise


def builds_alike():
    distributed.seed(5)
    one = distributed.load_or_init(FOLDER / "none.pt", lambda: nn.Linear(3, 2))
    return same(one), draws_apart()


def builds_apart_but_ends_alike():
    torch.manual_seed(RANK)
    return same(distributed.load_or_init(FOLDER / "none.pt", lambda: nn.BatchNorm1d(2 + 0 * RANK).to(torch.float64)))


def broken_weights():
    if RANK == 0:
        (FOLDER / "broken.safetensors").write_bytes(b"broken")
    distributed.load_or_init(FOLDER / "broken.safetensors", model)


def build_fails_on_one_rank():
    def build():
        if RANK:
            raise MemoryError("no room for it")
        return model()

    distributed.load_or_init(FOLDER / "none.pt", build)


def wrap_and_train(folder, steps, at_step=None, sampler=None):
    wrapped = distributed.wrap(model())
    distributed.seed(3)
    optimizer = torch.optim.AdamW(wrapped.parameters(), lr=0.1)
    parts = {"model": wrapped, "optimizer": optimizer, "sampler": sampler}
    at = distributed.load_state(distributed.newest_state(folder), **parts)
    for step in range(at.step + 1, steps + 1):
        optimizer.zero_grad()
        (wrapped(torch.randn(8, 3)).sum() * random.random()).backward()
        optimizer.step()
        if step == at_step:
            distributed.save_state(folder, step=step, epoch=0, batch=step, own={"rank": RANK}, **parts)
    return at, wrapped


def bits(wrapped):
    return sum(one.double().abs().sum().item() for one in wrapped.parameters()), random.random(), torch.rand(()).item()


def resumes_exactly():
    whole = bits(wrap_and_train(FOLDER / "whole", 6)[1])
    wrap_and_train(FOLDER / "cut", 5, at_step=3)
    at, wrapped = wrap_and_train(FOLDER / "cut", 6)
    return at.step, at.own, bits(wrapped) == whole, same(wrapped), draws_apart()


def a_state_that_one_rank_finds_damaged():
    for step in (1, 2):
        wrap_and_train(FOLDER / "damaged", step, at_step=step)
    if RANK == 0:
        path = FOLDER / "damaged" / "step-00000002" / sealing.MODEL
        path.write_bytes(path.read_bytes()[:-1] + b"?")
    dist.barrier()
    return distributed.newest_state(FOLDER / "damaged").name


def disks_of_their_own():
    """Each rank sees another folder, as on two machines; then one of them loses its newest state."""
    own = FOLDER / f"disk of rank {RANK}"
    for step in (1, 2):
        wrap_and_train(own, step, at_step=step)
    both = distributed.newest_state(own).name
    files = sorted(path.name for path in (own / both).iterdir())
    if RANK:
        (own / "step-00000002").rename(own / "elsewhere")
    at, _ = wrap_and_train(own, 1)
    return both, len(files), at.step, at.own


def a_disk_that_is_full_for_one_rank():
    own = FOLDER / f"full disk of rank {RANK}"
    written = sealing.manifest.write

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    if RANK:
        sealing.manifest.write = full
    try:
        wrap_and_train(own, 1, at_step=1)
    finally:
        sealing.manifest.write = written
        print(f"rank {RANK} left: {[path.name for path in own.iterdir()]}", flush=True)


def of_more_ranks_than_saved_it():
    """The state was saved by one process before this program began."""
    wrap_and_train(FOLDER / "of one", 2)


def of_more_ranks_with_a_sampler():
    sampler = distributed.Sampler(range(64), batch_size=2, step_size=8)
    at, _ = wrap_and_train(FOLDER / "of one", 4, sampler=sampler)
    sampler.set_epoch(0)
    return at.step, at.batch, at.exact, sampler.begun, len(sampler)


def same(wrapped, of=lambda one: one.data):
    """Return whether all ranks hold the same numbers."""
    mine = torch.cat([of(one).flatten() for one in wrapped.parameters()])
    others = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(others, mine)
    return all(torch.equal(mine, other) for other in others)


def draws_apart():
    """Return whether every rank draws other numbers."""
    mine = torch.tensor([random.random(), torch.rand(()).item()], dtype=torch.float64)
    others = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(others, mine)
    return len({number for other in others for number in other.tolist()}) == 2 * len(others)


def main():
    dist.init_process_group(
        "gloo", init_method=f"file://{FOLDER}/store", rank=RANK, world_size=int(os.environ["WORLD_SIZE"])
    )
    limits.use(barrier=8)
    for name in sys.argv[2:]:
        try:
            told = globals()[name]()
        except (FluxguardError, MemoryError, OSError) as error:
            told = f"{type(error).__name__}: {error}"
        print(f"rank {RANK}: {name}: {told}", flush=True)
    with contextlib.suppress(RuntimeError):
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
