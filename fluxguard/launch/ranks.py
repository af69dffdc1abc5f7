"""What a command says of its ranks: by which launcher, on how many machines, and who starts them again. Pure.

Torch's elastic agent (`torchrun`, and `accelerate launch`, which calls it) starts the ranks of one machine. With
restarts left it ends all of them when one fails, meets the agents of the other machines at the rendezvous, and starts
them again: that is a new round of the same attempt.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from fluxguard.launch.trainer import base, is_python

TORCHRUN, ACCELERATE = "torchrun", "accelerate"
_MODULES = {
    "torch.distributed.run": TORCHRUN,
    "torch.distributed.launch": TORCHRUN,
    "accelerate.commands.launch": ACCELERATE,
}
STATIC = "static"
"""The rendezvous of a fixed set of machines: its agents do not hear of one another again after the start."""
_OF_TORCHRUN = "h help m module no_python run_path standalone use_env use_libuv enable_numa virtual_local_rank"
_OF_ACCELERATE = """
    h help q quiet m module no_python cpu debug downcast_bf16 multi_gpu same_network tpu tpu_cluster no_tpu_cluster
    tpu_use_sudo use_deepspeed use_fsdp use_megatron_lm use_parallelism_config use_tpu use_xpu dynamo_use_dynamic
    dynamo_use_fullgraph dynamo_use_regional_compilation enable_cpu_affinity fp8_use_autocast_during_eval
"""
FLAGS = {TORCHRUN: frozenset(_OF_TORCHRUN.split()), ACCELERATE: frozenset(_OF_ACCELERATE.split())}
"""Options of a launcher that have no value, by name with `_` between its words; all others have one."""
_OWN_STORE = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"
_DEFAULT_PORT = 29400
"""Of a c10d rendezvous whose endpoint names none."""


@dataclass(frozen=True, kw_only=True)
class Ranks:
    """What a launcher is told of its ranks."""

    launcher: str
    """torchrun or accelerate."""
    least: int = 1
    """Machines without which nothing trains."""
    most: int = 1
    """Machines that train together at most."""
    per_node: int | None = 1
    """Ranks of one machine; None where its devices are counted, or machines differ."""
    max_restarts: int = 0
    """How often the agent starts the ranks again after one has failed."""
    backend: str = STATIC
    """How the machines meet."""
    host: str = ""
    """The machine that holds the rendezvous; empty where it is this one."""
    port: int | None = None
    node_rank: int | None = None
    """Which of the machines this is; None where the rendezvous says."""
    start: int = 0
    """Where in the command the launcher stands, with its Python where it is a module; before it are others."""
    first: int = 0
    """Where in the command the launcher's options begin."""
    program: int = 0
    """Where in the command the program stands: its script, or the module's name."""
    options: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """The launcher's options by name; empty values for those without one."""

    @property
    def several(self) -> bool:
        """Whether the command is one of several machines."""
        return self.most > 1

    @property
    def elastic(self) -> bool:
        """Whether the agent starts a new round when a rank of it ends with an error."""
        return self.max_restarts > 0 and (not self.several or self.backend != STATIC)

    def with_defaults(self, settings: Mapping[str, str]) -> Ranks:
        """Return what accelerate makes of it with these values for options that it does not have."""
        made = _accelerate({**settings, **self.options}, self.program)
        return replace(made, start=self.start, first=self.first, options=self.options)

    @property
    def endpoint(self) -> str:
        """HOST:PORT of the rendezvous, as far as it is known."""
        return f"{self.host}:{self.port}" if self.host and self.port else self.host


def read(argv: Sequence[str], env: Mapping[str, str] = MappingProxyType({})) -> Ranks | None:
    """Return what a command says of its ranks; None where no launcher is in it that we know.

    `env` is that of the command: torchrun takes options from `PET_...` too. What cannot be understood is left at its
    default: whoever starts the command says what is wrong with it.
    """
    found = _launcher(argv)
    if found is None:
        return None
    launcher, start, first = found
    options, program = _options(argv, first, FLAGS[launcher])
    said = {**_from_env(env), **options} if launcher == TORCHRUN else options
    made = (_torchrun if launcher == TORCHRUN else _accelerate)(said, program)
    return replace(made, start=start, first=first)


def environment(found: Ranks | None) -> dict[str, str]:
    """Return what is to be set for an agent that starts rounds, unless the user has set it otherwise.

    Since torch 2.5 all rounds share one store (pytorch issue 135712): ranks of the next round then find addresses of
    the last one there, or ask a machine that is gone, and hang or fail while they connect.
    """
    return {_OWN_STORE: "1"} if found is not None and found.elastic else {}


def _launcher(argv: Sequence[str]) -> tuple[str, int, int] | None:
    """Return the launcher, where it stands and where its options begin; behind `uv run` or `env A=b`, maybe."""
    for index, word in enumerate(argv):
        before = argv[index - 1] if index else ""
        if before == "-m" and word in _MODULES:
            return _MODULES[word], _python_before(argv, index - 1), index + 1
        name = base(word)
        if name in ("torchrun", "accelerate-launch"):
            return TORCHRUN if name == "torchrun" else ACCELERATE, index, index + 1
        if name == "accelerate" and tuple(argv[index + 1 : index + 2]) == ("launch",):
            return ACCELERATE, index, index + 2
        if word.endswith(".py"):
            return None
    return None


def _python_before(argv: Sequence[str], index: int) -> int:
    """Return where the Python stands whose options end at `index`."""
    return next((at for at in range(index - 1, -1, -1) if is_python(base(argv[at]))), index)


def _options(argv: Sequence[str], index: int, flags: frozenset[str]) -> tuple[dict[str, str], int]:
    """Return the options from `index` on, and where the first word stands that is none."""
    found: dict[str, str] = {}
    while index < len(argv) and argv[index].startswith("-"):
        name, equals, value = argv[index].lstrip("-").partition("=")
        name = name.replace("-", "_")
        index += 1
        if not name:  # `--` ends the options
            break
        if name in flags:
            found[name] = ""
        elif equals:
            found[name] = value
        else:
            found[name] = argv[index] if index < len(argv) else ""
            index += 1
    return found, index


def _from_env(env: Mapping[str, str]) -> dict[str, str]:
    """Return the options in an environment. Torch reads a flag there as a number: 0 is none."""
    said = {name[4:].lower(): value for name, value in env.items() if name.startswith("PET_")}
    return {name: value for name, value in said.items() if name not in FLAGS[TORCHRUN] or value.strip("0 ")}


def _torchrun(said: Mapping[str, str], program: int) -> Ranks:
    least, _, most = said.get("nnodes", "1").partition(":")
    standalone = "standalone" in said
    backend = "c10d" if standalone else said.get("rdzv_backend", STATIC).lower()
    endpoint = "" if standalone else said.get("rdzv_endpoint", "")
    host, port = split_endpoint(endpoint)
    if backend == STATIC and not endpoint:
        host, port = said.get("master_addr", ""), _number(said.get("master_port"), 0) or None
    several = _number(most or least, 1) > 1
    return Ranks(
        launcher=TORCHRUN,
        least=_number(least, 1),
        most=_number(most or least, 1),
        per_node=_per_node(said.get("nproc_per_node", "1")),
        max_restarts=_number(said.get("max_restarts"), 0),
        backend=backend,
        host=host if several else "",
        port=port or (_DEFAULT_PORT if several and host and backend != STATIC else None),
        node_rank=_number(said.get("node_rank"), 0) if several and backend == STATIC else None,
        program=program,
        options=MappingProxyType(dict(said)),
    )


def _accelerate(said: Mapping[str, str], program: int) -> Ranks:
    machines = _number(said.get("num_machines"), 1)
    ranks = said.get("num_processes", "")
    whole = ranks.isdecimal() and int(ranks) % machines == 0
    several = machines > 1
    return Ranks(
        launcher=ACCELERATE,
        least=machines,
        most=machines,
        per_node=int(ranks) // machines if whole else None,
        max_restarts=_number(said.get("max_restarts"), 0),
        backend=said.get("rdzv_backend", STATIC).lower(),
        host=said.get("main_process_ip", "") if several else "",
        port=(_number(said.get("main_process_port"), 0) or None) if several else None,
        node_rank=_number(said.get("machine_rank"), 0) if several else None,
        program=program,
        options=MappingProxyType(dict(said)),
    )


def split_endpoint(endpoint: str) -> tuple[str, int | None]:
    """Return host and port of HOST[:PORT]; the host of a version 6 address stands in brackets."""
    host, _, port = endpoint.rpartition(":") if endpoint.count(":") == 1 or "]:" in endpoint else (endpoint, "", "")
    return host.strip("[]"), int(port) if port.isdecimal() else None


def _per_node(said: str) -> int | None:
    """Return a number; None for a kind of device, such as gpu or auto, which the launcher counts."""
    return int(said) if said.isdecimal() else None


def _number(said: str | None, default: int) -> int:
    return int(said) if said is not None and said.isdecimal() else default
