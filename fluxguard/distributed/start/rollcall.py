"""The roll call: what each rank says about itself, and whether they can work together. Pure judgement, no store."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields

from fluxguard.distributed.start.environment import source
from fluxguard.errors import SetupFailed

MUST_AGREE = (
    "TORCH_DISTRIBUTED_DEBUG",
    "TORCH_DIST_INIT_BARRIER",
    "TORCH_NCCL_USE_COMM_NONBLOCKING",
    "NCCL_ALGO",
    "NCCL_BUFFSIZE",
    "NCCL_COLLNET_ENABLE",
    "NCCL_CROSS_NIC",
    "NCCL_CUMEM_ENABLE",
    "NCCL_IB_DISABLE",
    "NCCL_LL128_BUFFSIZE",
    "NCCL_LL_BUFFSIZE",
    "NCCL_MAX_NCHANNELS",
    "NCCL_MIN_NCHANNELS",
    "NCCL_NET",
    "NCCL_NTHREADS",
    "NCCL_NVLS_ENABLE",
    "NCCL_P2P_DISABLE",
    "NCCL_P2P_LEVEL",
    "NCCL_PROTO",
    "NCCL_SHM_DISABLE",
)
"""Variables that make ranks wait for ever, or fail far from the cause, when only some of them have them."""

_NAMED = 8  # ranks in one message
_UNSET = "is not set"


@dataclass(frozen=True, kw_only=True)
class Record:
    """What one rank says about itself."""

    rank: int
    size: int
    nonce: str
    """A word that no other process has: it tells a rank from an earlier one of the same number."""
    host: str
    boot: str = ""
    """The id of the running system; two containers on one machine share it, and differ in `host`."""
    pid: int = 0
    born: str = ""
    """When the process began, in the words of its machine; with `pid` it tells it from a later one."""
    local_rank: int | None = None
    backend: str = ""
    device: str = ""
    """The identity of the GPU; empty where the ranks may share one, or have none."""
    visible: str | None = None
    """CUDA_VISIBLE_DEVICES; None when it is not set."""
    torch: str = ""
    nccl: str = ""
    python: str = ""
    program: str = ""
    """What it was started with, and in `arguments` a digest of each of its options; see `program`."""
    arguments: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, str] = field(default_factory=dict)
    """Those of MUST_AGREE that are set."""

    @property
    def machine(self) -> tuple[str, str]:
        """What the ranks of one machine, or container, have in common."""
        return self.boot, self.host

    @property
    def called(self) -> str:
        """How it is called in messages."""
        return source(self.rank, self.host)

    def to_text(self) -> str:
        """Return it as `from_text` reads it."""
        return json.dumps(asdict(self))

    @classmethod
    def from_text(cls, text: str | bytes) -> Record:
        """Raises ValueError for what is no record; fields of a newer one are left out."""
        values = json.loads(text)
        known = {one.name for one in fields(cls)}
        try:
            return cls(**{name: value for name, value in values.items() if name in known})
        except (AttributeError, TypeError) as error:
            raise ValueError(f"no record of a rank ({error})") from None


@dataclass(frozen=True, kw_only=True)
class Problem:
    """Why the ranks cannot work together, in the words in which every one of them says it."""

    source: str
    """Who has to be put right."""
    variable: str
    reason: str
    rank: int | None = None

    def error(self) -> SetupFailed:
        """Return it as what is raised."""
        return SetupFailed(self.source, self.reason, self.variable, self.rank)

    @classmethod
    def of(cls, error: SetupFailed) -> Problem:
        """Return what an error says, so that other ranks can say it too."""
        return cls(source=error.source, variable=error.field, reason=error.reason, rank=error.rank)


def judge(records: Sequence[Record]) -> Problem | None:
    """Return the first thing that keeps these ranks, who have all come, from working together; None when nothing does.

    What differs is blamed on the few; where there are no few, on those who are not as rank 0 is.
    """
    records = sorted(records, key=lambda one: one.rank)
    for check in _CHECKS:
        problem = check(records)
        if problem is not None:
            return problem
    return None


def other_size(record: Record, first: Record) -> Problem | None:
    """Return what is wrong when a rank counts other ranks than the first one that came."""
    if record.size == first.size:
        return None
    return _differs(record, first, "WORLD_SIZE", f"is {record.size}", f"{first.size}", "give every rank the same")


def duplicate(record: Record, other: Record, door: str) -> Problem:
    """Return what is wrong when two processes have the same rank."""
    both = f"process {other.pid} on {other.host} and process {record.pid} on {record.host}"
    advice = f"give each its own, and MASTER_PORT another value if {door} belongs to another training"
    return Problem(
        source=record.called, variable="RANK", reason=f"two processes have it: {both}; {advice}", rank=record.rank
    )


def missing(came: Iterable[int], size: int, seconds: float, door: str, notes: str = "") -> Problem:
    """Return what is wrong when only some ranks came in time; `notes` says more in plain words."""
    here = sorted(set(came))
    absent = [rank for rank in range(size) if rank not in here]
    who = f"rank{'s' if len(absent) > 1 else ''} {_some(absent)}"
    did = f"is {size}, but {who} did not come to {door} within {seconds:g} s ({len(here)} of {size} did)"
    advice = (
        "look at the log of that process: was it started, with the same MASTER_ADDR and MASTER_PORT, and can its "
        "machine reach that address? If it is only slow, allow more with fluxguard.limits.use(setup=SECONDS)"
    )
    reason = "; ".join(part for part in (did, notes, advice) if part)
    return Problem(source=who, variable="WORLD_SIZE", reason=reason, rank=absent[0] if absent else None)


def nobody_calls(record: Record, seconds: float, door: str) -> Problem:
    """Return what is wrong when the store is there, but rank 0, which calls the roll, did not come to it in time."""
    reason = (
        f"rank 0 did not come to {door} within {seconds:g} s, where {record.called} waits for it; look at the log of "
        "rank 0: was it started with RANK=0, or did it find the port taken by another training? If it is only slow, "
        "allow more with fluxguard.limits.use(setup=SECONDS)"
    )
    return Problem(source="rank 0", variable="RANK", reason=reason, rank=0)


def remarks(records: Sequence[Record]) -> list[str]:
    """Return what is unusual and harms nothing, for the log."""
    found = []
    few = _odd(records, lambda one: one.python)
    if few is not None:
        odd, usual = few
        found.append(f"{odd.called} runs Python {odd.python}, {usual.called} {usual.python}; they work together")
    few = _odd(records, lambda one: tuple(sorted(one.arguments.items())))
    if few is not None:  # no error: what has to be equal among the ranks, the program alone knows
        odd, usual = few
        names = sorted({name for name, _ in set(odd.arguments.items()) ^ set(usual.arguments.items())})
        found.append(
            f"{odd.called} was started with other arguments than {usual.called} ({_some(names)}); if these are two "
            "trainings that met by mistake, give each its own MASTER_PORT or --rdzv-id"
        )
    seen: dict[tuple[object, ...], Record] = {}
    for one in records:
        other = one if one.local_rank is None else seen.setdefault((*one.machine, one.local_rank), one)
        if other is not one:
            found.append(f"LOCAL_RANK is {one.local_rank} on rank {other.rank} and on rank {one.rank} of {one.host}")
    return found


def machines(records: Sequence[Record]) -> list[int]:
    """Return for each rank, in their order, the number of its machine; rank 0 is on machine 0."""
    numbers: dict[tuple[str, str], int] = {}
    return [numbers.setdefault(one.machine, len(numbers)) for one in sorted(records, key=lambda one: one.rank)]


def _sizes(records: Sequence[Record]) -> Problem | None:
    return next((found for one in records if (found := other_size(one, records[0]))), None)


def _programs(records: Sequence[Record]) -> Problem | None:
    """What the ranks of two trainings that met by mistake differ in."""
    known = [one for one in records if one.program]
    again = "if two trainings met at one MASTER_PORT or --rdzv-id, give each its own"
    few = _odd(known, lambda one: one.program)
    if few is None:
        return None
    odd, usual = few
    advice = f"start the same one on all ranks; {again}"
    return _differs(odd, usual, "program", f"is {odd.program}", usual.program, advice)


def _backends(records: Sequence[Record]) -> Problem | None:
    few = _odd(records, lambda one: one.backend)
    if few is None:
        return None
    odd, usual = few
    reason = f"is {odd.backend}, but {usual.backend} on {usual.called}"
    if "gloo" in (odd.backend, usual.backend):
        blind = odd if odd.backend == "gloo" else usual
        seen = _UNSET if blind.visible is None else f"is {blind.visible!r}"
        reason += f": {blind.called} sees no GPU (CUDA_VISIBLE_DEVICES there {seen}; look at nvidia-smi)"
    return Problem(source=odd.called, variable="backend", reason=reason, rank=odd.rank)


def _devices(records: Sequence[Record]) -> Problem | None:
    seen: dict[str, Record] = {}
    for one in records:
        if not one.device:
            continue
        other = seen.setdefault(one.device, one)
        if other is not one:
            shown = "not set" if one.visible is None else repr(one.visible)
            reason = (
                f"both it and {other.called} use the GPU {one.device} (LOCAL_RANK {_shown(one.local_rank)} and "
                f"{_shown(other.local_rank)}, CUDA_VISIBLE_DEVICES here {shown}); give each rank a GPU of its own"
            )
            return Problem(source=one.called, variable="CUDA_VISIBLE_DEVICES", reason=reason, rank=one.rank)
    return None


_INSTALLED: dict[str, Callable[[Record], str]] = {"torch": lambda one: one.torch, "NCCL": lambda one: one.nccl}


def _versions(records: Sequence[Record]) -> Problem | None:
    for name, version in _INSTALLED.items():
        few = _odd(records, version)
        if few is not None:
            odd, usual = few
            have = version(odd) or "not there"
            return _differs(
                odd, usual, name, f"is {have}", version(usual) or "none", "install the same on all machines"
            )
    return None


def _settings(records: Sequence[Record]) -> Problem | None:
    for name in MUST_AGREE:
        few = _odd(records, lambda one: one.settings.get(name))  # noqa: B023  (called at once)
        if few is not None:
            odd, usual = few
            here = f"is {odd.settings[name]!r}" if name in odd.settings else _UNSET
            there = repr(usual.settings[name]) if name in usual.settings else "not set"
            return _differs(odd, usual, name, here, there, "set it alike for all ranks, or for none")
    return None


_CHECKS: tuple[Callable[[Sequence[Record]], Problem | None], ...] = (
    _sizes,
    _programs,
    _devices,
    _versions,
    _backends,
    _settings,
)


def _odd(records: Sequence[Record], value: Callable[[Record], Hashable]) -> tuple[Record, Record] | None:
    """Return the first of the few whose value differs, and the first of the others; None when all are alike."""
    counts = Counter(value(one) for one in records)
    if len(counts) < 2:
        return None
    most = max(counts.values())
    usual = next(one for one in records if counts[value(one)] == most)  # rank 0 where there are as many of each
    return next(one for one in records if value(one) != value(usual)), usual


def _differs(odd: Record, usual: Record, name: str, here: str, there: str, advice: str) -> Problem:
    return Problem(
        source=odd.called, variable=name, reason=f"{here}, but {there} on {usual.called}; {advice}", rank=odd.rank
    )


def _shown(number: int | None) -> str:
    return "not set" if number is None else str(number)


def _some(ones: Sequence[int | str]) -> str:
    more = f" and {len(ones) - _NAMED} more" if len(ones) > _NAMED else ""
    return ", ".join(map(str, ones[:_NAMED])) + more
