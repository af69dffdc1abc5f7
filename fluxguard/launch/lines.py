"""The command of each machine of a training that goes over several, for torchrun and for accelerate. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fluxguard.errors import InputError
from fluxguard.launch import ranks
from fluxguard.launch.ranks import ACCELERATE, TORCHRUN
from fluxguard.launch.trainer import base, is_python

PORT = 29400
"""Of the rendezvous where none is named."""
_RUN_ID = "fluxguard"


@dataclass(frozen=True, kw_only=True)
class Machines:
    """On which machines a training runs."""

    hosts: tuple[str, ...]
    """Their names, by which they are told apart; the first one holds the rendezvous unless `endpoint` is another."""
    per_node: int = 1
    """Ranks on each of them: one per GPU."""
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

    def __post_init__(self) -> None:
        if len(self.hosts) < 1 or len(set(self.hosts)) != len(self.hosts):
            raise InputError("--on", "names each machine once")
        if self.least is not None and not 1 <= self.least <= len(self.hosts):
            raise InputError("--least", f"must be from 1 to {len(self.hosts)}, the number of machines")
        if self.launcher == ACCELERATE and self.least not in (None, len(self.hosts)):
            raise InputError("--least", "accelerate launch trains on all machines or none; torchrun on fewer too")

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

    def supervised(self, output_dir: str) -> str:
        """Return the line that starts it under supervision, as a shell takes it; the folder may be shared or not.

        What the supervisor sets by itself is left out.
        """
        ours = ("fluxguard", "supervise", "--node", self.host, "--output-dir", output_dir, "--", *self.argv)
        by_itself = ranks.environment(ranks.read(self.argv))
        sets = [f"{name}={shlex.quote(value)}" for name, value in self.env.items() if name not in by_itself]
        return " ".join((*sets, shlex.join(ours)))


def lines(command: Sequence[str], machines: Machines) -> list[Line]:
    """Return what each machine starts, in their order. Raises InputError for a command that runs no program.

    A launcher in the command, with its options, is replaced; everything behind it stays.
    """
    program, module = program_of(command)
    if not program:
        raise InputError("COMMAND", "names no program to train with")
    flavour = _accelerate if machines.launcher == ACCELERATE else _torchrun
    found = []
    for index, host in enumerate(machines.hosts):
        argv = (*flavour(machines, index), *(["-m"] if module else []), *program)
        set_by_us = ranks.environment(ranks.read(argv))
        found.append(Line(host=host, argv=argv, env={**_interfaces(machines.interface), **set_by_us}))
    return found


def _interfaces(name: str) -> dict[str, str]:
    return dict.fromkeys(("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"), name) if name else {}


def program_of(command: Sequence[str]) -> tuple[tuple[str, ...], bool]:
    """Return the program of a command with its arguments, and whether it is the name of a module."""
    found = ranks.read(command)
    if found is not None:
        return tuple(command[found.program :]), bool({"m", "module"} & found.options.keys())
    words = tuple(command)
    if words and is_python(base(words[0])):
        words = words[1:]
        while words and words[0] in ("-u", "-O", "-B"):
            words = words[1:]
        return (words[1:], True) if words[:1] == ("-m",) else (words, False)
    return words, False


def _torchrun(machines: Machines, index: int) -> tuple[str, ...]:
    count, (door, port) = len(machines.hosts), machines.door
    return (
        "torchrun",
        f"--nnodes={machines.least or count}:{count}",
        f"--nproc-per-node={machines.per_node}",
        "--rdzv-backend=c10d",
        f"--rdzv-endpoint={door}:{port}",
        f"--rdzv-id={_RUN_ID}",
        *_is_host("--rdzv-conf", machines, index),
        f"--max-restarts={machines.restarts}",
    )


def _accelerate(machines: Machines, index: int) -> tuple[str, ...]:
    count, (door, port) = len(machines.hosts), machines.door
    ranks_ = count * machines.per_node
    return (
        "accelerate",
        "launch",
        *(("--multi_gpu",) if ranks_ > 1 else ()),
        f"--num_machines={count}",
        f"--num_processes={ranks_}",
        f"--machine_rank={index}",
        f"--main_process_ip={door}",
        f"--main_process_port={port}",
        "--rdzv_backend=c10d",
        *_is_host("--rdzv_conf", machines, index),
        f"--max_restarts={machines.restarts}",
    )


def _is_host(option: str, machines: Machines, index: int) -> tuple[str, ...]:
    """Say who holds the rendezvous: a machine whose own name leads to 127.0.1.1 does not find that out.

    An address that is none of the names is left to torch, which compares it with those of the machine.
    """
    door = machines.door[0]
    return (f"{option}=is_host={int(machines.hosts[index] == door)}",) if door in machines.hosts else ()
