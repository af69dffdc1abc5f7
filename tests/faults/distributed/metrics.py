"""Metrics of several ranks (gloo): metrics.py WORLD LIMIT CASE..., each case with ranks of its own, all at once.

Prints what each rank got, a line of JSON each: case, rank, and value or error with its seconds.
"""

import datetime
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import time
import warnings

import torch
import torch.distributed as dist
from torchmetrics import CatMetric, MeanMetric, Metric, MetricCollection, MinMaxMetric, SumMetric
from torchmetrics.image.fid import FrechetInceptionDistance

from fluxguard import distributed, limits
from fluxguard.distributed.measures import fid as fid_room
from fluxguard.distributed.measures import metrics
from fluxguard.distributed.measures.metrics import compute

WORLD, LIMIT, CASES = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3:]
BATCHES, BATCH, WIDTH = 2, 12, 8
FOREVER = 60.0


class Features(torch.nn.Module):
    """A network that a FID can use, without a download."""

    num_features = WIDTH

    def forward(self, images):
        return images.float().flatten(1)[:, :WIDTH]


def fid(rank=0, world=1):
    """Return a FID that has seen every `world`-th image of each batch."""
    metric = FrechetInceptionDistance(Features(), normalize=True)
    images = torch.rand(BATCHES, 2, BATCH, 3, 4, 4, generator=torch.Generator().manual_seed(1))
    for real, fake in images:
        metric.update(real[rank::world], real=True)
        metric.update(fake[rank::world] * 0.8, real=False)
    return metric


def updated(metric, *values):
    for value in values:
        metric.update(torch.tensor(value))
    return metric


class Fails(SumMetric):
    """Computes on no rank but the first."""

    def compute(self):
        if dist.get_rank():
            raise MemoryError("no memory on this one")
        return super().compute()


class Lost(SumMetric):
    """Loses its last rank while the states are gathered."""

    def __init__(self, number):
        super().__init__()
        self.number = number

    def sync(self, **known):
        if dist.get_rank() == WORLD - 1:
            os.kill(os.getpid(), self.number)
        super().sync(**known)


def cached_on_rank_0(rank):
    metric = updated(SumMetric(), 1.0 + rank)
    if rank == 0:
        metric._to_sync = False
        metric.compute()
        metric._to_sync = True
    return metric


# What all ranks do, one after the other in the same group; each gets a value or an error.


def good_fid(rank):
    metric = fid(rank, WORLD)
    before = metric.real_features_cov_sum.clone()
    value = compute(metric, "fid").item()
    assert torch.equal(before, metric.real_features_cov_sum)
    assert not metric._is_synced
    assert metric._cache is None
    return [value, compute(metric, "fid again").item()]


def good_cached(rank):
    return compute(cached_on_rank_0(rank)).item()


def good_collection(rank):
    metrics = MetricCollection({"sum": SumMetric(), "mean": MeanMetric(), "all": CatMetric()})
    updated(metrics, 1.0 + rank)
    found = compute(metrics)
    updated(metrics, 10.0)  # what it gathered is not in its states: it goes on with its own
    return [found["sum"].item(), found["mean"].item(), found["all"].tolist(), compute(metrics)["sum"].item()]


def good_wrapped(rank):
    return {name: value.item() for name, value in compute(MinMaxMetric(updated(SumMetric(), 1.0 + rank))).items()}


def good_expression(rank):
    return compute(updated(SumMetric(), 1.0 + rank) + updated(SumMetric(), 2.0)).item()


def good_uncached(rank):
    """Two expressions that hold one metric, which keeps no result: it is computed twice."""
    one = SumMetric(compute_with_cache=False)
    return compute(updated(one / (one + one), 1.0 + rank) * 2).item()


class Boxes(Metric):
    """Keeps what images hold as it is: so many boxes in one, so many in the other."""

    def __init__(self):
        super().__init__()
        self.add_state("boxes", [], dist_reduce_fx=None)

    def update(self, boxes):
        self.boxes.append(boxes)

    def compute(self):
        return torch.tensor([len(one) for one in self.boxes])


def good_boxes(rank):
    metric = Boxes()
    metric.update(torch.zeros(1 + rank, 4))
    metric.update(torch.zeros(9, 4))
    return sorted(compute(metric).tolist())


def good_uneven(rank):
    """The last rank has no data, the first a single item, which has no dimension."""
    counts = [1, 2, 2, 0] if WORLD == 4 else [1, 0]
    metric = CatMetric() if rank else CatMetric(nan_strategy="ignore")
    for number in range(counts[rank]):
        metric.update(torch.tensor(float(10 * rank + number)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torchmetrics', of a metric without data
        return torch.as_tensor(compute(metric, "uneven", uneven=True)).flatten().tolist()


def good_rows(rank):
    """Lists of matrices, integers, and no rows at all on the last rank."""
    metric = CatMetric()
    metric.value = [torch.full((2, 3), rank)] if rank < WORLD - 1 else []
    metric._update_count = 1
    return compute(metric).tolist()


def good_local(rank):
    metric = fid() if rank == 0 else FrechetInceptionDistance(Features(), normalize=True)
    mine = compute(metric, local=True)
    return [
        None if mine is None else mine.item(),
        distributed.decide(lambda: compute(metric, local=True).item(), "best fid"),
    ]


def good_subprocess(rank):
    features = torch.rand(2, 40, WIDTH, generator=torch.Generator().manual_seed(2))
    return distributed.decide(lambda: distributed.fid_in_subprocess(features[0], features[1]), "fid in a subprocess")


def good_mean(rank):
    mean = distributed.mean
    return [
        mean(rank),
        mean(torch.tensor(float(rank)), weight=rank),
        mean("nan" if rank else 1, weight=1 - min(rank, 1)),
    ]


def bad_value(rank):
    return distributed.mean([1.0] if rank else 1.0)


def bad_updates(rank):
    return compute(updated(SumMetric(), *range(1 + rank)), "loss").item()


def bad_kind(rank):
    return compute(updated(SumMetric() if rank else MeanMetric(), 1.0), "loss").item()


def bad_off(rank):
    return compute(updated(SumMetric(sync_on_compute=not rank), 1.0), "loss").item()


def bad_thing(rank):
    return compute(3.0 if rank else updated(SumMetric(), 1.0), "loss")


def bad_device(rank):
    """As if the group was one of NCCL, on one rank."""
    real = metrics.carried
    if rank:
        metrics.carried = lambda group: ({"cuda"}, "nccl")
    try:
        return compute(updated(SumMetric(), 1.0), "loss").item()
    finally:
        metrics.carried = real


def bad_compute(rank):
    return compute(updated(Fails(), 1.0), "loss").item()


def place(rank):
    return compute(fid(rank, WORLD), "fid").item() if rank == 0 else distributed.barrier("end of epoch")


def group_part(rank):
    """Only the first two of four ranks."""
    group = dist.new_group([0, 1])
    value = compute(updated(SumMetric(process_group=group), 1.0 + rank))
    return None if value is None else value.item()


def good(rank):
    for name, case in list(globals().items()):
        if name.startswith(("good_", "bad_")):
            tell(name, rank, lambda case=case: case(rank))
    if WORLD == 4:
        tell("group_part", rank, lambda: group_part(rank))
    tell("good_afterwards", rank, lambda: good_fid(rank))


# What breaks a group, so that each has one of its own.


def elsewhere(rank):
    tell("elsewhere", rank, lambda: place(rank))


def alone_unguarded(rank):
    tell("alone_unguarded", rank, lambda: fid(rank, WORLD).compute().item() if rank == 0 else time.sleep(FOREVER))


def alone(rank):
    tell("alone", rank, lambda: compute(fid(rank, WORLD), "fid").item() if rank != WORLD - 1 else time.sleep(FOREVER))


def cached_unguarded(rank):
    tell("cached_unguarded", rank, lambda: cached_on_rank_0(rank).compute().item())
    if rank == 0:
        time.sleep(FOREVER)  # its end would free the other


def killed(rank):
    tell("killed", rank, lambda: compute(updated(Lost(signal.SIGKILL), 1.0), "loss").item())


def stopped(rank):
    tell("stopped", rank, lambda: compute(updated(Lost(signal.SIGSTOP), 1.0), "loss").item())


def patient(rank):
    """A FID that takes longer than the others would wait for a rank that gives no sign of life."""
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(WORLD), LOCAL_WORLD_SIZE=str(WORLD))
    distributed.setup()
    slow = f"import time; time.sleep({1.6 * LIMIT}); open('result.json', 'w').write('{{\"distance\": 7.0}}')"

    def python(folder, env, words):
        return subprocess.Popen([sys.executable, "-c", slow], stdin=subprocess.PIPE, cwd=folder)

    fid_room._python = python
    zeros = torch.zeros(2, 2)

    def fid_and_end():
        try:
            return distributed.decide(lambda: distributed.fid_in_subprocess(zeros, zeros), "fid")
        finally:
            distributed.teardown()

    tell("patient", rank, fid_and_end)


def tell(case, rank, got):
    begin = time.monotonic()
    try:
        said = {"value": got()}
    except Exception as error:  # noqa: BLE001  (told to the test)
        said = {"error": type(error).__name__, "words": str(error), "ranks": getattr(error, "ranks", ())}
    said |= {"case": case, "rank": rank, "seconds": time.monotonic() - begin}
    sys.stdout.write(json.dumps(said) + "\n")
    sys.stdout.flush()


def rank_main(case, rank, folder):
    torch.set_num_threads(1)
    store = f"file://{folder}/{case}"
    timeout = datetime.timedelta(seconds=LIMIT if case.endswith("unguarded") else 10 * FOREVER)
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=WORLD, timeout=timeout)
    limits.use(barrier=FOREVER if case == "good" else LIMIT)
    globals()[case](rank)
    os._exit(0)


if __name__ == "__main__":
    print(json.dumps({"case": "one", "rank": 0, "value": fid().compute().item()}), flush=True)
    fork = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as folder:
        ranks = [fork.Process(target=rank_main, args=(case, rank, folder)) for case in CASES for rank in range(WORLD)]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join()
