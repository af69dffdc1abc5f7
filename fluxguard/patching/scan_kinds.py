"""The kinds of finding a scan knows: what each waits for or does wrong, and how bad that is."""

from __future__ import annotations

from dataclasses import dataclass

ON_SOME_RANKS = " on some ranks"
"""What is added to the name of a kind for a call that only some ranks come to."""


@dataclass(frozen=True)
class Kind:
    """One way to wait, or one thing that is set up wrong."""

    name: str
    why: str
    """What it waits for, or what it does wrong."""
    severity: str
    """`critical`, `high`, `medium` or `low`."""
    across: bool = False
    """Whether every rank has to come."""
    reads: bool = False
    """Whether a guard of file reads bounds it."""
    waits: bool = True
    """False for what is wrong in itself: no limit around it mends that."""
    everywhere: bool = True
    """False for what is as it should be when every rank comes to it."""


_RANKS = "until every rank has come; one that died or went another way leaves the others here"
FUTURE = Kind("future", "a thread or process that may never finish", "high")
EXECUTOR = Kind("executor", "all its tasks at the end; a stuck one blocks this and the interpreter's exit", "high")
LOADER = Kind("loader", "a batch from worker processes; torch's default is to wait for ever", "high")
IN_PROCESS = Kind("loader", "the reads of its dataset, made here without workers and unbounded", "low")
READ = Kind("cache read", "a file; a dead mount never answers, a torn file ends the run unnamed", "medium", reads=True)
WRITE = Kind("cache write", "nothing, but it writes in place: a kill leaves a torn file", "medium", reads=True)
BARRIER = Kind("barrier", _RANKS, "high", across=True)
COLLECTIVE = Kind("collective", _RANKS, "high", across=True)
OBJECTS = Kind(
    "object collective",
    f"{_RANKS}; so does one whose object does not pickle, and each unpickles whatever the others send",
    "high",
    across=True,
)
MESSAGE = Kind("message", "the one other rank, which may never send or take it", "high")
WRAPPING = Kind("collective", _RANKS, "high", across=True, everywhere=False)
METRIC = Kind("metric", "every rank: torchmetrics gathers its states from all of them", "high", True, everywhere=False)
SAVE = Kind("state", "a disk, and with DeepSpeed or FSDP every rank; it writes in place", "medium", across=True)
LOAD = Kind("state", "a disk, and with DeepSpeed or FSDP every rank", "medium", across=True)
GATHERED = Kind("state", "with DeepSpeed or FSDP every rank", "medium", across=True, everywhere=False)
QUEUE = Kind("queue", "an item that may never be put", "medium")
JOIN = Kind("join", "a thread, process or queue that may never end", "medium")
WAIT = Kind("wait", "an event or process that may never come or end", "medium")
PROCESS = Kind("process", "a program that may never end", "low")
NETWORK = Kind("network", "a server that may never answer", "medium")

GROUP = Kind(
    "process group",
    "a rank that is gone for 10 minutes (NCCL) or 30 (others): torch's default, for it has no timeout of its own",
    "low",
    across=True,
    waits=False,
)
BOUNDED_GROUP = Kind("process group", _RANKS, "high", across=True, everywhere=False)
DEVICE = Kind(
    "device",
    "DDP is given a device where an index is wanted: on a CPU it is refused, and the CPU needs none",
    "low",
    waits=False,
)
SAME_DEVICE = Kind(
    "device",
    "the same card for every rank of a machine: NCCL refuses that or waits for ever, or the card is full",
    "high",
    waits=False,
)
GLOBAL_DEVICE = Kind(
    "device",
    "a card by the rank in the whole job: on a second machine there is no such card; LOCAL_RANK is meant",
    "medium",
    waits=False,
)
SAMPLER = Kind(
    "set_epoch", "nothing, but without set_epoch each epoch has the order of the first", "medium", waits=False
)
UNSPLIT = Kind("no sampler", "nothing, but every rank trains on all of the data", "medium", waits=False)
PLACED = Kind(
    "torch.load",
    "nothing, but without map_location every rank loads onto the card that the file was saved from",
    "low",
    waits=False,
)
LEAVES = Kind(
    "break", "the rank that leaves the loop is missing in the others' next step", "high", True, everywhere=False
)
