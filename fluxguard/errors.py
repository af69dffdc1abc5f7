"""Every error fluxguard raises on purpose, what it is to Python, and what it knows.

FluxguardError (Exception)
  DeadlineExceeded (TimeoutError)        what, seconds, thread
    WorkerStuck                          workers, samples
    RanksMissing                         ranks, doing
  WorkerDied (RuntimeError)              workers
  RanksDisagree (RuntimeError)           said
  RankFailed (RuntimeError)              rank, kind, message, what
  SubprocessFailed (RuntimeError)        what, code, reason
  InputError (ValueError)                source, field, reason      the user's input: exit code 2
    LimitsError                          the same, for a limit
    SetupFailed                          rank, variable
    RunOwned                             output_dir, pid
    UnknownCheckout (PatchError)         path, looked_for
  StateUnusable (OSError)                path, reason
  CacheBroken (OSError)                  path, reason
  PatchError (RuntimeError)
    RuleMissed                           rules, failed
    CheckoutChanged                      files, restored

Each survives being sent to another process by pickle, and can be made from one string, which is then its whole
message: so torch makes the error of a DataLoader's worker again in the trainer.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

E = TypeVar("E", bound="FluxguardError")


class FluxguardError(Exception):
    """Raised when fluxguard gives up on purpose; the base of all its errors."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _again, (type(self), self.args, self.__dict__)


def _again(kind: type[E], args: tuple[object, ...], known: Mapping[str, object]) -> E:
    """Make an error again without composing its message a second time."""
    error = kind.__new__(kind)
    error.args = args
    error.__dict__.update(known)
    return error


class DeadlineExceeded(FluxguardError, TimeoutError):
    """Raised when a wait took longer than it may; the builtin TimeoutError on every Python.

    Says `what` was waited for, for how many `seconds`, on which `thread`, and what can be done about it.
    """

    def __init__(self, what: str, seconds: float | None = None, hint: str = "", limit: str = "") -> None:
        """`hint` says more in plain words; `limit` is the name in `limits.WaitLimits` of the limit that has passed."""
        self.what = what
        self.seconds = seconds
        self.thread = ""
        parts = [what]
        if seconds is not None:
            self.thread = threading.current_thread().name
            parts = [f"{what} did not finish within {seconds:g} s on thread {self.thread}"]
        if hint:
            parts.append(hint)
        if limit:
            parts.append(f"if it is only slow, allow more with fluxguard.limits.use({limit}=SECONDS)")
        elif seconds is not None and not hint:
            parts.append("if it is only slow, allow more where that number is set")
        super().__init__("; ".join(parts))


class WorkerStuck(DeadlineExceeded):
    """Raised when DataLoader workers delivered no batch in time and were killed to free the wait."""

    def __init__(
        self, seconds: float | str, workers: Sequence[int] = (), samples: Sequence[object] = (), why: str = ""
    ) -> None:
        self.workers = tuple(workers)
        self.samples = tuple(samples)
        if isinstance(seconds, str):
            super().__init__(seconds)
            return
        hint = f"worker process {', '.join(map(str, self.workers)) or 'unknown'} was stuck and has been killed"
        if self.samples:
            hint += f"; it held the samples {', '.join(map(str, self.samples))}"
        if why:
            hint += f"; {why}"
        super().__init__("a batch from the loader", seconds, hint, "batch")


class WorkerDied(FluxguardError, RuntimeError):
    """Raised when a DataLoader worker ended although batches were expected of it, and none could take its place."""

    def __init__(self, why: str, workers: Sequence[int] = ()) -> None:
        self.workers = tuple(workers)
        named = ", ".join(map(str, self.workers))
        super().__init__(f"DataLoader worker (pid(s) {named}) exited unexpectedly: {why}" if workers else why)


_WHERE_IT_ENDED = (
    "look at the end of that rank's own output: an error there is the cause, nothing means that it was killed (most "
    "often for memory), left the loop before the others, or is stopped"
)


class RanksMissing(DeadlineExceeded):
    """Raised when ranks did not come to where the others wait for them.

    `doing` says of each missing rank, as far as it can be seen, what it does instead, in plain words.
    """

    def __init__(
        self,
        what: str,
        seconds: float | None = None,
        ranks: Sequence[int] = (),
        doing: Mapping[int, str] | None = None,
    ) -> None:
        """`seconds` is the limit that has passed; None when nobody had to wait for it, as for a dead process."""
        self.ranks = tuple(ranks)
        self.doing = dict(doing or {})
        hints = [f"rank {rank} {words}" for rank, words in sorted(self.doing.items())]
        if seconds is None and self.ranks:
            hints.append(_WHERE_IT_ENDED)
        super().__init__(what, seconds, "; ".join(hints), limit="" if seconds is None else "barrier")


class RanksDisagree(FluxguardError, RuntimeError):
    """Raised when ranks came to different places, or with a different epoch or step; none of them may go on.

    `said` holds the words of each rank, by rank.
    """

    def __init__(self, what: str, said: Sequence[str] = (), hint: str = "") -> None:
        """`hint` says what to do."""
        self.said = tuple(said)
        text = ": ".join([what, ", ".join(self.said)]) if self.said else what
        super().__init__("; ".join(part for part in (text, hint) if part))


class RankFailed(FluxguardError, RuntimeError):
    """Raised when another rank failed in what it did for all; that rank itself raises its own error.

    `kind` is the name of that error's class and `message` its text, cut where it is long.
    """

    def __init__(self, rank: int | str, kind: str = "", message: str = "", what: str = "") -> None:
        self.rank = rank if isinstance(rank, int) else -1
        self.kind = kind
        self.message = message
        self.what = what
        if isinstance(rank, str):
            super().__init__(rank)
            return
        text = ": ".join(part for part in (kind, message) if part)
        super().__init__(f"rank {rank} failed{f' in {what!r}' if what else ''}: {text}")


class SubprocessFailed(FluxguardError, RuntimeError):
    """Raised when a process of ours that was to compute something died, or said that it cannot.

    `code` is its exit code (a signal as a negative number), `reason` what it said.
    """

    def __init__(self, what: str, code: int | None = None, reason: str = "") -> None:
        self.what = what
        self.code = code
        self.reason = reason
        if code is None:
            super().__init__(what)
            return
        ended = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}" if code else ""
        said = "; ".join(part for part in (ended, reason) if part)
        super().__init__(f"{what!r} failed in its subprocess: {said or 'it gave no result'}")


class InputError(FluxguardError, ValueError):
    """Raised when what the user gave cannot be used; names the file (or option) and the field."""

    def __init__(self, source: object, reason: str = "", field: str = "") -> None:
        self.source = str(source)
        self.field = field
        self.reason = reason
        super().__init__(": ".join(part for part in (self.source, field, reason) if part))


class LimitsError(InputError):
    """Raised when a limit is unknown, out of range, or contradicts another one."""


class SetupFailed(InputError):
    """Raised when the ranks of a training cannot work together as they were started; every rank says the same.

    `rank` is the one that has to be put right (None where that is not known), and `variable` what of it: the name of
    an environment variable, or "torch" and the like for what is installed.
    """

    def __init__(self, source: object, reason: str = "", variable: str = "", rank: int | None = None) -> None:
        self.rank = rank
        super().__init__(source, reason, variable)

    @property
    def variable(self) -> str:
        """The same as `field`."""
        return self.field


class RunOwned(InputError):
    """Raised when another supervisor already owns the output folder."""

    def __init__(self, output_dir: object, pid: int | None = 0) -> None:
        """`pid` is None where nobody knows which process it is."""
        self.output_dir = str(output_dir)
        self.pid = pid
        owner = f"process {pid}" if pid else "another process"
        why = f"is supervised already ({owner}): `fluxguard watch {output_dir}` shows it, `fluxguard stop` stops it"
        super().__init__(output_dir, "" if pid == 0 else why)


class StateUnusable(FluxguardError, OSError):
    """Raised when a saved state does not verify and must not be resumed from."""

    def __init__(self, path: object, reason: str = "") -> None:
        self.path = str(path)
        self.reason = reason
        super().__init__(f"{self.path}: {reason}" if reason else self.path)


class CacheBroken(FluxguardError, OSError):
    """Raised when a cache file is proven broken: truncated, failing its CRC, or not a regular file."""

    def __init__(self, path: object, reason: str = "") -> None:
        self.path = str(path)
        self.reason = reason
        super().__init__(f"{self.path}: {reason}" if reason else self.path)


class PatchError(FluxguardError, RuntimeError):
    """Raised when a checkout cannot be hardened as promised."""


class UnknownCheckout(InputError, PatchError):
    """Raised when a folder does not look like an sd-scripts checkout."""

    def __init__(self, path: object, looked_for: str = "") -> None:
        self.path = str(path)
        self.looked_for = looked_for
        super().__init__(path, f"not an sd-scripts checkout (looked for {looked_for})" if looked_for else "")


class RuleMissed(PatchError):
    """Raised when a required rule protects nothing, or not all: a silent no-op would be an unprotected training."""

    def __init__(self, rules: Sequence[str] | str, failed: Sequence[object] = ()) -> None:
        self.rules = () if isinstance(rules, str) else tuple(rules)
        self.failed = tuple(failed)
        what = "cannot protect all that they found" if failed else "found nothing to protect"
        why = "".join(f"; {site}" for site in failed)
        text = f"required rules {what}: {', '.join(self.rules)}{why}; nothing was changed"
        super().__init__(rules if isinstance(rules, str) else text)


class CheckoutChanged(PatchError):
    """Raised when hardened files were edited since, so that taking the hardening back would lose the edit."""

    def __init__(self, files: Sequence[str] | str, restored: Sequence[str] | None = None) -> None:
        self.files = () if isinstance(files, str) else tuple(files)
        self.restored = restored
        rest = "" if restored is None else f" ({len(restored)} other files were restored)"
        text = f"edited since it was hardened, left as it is: {', '.join(self.files)}{rest}"
        super().__init__(files if isinstance(files, str) else text)
