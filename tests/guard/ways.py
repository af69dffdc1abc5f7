"""The table of the ways to hang and to die: how each is started, how it must end, and what must be said about it."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from fluxguard.rundir import AGAIN

LIMIT = 1.0
"""Of every wait but the first batch, in seconds; the programs open their own scopes with the same."""
PROMPT = LIMIT + 1.0
"""The law: gone by then, counted from the beginning of the wait."""
HELD = LIMIT + 2.0
"""Where no Python code runs any more: faulthandler's timer stands 1 s behind the limit."""
HEAL = LIMIT + 6.0
"""Until the program is over: the wait, fresh workers that prove themselves, and the rest of an epoch."""
READ = 2 * LIMIT + 1.0
"""A file that gives nothing is opened once more, and has its limit again."""
ENDING = 3 * LIMIT
"""At the end of the interpreter: it is seen at a look that comes every 0.9 s, and then has the limit of the ending."""

ENDED = AGAIN
RAISED = 1
LIVED = 0
HEALED = 0
BACKED = 1
"""The exit code of faulthandler's timer."""

LINUX = sys.platform.startswith("linux")


@dataclass(frozen=True)
class Way:
    """One row."""

    program: str
    """The program in tests/faults, and its arguments."""
    code: int = ENDED
    says: str = ""
    """What must be said, on the output or in the last words or among the stacks; alternatives do not exist."""
    within: float = PROMPT
    """Seconds from the beginning of the wait until nothing of it lives; above PROMPT with the reason beside it."""
    torch: bool = False
    """Whether it needs torch: then it is started by forking a process that has imported it."""
    before: tuple[str, ...] = ()
    """What runs python: a shell that mounts something, say."""
    start: float = 0.0
    """Seconds that its start may take beyond that of others."""
    heals: int = 3
    """How often it may be healed."""
    first_batch: float = 20.0
    """The limit of a first batch, in seconds."""
    platform: str = ""
    """Without the capabilities that this platform lacks; empty for none missing."""
    leaves: str = ""
    """What is left of it, and why; then there must be such a thing, and nothing else."""
    fails: str = ""
    """The reason for which the law does not hold yet."""

    @property
    def id(self) -> str:
        """Its name in a report."""
        name = self.program.replace(".py ", ":").removesuffix(".py").replace(" ", "-")
        return f"{name}-as-on-{self.platform}" if self.platform else name


SCOPE = "a wait that is not ours did not finish within 1 s"
SWAP = "block swap did not finish within 1 s"
SMALL_DISK = ("unshare", "-rm", "sh", "-c", 'mkdir small && mount -t tmpfs -o size=64k small small && exec "$@"', "sh")
"""A user's own name space, in which a folder is a disk of 64 KiB."""

HANGS = (
    Way("hangs.py stopped_meanwhile", says='"what": "block swap"', within=14.0),  # 6 s of them it was stopped
    Way("hangs.py future", says=SWAP),
    Way("hangs.py future page", RAISED, f"DeadlineExceeded: {SWAP}"),
    Way("hangs.py future_on_a_thread", says=SWAP),
    Way("hangs.py pool_at_exit", 0, "the end of the process did not end within 1 s", ENDING),
    Way("hangs.py pool_at_exit_after_an_error", RAISED, "the end of the process did not end within 1 s", ENDING),
    Way("hangs.py pool_shut_down", says="reading did not finish within 1 s"),
    Way("hangs.py busy", says=SCOPE),
    Way("hangs.py c_call", says=SCOPE),
    Way("hangs.py c_call_with_the_interpreter", BACKED, "in c_call_with_the_interpreter", HELD),
    Way("held_gil.py 1 swap", BACKED, "in hold", LIMIT + HELD),  # its own limit is twice as long
    Way("hangs.py c_read", RAISED, "DeadlineExceeded: reading image.npz did not finish within 1 s", READ),
    Way("hangs.py c_read_on_a_thread", says="reading image.npz", within=READ),
    Way("hangs.py lock_of_its_own", says="in lock_of_its_own"),
    Way("hangs.py two_locks", says="in take"),
    Way("hangs.py fork_with_a_lock", says="in fork_with_a_lock"),
    Way("hangs.py full_stdout", says=SCOPE),
    Way("hangs.py full_stderr", says='"what": "block swap"'),
    Way("hangs.py child_program", says=SCOPE),
    Way("hangs.py setsid_program", says=SWAP),
    Way("hangs.py setsid_fork", says=SWAP),
    Way("hangs.py grandchild", says=SWAP),
    Way("hangs.py thread_after_main", says=SCOPE),
    Way("hangs.py end_on_a_dead_disk", says=SWAP),
    Way("hangs.py end_on_a_failing_disk", says=SWAP),
    Way("fork_in_a_wait.py 1", BACKED, "child ended 0", HELD),
)

SCOPES = (
    Way("scopes.py inner_longer", says="the outer one did not finish within 1 s"),
    Way("scopes.py inner_shorter", says="the inner one did not finish within 1 s"),
    Way("scopes.py inner_over", says="the outer one did not finish within 1 s"),
    Way("scopes.py outer_kept", says="the outer one did not finish within 1 s"),
    Way("scopes.py body_raises", LIVED, "lived (0.0, 0.0)", 3.0),  # it waits for what must not come
    Way("scopes.py interrupted", LIVED, "lived", 3.0),  # the same
    Way("scopes.py terminated", -15),
    Way("scopes.py signals", says="signals 4"),
    Way("scopes.py child_lives_on", LIVED, "child lived\nchild ended 0", 3.5),  # the same
    Way("scopes.py spawn", says="a spawned process did not finish within 1 s"),
    Way("scopes.py threads", says="the stuck one did not finish within 1 s"),
)

FILES = (
    Way("bad_files.py fifo", RAISED, "CacheBroken: image.npz: is a FIFO, not a regular file"),
    Way("bad_files.py fifo_behind_a_link", RAISED, "CacheBroken: image.npz: is a FIFO, not a regular file"),
    Way("bad_files.py late_fifo", RAISED, "DeadlineExceeded: reading image.npz did not finish within 1 s", READ),
    Way("bad_files.py late_fifo_on_a_thread", says="reading image.npz", within=READ),
    Way("bad_files.py truncated", RAISED, "CacheBroken: image.npz: is truncated or damaged"),
    Way("bad_files.py flipped", RAISED, "CacheBroken: image.npz: is truncated or damaged (Bad CRC-32"),
)

DISKS = (
    Way("disks.py full_file", RAISED, "No space left on device", before=SMALL_DISK),
    Way("disks.py full_state", RAISED, "No space left on device", before=SMALL_DISK),
    Way("disks.py too_big_file", RAISED, "File too large"),
    Way("disks.py too_big_state", RAISED, "File too large"),
    Way("disks.py failing_file", RAISED, "Input/output error"),
    Way("disks.py failing_state", RAISED, "Input/output error"),
)

STUCK = "a batch from the loader"
UNMADE = 6.0
"""An ordinary end: the interpreter takes torch and all that came with it apart, on cores that others use."""
FIRST = Way("workers.py first_batch", says=STUCK, torch=True, heals=0, first_batch=LIMIT)
ONCE = {
    "stopped": "was stopped (SIGSTOP), and so stuck, for 1 s and was replaced",
    "unwilling": "was stuck for 1 s and was replaced",
    "busy": "was stuck for 1 s and was replaced",
    "holding": "was stuck for 1 s and was replaced",
    "fifo": "was stuck for 1 s and was replaced",
    "exits": "exited with code 3 and was replaced",
    "exits_well": "exited with code 0 and was replaced",
    "system_exit": "exited with code 4 and was replaced",
    "killed": "was killed by SIGKILL (as the system does when memory runs out: fewer workers need less) and was",
    "segfault": "was killed by SIGSEGV and was replaced",
    "grandchild": "was stuck for 1 s and was replaced",
    "forked_grandchild": "was stuck for 1 s and was replaced",
}
"""What a worker may do, and what must be said where that passes and it is healed."""
ALWAYS = {
    "stopped": STUCK,
    "unwilling": STUCK,
    "busy": STUCK,
    "holding": STUCK,
    "fifo": STUCK,  # which file, nothing tells: the open itself blocks
    "exits": "exited with code 3",
    "exits_well": "exited with code 0",
    "system_exit": "exited with code 4",
    "killed": "was killed by SIGKILL",
    "segfault": "was killed by SIGSEGV",
    "grandchild": STUCK,
    "forked_grandchild": STUCK,
}
"""The same where nothing is healed, so that it must be ended."""
WORKERS = (
    Way("stuck_swap_on_autograd.py", says=SWAP, torch=True),
    FIRST,
    *(Way(f"workers.py {way}", says=says, torch=True, heals=0) for way, says in ALWAYS.items()),
    *(Way(f"workers.py {way} once", HEALED, says, HEAL, torch=True) for way, says in ONCE.items()),
    Way("workers.py unwilling page", RAISED, "WorkerStuck: a batch from the loader", UNMADE, torch=True, heals=0),
)


_OTHERWISE: Mapping[tuple[str, str], Mapping[str, Any]] = {
    ("windows", "workers.py unwilling"): {"torch": False, "start": 20.0},  # its workers import torch themselves
    ("windows", "hangs.py c_read"): {
        "code": ENDED,
        "says": "reading image.npz",
    },  # no alarm: what cannot be interrupted is ended
    ("macos", "hangs.py fork_with_a_lock"): {"leaves": "a forked child: only /proc knows of it"},
}
_ELSEWHERE = {
    "windows": (
        "workers.py unwilling",
        "hangs.py future",
        "hangs.py future page",
        "hangs.py pool_at_exit",
        "hangs.py c_call_with_the_interpreter",
        "hangs.py c_read",
        "hangs.py c_read_on_a_thread",
        "scopes.py inner_over",
        "scopes.py body_raises",
        "scopes.py spawn",
        "bad_files.py truncated",
        "disks.py failing_file",
    ),
    "macos": (
        "hangs.py c_read",
        "hangs.py c_read_on_a_thread",
        "hangs.py fork_with_a_lock",
        "scopes.py signals",
        "scopes.py child_lives_on",
    ),
}
"""The rows that a missing capability could change, by the platform that lacks it."""


def _elsewhere() -> Iterator[Way]:
    known = {way.program: way for way in (*HANGS, *SCOPES, *FILES, *DISKS, *WORKERS)}
    for platform, programs in _ELSEWHERE.items():
        for program in programs:
            yield replace(known[program], platform=platform, **_OTHERWISE.get((platform, program), {}))


WAYS = (*HANGS, *SCOPES, *FILES, *DISKS, *WORKERS, *_elsewhere())
