"""What can be seen of another rank: whether its process lives, and what it does instead of coming.

On the same machine from the system and the rank's heartbeat; from another one by what the rank itself tells the store
every second (`beacon`).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import socket
import sys
import time
from dataclasses import asdict, dataclass, fields
from functools import cache
from pathlib import Path

from fluxguard import heartbeat
from fluxguard.distributed import world
from fluxguard.guard import collectives, pulse
from fluxguard.guard.peers import Sign
from fluxguard.heartbeat import Collective

LIVES, STOPPED, DEAD, UNKNOWN = "lives", "stopped", "dead", "unknown"
_STATES = {"Z": DEAD, "X": DEAD, "T": STOPPED, "t": STOPPED}
_FRESH = 5.0  # of a word from another machine, seconds in which one must have come; it says one each
_FIRST_PHASE = "load"
_NAME = 48  # characters of the name of a machine


@dataclass(frozen=True, kw_only=True)
class Who:
    """Which process a rank is, also when its number was given to another one since."""

    pid: int
    ticks: int
    """When it was started, in the clock of its machine; 0 where the system does not say."""
    machine: str
    """The running system, and the container in it, whose processes it is among."""
    host: str

    def pack(self) -> bytes:
        """Return it as bytes."""
        return json.dumps([self.pid, self.ticks, self.machine, self.host]).encode()


def unpack_who(data: bytes) -> Who | None:
    """Return who is told of in `data`; None when nobody is."""
    try:
        pid, ticks, machine, host = json.loads(data)
        return Who(pid=int(pid), ticks=int(ticks), machine=str(machine), host=str(host))
    except (ValueError, TypeError):
        return None


@dataclass(frozen=True, kw_only=True)
class Word:
    """What a rank says of itself, with ages instead of times: the clocks of machines differ."""

    number: int = 0
    """How many words it said before."""
    beats: int | None = None
    """Its signs of life; None where it has no heartbeat: that it speaks is the sign of another thread."""
    phase: str = ""
    phase_age: float = 0.0
    step: int = 0
    sequence: int = 0
    kind: str = ""
    what: str = ""
    age: float = 0.0
    """Seconds since the collective began."""
    open: bool = False
    """Whether the collective goes on."""
    begun: int = 0
    failed: bool = False
    """Whether the collective failed, so that it has left it."""

    def pack(self) -> bytes:
        """Return it as bytes."""
        return json.dumps(asdict(self)).encode()


def unpack_word(data: bytes) -> Word | None:
    """Return the word in `data`; None when there is none. What a newer version adds is left out."""
    try:
        told = json.loads(data)
        return Word(**{field.name: told[field.name] for field in fields(Word) if field.name in told})
    except (ValueError, TypeError):
        return None


@dataclass(frozen=True, kw_only=True)
class Sight:
    """What is seen of one rank now."""

    who: Who | None = None
    here: bool = False
    """Whether it is a process of this machine."""
    life: str = UNKNOWN
    word: Word | None = None
    silent: float = 0.0
    """How many seconds ago it said its word; 0 where its heartbeat is seen."""

    def sign(self) -> Sign | None:
        """Return the sign of life in it, as the patience of a wait counts it; None when it shows none."""
        if self.word is None or self.word.beats is None:
            return None
        still = self.life in (DEAD, STOPPED)  # in no phase then that would allow it more
        return Sign(self.word.beats + self.word.begun, "" if still else self.word.phase or None)

    def words(self) -> str:
        """Return what the rank does, to be put behind its number."""
        if self.who is None and self.word is None:
            return "has shown no sign yet"
        return f"{self._named()} {_joined([self._life(), *self._doing()])}".strip()

    def _named(self) -> str:
        if self.who is None:
            return ""
        return f"(pid {self.who.pid})" if self.here else f"(pid {self.who.pid} on {self.who.host})"

    def _life(self) -> str:
        if self.life == DEAD:
            return "is dead: its process has ended, by itself (it left before the others) or killed"
        if self.life == STOPPED:
            return "is stopped: its process does not run until it is continued"
        return f"has said nothing for {self.silent:.0f} s" if self._silent else ""

    @property
    def _silent(self) -> bool:
        return self.silent > _FRESH

    def _doing(self) -> list[str]:
        word = self.word
        if word is None:
            return []
        over = self.life == DEAD or self._silent
        said = ["has no heartbeat"] if word.beats is None and not (over or self.life == STOPPED) else []
        if word.phase:
            said.append(_since(f"in phase {word.phase!r}", word.phase_age + self.silent, over))
        elif word.beats is not None and not word.open and not over:
            said.append("tells of no phase")
        if word.sequence:
            name = f"#{word.sequence} {word.kind} {word.what!r}"
            said.append(
                _since(f"in {name}", word.age + self.silent, over) if word.open else f"its last collective was {name}"
            )
        return said


def _since(where: str, seconds: float, over: bool) -> str:
    return f"was {where}" if over else f"is {where} since {seconds:.0f} s"


def _joined(parts: list[str]) -> str:
    return ", ".join(part for part in parts if part) or "does not say what it does"


@cache
def own() -> Who:
    """Return which process this is."""
    host = socket.gethostname()[:_NAME]
    return Who(pid=os.getpid(), ticks=_ticks("self") or 0, machine=_machine(host), host=host)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=own.cache_clear)


def _machine(host: str) -> str:
    parts = [host]
    with contextlib.suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text())
    with contextlib.suppress(OSError):
        parts.append(os.readlink("/proc/self/ns/pid"))
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def _ticks(pid: int | str) -> int | None:
    """Return when a process of this machine was started, and None when it is none any more."""
    fields = _stat(pid)
    return int(fields[19]) if fields else None


def _stat(pid: int | str) -> list[str] | None:
    try:
        return Path(f"/proc/{pid}/stat").read_text("ascii", "replace").rpartition(")")[2].split()
    except OSError:
        return None


def life_of(who: Who | None) -> str:
    """Return whether a process lives, is stopped or dead; UNKNOWN on another machine and where nobody can tell."""
    if who is None or who.machine != own().machine or not sys.platform.startswith("linux"):
        return UNKNOWN
    fields = _stat(who.pid)
    if not fields or (who.ticks and int(fields[19]) != who.ticks):
        return DEAD
    return _STATES.get(fields[0], LIVES)


def see(rank: int, who: Who | None, told: Word | None, silent: float) -> Sight:
    """Return what is seen of a rank that is the process `who` and `told` something `silent` seconds ago."""
    here = who is not None and who.machine == own().machine
    word = beat_word(rank, who) if here else None
    return Sight(who=who, here=here, life=life_of(who), word=word or told, silent=0.0 if word else silent)


def own_word(number: int, *, failed: bool = False) -> Word:
    """Return what this rank says of itself; `failed` that the collective in which it is has failed."""
    heart, now = pulse.heart(), time.monotonic()
    word = Word(number=number, begun=collectives.begun(), failed=failed)
    if heart is not None and not heart.muted:
        phase = _phase(heart.phase.rstrip(b"\0").decode("utf-8", "replace"), word.begun)
        word = _with(word, beats=heart.beats, phase=phase, phase_age=now - heart.phase_at, step=heart.step)
    return _collective_in(word, collectives.last(), now)


def beat_word(rank: int, who: Who | None) -> Word | None:
    """Return what the heartbeat of a rank of this machine says; None without one, and when it is another process's."""
    folder = world.beats()
    beat = None if folder is None else heartbeat.read(heartbeat.path_for(folder, rank))
    if beat is None or (who is not None and beat.pid != who.pid):
        return None
    now = time.monotonic()
    begun = beat.collective.begun if beat.collective else 0
    phase = _phase(beat.phase, begun)
    word = Word(beats=beat.beats, phase=phase, phase_age=now - beat.phase_at, step=beat.step, begun=begun)
    return _collective_in(word, beat.collective, now)


def _phase(phase: str, begun: int) -> str:
    """Return the phase a rank has told; with "load" each begins, and a loop that tells of none never leaves it."""
    return "" if phase == _FIRST_PHASE and begun else phase


def _collective_in(word: Word, last: Collective | None, now: float) -> Word:
    if last is None:
        return word
    return _with(
        word,
        sequence=last.sequence,
        kind=last.kind,
        what=last.what,
        age=max(0.0, now - last.at),
        open=last.open,
        failed=word.failed or last.failed,
    )


def _with(word: Word, **changes: object) -> Word:
    return Word(**{**asdict(word), **changes})
