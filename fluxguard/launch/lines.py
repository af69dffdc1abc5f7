"""The command of each machine of a training that goes over several, for torchrun and for accelerate. Pure."""

from __future__ import annotations

import hashlib
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fluxguard.errors import InputError
from fluxguard.launch import ranks
from fluxguard.launch.ranks import ACCELERATE, TORCHRUN, Ranks
from fluxguard.launch.trainer import base, is_python

PORT = 29400
"""Of the rendezvous where none is named."""
_PORTS = 1 << 16
_SHORT = 8
_NO_WORD = re.compile(r"[^A-Za-z0-9_.-]+")
_ID_OF_ACCELERATE = "PET_RDZV_ID"
"""accelerate has no option for it, and hands on what torchrun takes from the environment."""


@dataclass(frozen=True, kw_only=True)
class Machines:
    """On which machines a training runs."""

    hosts: tuple[str, ...]
    """Their names, by which they are told apart; the first one holds the rendezvous unless `endpoint` is another."""
    per_node: int | None = None
    """Ranks on each of them: one per GPU; None for as many as the command says, else one."""
    least: int | None = None
    """Machines without which nothing trains; None for all of them."""
    endpoint: str = ""
    """HOST[:PORT] of the rendezvous, as the others reach it."""
    restarts: int = 3
    """Rounds that may fail before an agent gives up."""
    interface: str = ""
    """The network interface by which the ranks talk, such as eth0; empty where they may find it themselves."""
    launcher: str = TORCHRUN
    """torchrun or accelerate."""
    output_dir: str = ""
    """Where it saves; with the command it tells one training from another at the same rendezvous."""

    def __post_init__(self) -> None:
        if len(self.hosts) < 1 or len(set(self.hosts)) != len(self.hosts):
            raise InputError("--on", "names each machine once")
        if self.least is not None and not 1 <= self.least <= len(self.hosts):
            raise InputError("--least", f"must be from 1 to {len(self.hosts)}, the number of machines")
        if self.launcher == ACCELERATE and self.least not in (None, len(self.hosts)):
            raise InputError("--least", "accelerate launch trains on all machines or none; torchrun on fewer too")

        port = self.endpoint.rpartition(":")[2]
        named = self.endpoint.count(":") == 1 or "]:" in self.endpoint
        if named and not (port.isascii() and port.isdecimal() and 0 < int(port) < _PORTS):
            raise InputError("--endpoint", f"must be HOST or HOST:PORT; {port!r} is no port")

    @property
    def door(self) -> tuple[str, int]:
        """Host and port of the rendezvous."""
        host, port = ranks.split_endpoint(self.endpoint)
        return host or self.hosts[0], port or PORT


@dataclass(frozen=True, kw_only=True)
class Line:
    """What is started on one machine."""

    host: str
    argv: tuple[str, ...]
    """The launcher with the program, without fluxguard."""
    env: Mapping[str, str] = field(default_factory=dict)
    """What is to be set there beside what is set anyway."""

    def supervised(self, output_dir: str, options: Sequence[str] = ()) -> str:
        """Return the line that starts it under supervision, as a shell takes it; the folder may be shared or not.

        `options` are more of those of the supervisor. What it sets by itself is left out.
        """
        ours = ("fluxguard", "supervise", "--node", self.host, "--output-dir", output_dir, *options, "--", *self.argv)
        by_itself = ranks.environment(ranks.read(self.argv))
        sets = [f"{name}={shlex.quote(value)}" for name, value in self.env.items() if name not in by_itself]
        return " ".join((*sets, shlex.join(ours)))


def lines(command: Sequence[str], machines: Machines) -> list[Line]:
    """Return what each machine starts, in their order. Raises InputError for a command that runs no program.

    What a launcher in the command is told of machines and ranks is replaced; its other options stay, and so does what
    stands before it and behind it. Those of another launcher are left out.
    """
    parts = _parts(command)
    if not parts.program:
        raise InputError("COMMAND", "names no program to train with")
    flavour = _accelerate if machines.launcher == ACCELERATE else _torchrun
    found = []
    for index, host in enumerate(machines.hosts):
        own = (*flavour(machines, index, parts), *parts.kept(machines.launcher), *parts.how)
        argv = (*parts.before, *parts.by(machines.launcher), *own, *parts.program)
        set_by_us = ranks.environment(ranks.read(argv))
        meeting = {_ID_OF_ACCELERATE: _id(machines, parts)} if machines.launcher == ACCELERATE else {}
        found.append(Line(host=host, argv=argv, env={**_interfaces(machines.interface), **meeting, **set_by_us}))
    return found


def _id(machines: Machines, parts: _Parts) -> str:
    """Return a name for the rendezvous that no other training has: those of one name become one training."""
    if named := parts.said(TORCHRUN, "rdzv_id"):
        return named
    said = "\0".join((machines.output_dir, *parts.program))
    name = _NO_WORD.sub("-", machines.output_dir.replace("\\", "/").rstrip("/").rpartition("/")[2]).strip(".-")
    return "-".join(filter(None, (name, hashlib.sha256(said.encode()).hexdigest()[:_SHORT])))


def _interfaces(name: str) -> dict[str, str]:
    return dict.fromkeys(("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"), name) if name else {}


@dataclass(frozen=True, kw_only=True)
class _Parts:
    """What a command is made of."""

    before: tuple[str, ...] = ()
    """What stands before the launcher or Python, such as `env A=b` or `uv run`."""
    starter: tuple[str, ...] = ()
    """The launcher, or Python, without its options."""
    found: Ranks | None = None
    """What its launcher is told, where it has one."""
    program: tuple[str, ...] = ()
    module: bool = False

    @property
    def how(self) -> tuple[str, ...]:
        """How a launcher has to start the program."""
        if self.module:
            return ("-m",)
        return () if self.program[0].endswith(".py") else ("--no_python",)

    @property
    def per_node(self) -> int:
        return (self.found.per_node if self.found else None) or 1

    def said(self, launcher: str, option: str) -> str:
        """Return what a launcher was told by an option."""
        return self.found.options.get(option, "") if self.found and self.found.launcher == launcher else ""

    def by(self, launcher: str) -> tuple[str, ...]:
        """Return the words that start a launcher: the command's own, else one that lies beside its Python."""
        if self.found is not None and self.found.launcher == launcher:
            return self.starter
        folder = self.starter[0].rpartition("/")[0] if self.starter else ""
        name = f"{folder}/{launcher}" if folder else launcher
        return (name, "launch") if launcher == ACCELERATE else (name,)

    def kept(self, launcher: str) -> tuple[str, ...]:
        """Return the options of the command's launcher that are not about machines and ranks."""
        if self.found is None or self.found.launcher != launcher:
            return ()
        options = {name: said for name, said in self.found.options.items() if name not in _REPLACED[launcher]}
        return tuple(word for name, said in options.items() for word in _option(launcher, name, said))


_OF_TORCHRUN = """
    nnodes nproc_per_node rdzv_backend rdzv_endpoint rdzv_id rdzv_conf standalone max_restarts node_rank master_addr
    master_port local_addr m module no_python
"""
_OF_ACCELERATE = """
    multi_gpu num_machines num_processes machine_rank main_process_ip main_process_port rdzv_backend rdzv_conf
    same_network max_restarts m module no_python
"""
_REPLACED = {TORCHRUN: frozenset(_OF_TORCHRUN.split()), ACCELERATE: frozenset(_OF_ACCELERATE.split())}
"""Options of a launcher about machines, ranks and the program: those we write ourselves."""


def _option(launcher: str, name: str, said: str) -> tuple[str, ...]:
    dashes = "-" if len(name) == 1 else "--"
    if name in ranks.FLAGS[launcher]:
        return (f"{dashes}{name}",)
    return (f"{dashes}{name}={said}",) if dashes == "--" else (f"-{name}", said)


def _parts(command: Sequence[str]) -> _Parts:
    words = tuple(command)
    found = ranks.read(words)
    if found is not None:
        return _Parts(
            before=words[: found.start],
            starter=words[found.start : found.first],
            found=found,
            program=words[found.program :],
            module=bool({"m", "module"} & found.options.keys()),
        )
    at = next((index for index, word in enumerate(words) if not _hands_over(word)), 0)
    if not (words and is_python(base(words[at]))):
        return _Parts(before=words[:at], program=words[at:])
    program = at + 1
    while program < len(words) and words[program].startswith("-") and words[program] != "-m":
        program += 2 if words[program] in ("-X", "-W") else 1
    module = words[program : program + 1] == ("-m",)
    return _Parts(
        before=words[:at],
        starter=words[at : at + 1],
        program=words[program + module :],
        module=module,
    )


def _hands_over(word: str) -> bool:
    """Whether a word, before a Python, is one of a program that only starts what stands behind it."""
    return word in ("env", "uv", "run", "poetry", "pdm", "hatch", "pixi") or "=" in word or word.startswith("-")


def program_of(command: Sequence[str]) -> tuple[tuple[str, ...], bool]:
    """Return the program of a command with its arguments, and whether it is the name of a module."""
    parts = _parts(command)
    return parts.program, parts.module


def _torchrun(machines: Machines, index: int, parts: _Parts) -> tuple[str, ...]:
    count, (door, port) = len(machines.hosts), machines.door
    return (
        f"--nnodes={machines.least or count}:{count}",
        f"--nproc-per-node={machines.per_node or parts.per_node}",
        "--rdzv-backend=c10d",
        f"--rdzv-endpoint={door}:{port}",
        f"--rdzv-id={_id(machines, parts)}",
        *_conf("--rdzv-conf", machines, index, parts.said(TORCHRUN, "rdzv_conf")),
        f"--max-restarts={machines.restarts}",
    )


def _accelerate(machines: Machines, index: int, parts: _Parts) -> tuple[str, ...]:
    count, (door, port) = len(machines.hosts), machines.door
    ranks_ = count * (machines.per_node or parts.per_node)
    return (
        *(("--multi_gpu",) if ranks_ > 1 else ()),
        f"--num_machines={count}",
        f"--num_processes={ranks_}",
        f"--machine_rank={index}",
        f"--main_process_ip={door}",
        f"--main_process_port={port}",
        "--rdzv_backend=c10d",
        *_conf("--rdzv_conf", machines, index, parts.said(ACCELERATE, "rdzv_conf")),
        f"--max_restarts={machines.restarts}",
    )


def _conf(option: str, machines: Machines, index: int, more: str) -> tuple[str, ...]:
    """Say who holds the rendezvous: a machine whose own name leads to 127.0.1.1 does not find that out.

    An address that is none of the names is left to torch, which compares it with those of the machine. `more` is what
    the command says of the rendezvous.
    """
    door = machines.door[0]
    said = [f"is_host={int(machines.hosts[index] == door)}"] if door in machines.hosts else []
    said += [one for one in more.split(",") if one and not one.startswith("is_host=")]
    return (f"{option}={','.join(said)}",) if said else ()
