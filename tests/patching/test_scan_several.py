"""Laws of the scan about several ranks: what it knows to be wrong, next to what it must leave alone."""

from __future__ import annotations

import pytest

from fluxguard.patching.scan_kinds import ON_SOME_RANKS
from fluxguard.patching.scan_sites import find

HEAD = """\
import os
import torch
import torch.distributed as dist
import torchmetrics
import fluxguard
from accelerate import Accelerator, InitProcessGroupKwargs
from fluxguard import distributed
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler as Split
from torchmetrics.image.fid import FrechetInceptionDistance
"""
PLAIN = HEAD.replace("InitProcessGroupKwargs", "DataLoaderConfiguration")


def kinds(code: str, head: str = HEAD, *, sets_epoch: bool = False) -> list[str]:
    """Return the kinds found in a file."""
    found = find(f"{head}{code}\n", sets_epoch=sets_epoch)
    return [f"{one.kind.name}{ON_SOME_RANKS if one.condition else ''}" for one in found]


METRICS = [
    "fid = FrechetInceptionDistance().to(device)\nif rank == 0:\n    fid.compute()",
    "fid = torchmetrics.image.FrechetInceptionDistance()\nif not is_main_process:\n    exit()\nfid.compute()",
    "class T:\n    def end(self):\n        if self.is_global_zero:\n            self.val_fid.compute()",
    "scores = {'a': torchmetrics.Accuracy()}\nif rank == 0:\n    for one in scores.values():\n        one.compute()",
    "def end(score: torchmetrics.Metric):\n    if rank == 0:\n        score.sync()",
    "scores = torchmetrics.MetricCollection([FrechetInceptionDistance()])\nif rank == 0:\n    scores.compute()",
]
NO_METRICS = [
    "fid = FrechetInceptionDistance()\nscore = fid.compute()\nif rank == 0:\n    print(score)",
    "fid = FrechetInceptionDistance(sync_on_compute=False)\nif rank == 0:\n    fid.compute()",
    "metric = evaluate.load('accuracy')\nif rank == 0:\n    metric.compute()",
    "fid = OurOwnFid()\nif rank == 0:\n    fid.compute()",
    "if rank == 0:\n    tiles.compute()",
]


@pytest.mark.parametrize("code", METRICS)
def test_a_metric_that_some_ranks_compute_is_named(code: str) -> None:
    """By its making, by what holds it, by its annotation, or by the name of a metric that is made elsewhere."""
    assert kinds(code) == ["metric on some ranks"]


@pytest.mark.parametrize("code", NO_METRICS)
def test_what_is_no_metric_of_all_ranks_is_left_alone(code: str) -> None:
    """Every rank computes, or this one alone was asked to, or it is another library's."""
    assert kinds(code) == []


CONDITIONS = [
    "main = dist.get_rank() == 0\nif main:\n    distributed.barrier('x')",
    "gpu = int(os.environ['LOCAL_RANK'])\nif gpu == 0:\n    distributed.barrier('x')",
    "def first():\n    return dist.get_rank() == 0\nif first():\n    distributed.barrier('x')",
    "if rank:\n    distributed.barrier('x')",
    "def run(world):\n    if world.main:\n        distributed.barrier('x')",
    "def run(here: World):\n    if not here.main:\n        return\n    distributed.barrier('x')",
    "def run(self):\n    if self.world.main and bad():\n        distributed.barrier('x')",
    "with distributed.setup() as w:\n    if w.main:\n        distributed.barrier('x')",
    "if distributed.current().main:\n    distributed.barrier('x')",
    "w = distributed.current()\nif w.main:\n    distributed.barrier('x')",
    "with distributed.on_main('x') as chosen:\n    if chosen:\n        distributed.barrier('x')",
    "ready = False\nif rank == 0:\n    ready = True\nif ready:\n    distributed.barrier('x')",
    "def meet():\n    distributed.barrier('x')\nif rank == 0:\n    meet()",
    "class T:\n    def meet(self):\n        distributed.barrier('x')\n    def end(self):\n        if self.rank == 0:\n"
    "            self.meet()",
    "if rank == 0:\n    dist.monitored_barrier(timeout=limit)",
    "if rank == 0:\n    distributed.mean(loss)",
]
EVERYWHERE = [
    "if module.main:\n    distributed.barrier('x')",
    "if world.main():\n    distributed.barrier('x')",
    "if world.size:\n    distributed.barrier('x')",
    "device = local_rank\nif device != 'cpu':\n    distributed.barrier('x')",
    "if rank == 0 and world_size == 1:\n    distributed.barrier('x')",
    "def meet():\n    distributed.barrier('x')\nif rank:\n    meet()\nload()\nif not rank:\n    meet()",
    "if rank == 0:\n    dist.all_reduce(x, group=pair, timeout=limit)",
    "if rank == 0:\n    dist.broadcast(x, 0, model_group, timeout=limit)",
    "stop = False\nif rank == 0:\n    stop = True\nstop = distributed.decide(lambda: stop, 'x')\nif stop:\n"
    "    distributed.barrier('x')",
    "if rank == 0:\n    dist.send(x, 1, timeout=limit)\nelse:\n    dist.recv(x, 0, timeout=limit)",
    "is_main = ask()\nmain = is_main\nclass A:\n    def is_main(self):\n        return self.is_main",
]


@pytest.mark.parametrize("code", CONDITIONS)
def test_a_condition_is_followed_through_the_file(code: str) -> None:
    """Into a variable, a small function, a flag, or from a call to the function that has to be come to."""
    assert kinds(code) == ["barrier on some ranks"]


@pytest.mark.parametrize("code", EVERYWHERE)
def test_what_is_the_same_for_every_rank_is_left_alone(code: str) -> None:
    """Also what the ranks of a group do, and messages between two."""
    assert [kind for kind in kinds(code) if ON_SOME_RANKS in kind] == []


LOOP = "for epoch in range(9):\n    train(model)\n    "
LEAVING = [
    f"{LOOP}if rank == 0 and bad(epoch):\n        break",
    f"{LOOP}if rank == 0:\n        if bad(epoch):\n            break",
    f"{LOOP}if self.world.main and bad(epoch):\n        break",
    "for batch in data:\n    if rank == 1 and broken(batch):\n        continue\n    model(batch).backward()",
    "def run():\n    while going:\n        model(x).backward()\n        if rank == 0 and bad(x):\n            return",
    "stop = False\n"
    + LOOP
    + "if rank == 0:\n        if bad(epoch):\n            stop = True\n    if stop:\n        break",
]
STAYING = [
    f"{LOOP}if distributed.decide(lambda: bad(epoch), 'x'):\n        break",
    f"{LOOP}if rank == 0:\n        for x in y:\n            break",
    "for batch in data:\n    model(batch).backward()\n    if rank != 0:\n        continue\n    log(batch)",
    "for x in y:\n    if rank == 0:\n        break",
    "stop = [False]\n"
    + LOOP
    + "if rank == 0:\n        stop[0] = True\n    share(stop)\n    if stop[0]:\n        break",
]


@pytest.mark.parametrize("code", LEAVING)
def test_a_rank_that_leaves_the_training_alone_is_named(code: str) -> None:
    """The others wait for it in the backward of their next step."""
    assert kinds(code) == ["break on some ranks"]


@pytest.mark.parametrize("code", STAYING)
def test_a_loop_that_every_rank_leaves_is_left_alone(code: str) -> None:
    """Or one in which nothing is trained, or of which nothing is missed."""
    assert kinds(code) == []


# what is given to DDP -> the severity of what is found, or None
DEVICES = [
    ("DDP(m, device_ids=[device])", "device = torch.device('cuda', local_rank)", "low"),
    ("DDP(m, output_device=device)", "device = torch.device(f'cuda:{local_rank}')", "low"),
    ("DDP(m, device_ids=[accelerator.device])", "", "low"),
    ("DDP(m, device_ids=[device])", "device = 'cuda' if torch.cuda.is_available() else 'cpu'", "high"),
    ("DDP(m, device_ids=[device])", "torch.cuda.set_device(local_rank)\ndevice = torch.device('cuda')", "low"),
    ("DDP(m, device_ids=[0])", "", "high"),
    ("torch.cuda.set_device(0)", "", "high"),
    ("torch.cuda.set_device(dist.get_rank())", "", "medium"),
    ("DDP(m, device_ids=[rank])", "rank = int(os.environ['RANK'])", "medium"),
    ("DDP(m, device_ids=[rank])", "rank = dist.get_rank()\nrank = rank % torch.cuda.device_count()", None),
    ("DDP(m, device_ids=[local_rank])", "local_rank = int(os.environ['LOCAL_RANK'])", None),
    ("DDP(m, device_ids=[device.index], output_device=device.index)", "device = torch.device('cuda', 1)", None),
    ("DDP(m, device_ids=[torch.cuda.current_device()])", "", None),
    ("DDP(m, device_ids=None)", "", None),
    ("DDP(m, device_ids=[0, 1])", "", None),
    ("def wrap(device):\n    return DDP(m, device_ids=[device])", "", None),
]


@pytest.mark.parametrize(("call", "before", "severity"), DEVICES)
def test_a_device_where_an_index_is_wanted_is_judged_by_what_it_is(
    call: str, before: str, severity: str | None
) -> None:
    """As far as the file tells; a parameter may be an index by another name."""
    found = find(f"{HEAD}{before}\n{call}\n")
    assert [(one.kind.name, one.kind.severity) for one in found] == ([("device", severity)] if severity else [])


EPOCHS = "\nfor epoch in range(9):\n    train()"


def test_a_sampler_without_its_epoch_is_named_where_that_is_certain() -> None:
    """Where the epochs are, or where no file of the repository sets any."""
    assert kinds(f"sampler = Split(images){EPOCHS}", sets_epoch=True) == ["set_epoch"]
    assert kinds("sampler = Split(images)") == ["set_epoch"]
    assert kinds("sampler = Split(images)", sets_epoch=True) == []
    assert kinds(f"sampler = Split(images){EPOCHS}\n    sampler.set_epoch(epoch)") == []
    assert kinds(f"sampler = Split(images, shuffle=False){EPOCHS}") == []
    assert kinds(f"val_sampler = Split(images){EPOCHS}") == []
    assert kinds(f"def make_test_data():\n    return Split(images){EPOCHS}") == []
    assert kinds(f"import lightning\nsampler = Split(images){EPOCHS}") == []


def test_a_group_without_a_timeout_is_named() -> None:
    """By torch, by deepspeed, and by accelerate, which takes the timeout in an object of its own."""
    assert kinds("dist.init_process_group('gloo')\npair = dist.new_group([0, 1])") == ["process group"] * 2
    assert kinds("import deepspeed\ndeepspeed.init_distributed()") == ["process group"]
    assert kinds("dist.init_process_group('gloo', timeout=limit)\ndist.new_group([0], timeout=limit)") == []
    assert kinds("accelerator = Accelerator()", PLAIN) == ["process group"]
    assert kinds("accelerator = Accelerator(kwargs_handlers=[other])", PLAIN) == ["process group"]
    assert kinds("accelerator = Accelerator(kwargs_handlers=handlers)", PLAIN) == []
    assert kinds("accelerator = Accelerator(kwargs_handlers=[InitProcessGroupKwargs(timeout=limit)])") == []
    assert kinds("accelerator = Accelerator(**options)", PLAIN) == []


def test_weights_that_every_rank_loads_onto_one_card_are_named() -> None:
    """In a file with several ranks, of a file that has tensors, unless one rank alone loads it."""
    ranks = "dist.init_process_group('nccl', timeout=limit)\n"
    assert kinds(f"{ranks}torch.load('last.pt')") == ["torch.load"]
    assert kinds(f"{ranks}torch.load('last.pt', 'cpu')\ntorch.load('last.pt', map_location=device)") == []
    assert kinds(f"{ranks}torch.load(f'rng-{{rank}}.pt')\ntorch.load('scheduler.pt')") == []
    assert kinds(f"{ranks}if rank == 0:\n    torch.load('last.pt')") == []
    assert kinds("torch.load('last.pt')") == []


def test_all_of_the_data_on_every_rank_is_named() -> None:
    """Where DDP is, and nothing in the file shares the data out."""
    imports = "from torch.nn.parallel import DistributedDataParallel as DDP\nfrom torch.utils.data import DataLoader\n"
    loader = "loader = DataLoader(images, shuffle=True, timeout=60, num_workers=2)"
    assert kinds(f"model = DDP(model)\n{loader}", imports) == ["no sampler"]
    assert kinds(f"model = DDP(model, process_group=data)\n{loader}", imports) == []
    assert kinds(f"model = DDP(model)\nimages = images.shard(4, rank)\n{loader}", imports) == []
    assert kinds(loader, imports) == []


def test_objects_and_groups_are_told_from_tensors() -> None:
    """An object collective unpickles; a group has to be made by ranks that are not in it too."""
    for call in (
        "broadcast_object_list(x)",
        "all_gather_object(x, y)",
        "gather_object(x)",
        "scatter_object_list(x, y)",
    ):
        assert kinds(f"dist.{call}") == ["object collective"]
    assert kinds("dist.send_object_list(x, 1)") == ["message"]
    assert kinds("if rank < 2:\n    dist.new_group([0, 1], timeout=limit)") == ["process group on some ranks"]
    assert kinds("if rank == 0:\n    model = DDP(model)") == ["collective on some ranks"]
    assert kinds("model = DDP(model)") == []


def test_a_region_for_the_main_rank_bounds_nothing_in_it() -> None:
    """Nor does noting a collective; both are ours, and say only what goes on."""
    assert kinds("with distributed.on_main('x'):\n    future.result()") == ["future"]
    assert kinds("with distributed.collective('x'):\n    dist.all_reduce(x)") == ["collective"]
