"""Every error fluxguard raises on purpose.

FluxguardError
  DeadlineExceeded (TimeoutError)    what, seconds
    WorkerStuck                      workers, samples
    RanksMissing                     ranks
  InputError (ValueError)            source, field, reason      the user's input: exit code 2
    LimitsError                      the same, for a limit
    RunOwned                         output_dir, pid
  StateUnusable                      path, reason
  CacheBroken (OSError)              path, reason
  PatchError
    UnknownCheckout (InputError)     path, looked_for
    RuleMissed                       rules, failed
    CheckoutChanged                  files, restored
"""

from __future__ import annotations

from collections.abc import Sequence


class FluxguardError(Exception):
    """Base of every error that fluxguard raises on purpose."""


class DeadlineExceeded(FluxguardError, TimeoutError):
    """Raised when a wait took longer than it may; builtin TimeoutError on every Python."""

    def __init__(self, what: str, seconds: float | None = None, hint: str = "") -> None:
        # With one argument, the whole message: so torch makes an exception of a worker again in the trainer.
        self.what = what
        self.seconds = seconds
        if seconds is not None:
            what = f"{what} did not finish within {seconds:g} s"
        super().__init__(what + (f"; {hint}" if hint else ""))


class WorkerStuck(DeadlineExceeded):
    """Raised when DataLoader workers delivered no batch in time and were killed to free the wait."""

    def __init__(self, seconds: float, workers: Sequence[int], samples: Sequence[object] = ()) -> None:
        self.workers = tuple(workers)
        self.samples = tuple(samples)
        hint = f"worker process {', '.join(map(str, self.workers)) or 'unknown'} was stuck and has been killed"
        if self.samples:
            hint += f"; it held the samples {', '.join(map(str, self.samples))}"
        super().__init__("a batch from the loader", seconds, hint)

    def __reduce__(self) -> tuple[type[WorkerStuck], tuple[object, ...]]:
        return type(self), (self.seconds, self.workers, self.samples)


class RanksMissing(DeadlineExceeded):
    """Raised when ranks did not come to a barrier."""

    def __init__(self, what: str, seconds: float, ranks: Sequence[int] = ()) -> None:
        self.ranks = tuple(ranks)
        super().__init__(what, seconds)


class InputError(FluxguardError, ValueError):
    """Raised when what the user gave cannot be used; names the file (or option) and the field."""

    def __init__(self, source: object, reason: str, field: str = "") -> None:
        self.source = str(source)
        self.field = field
        self.reason = reason
        super().__init__(f"{self.source}: {field + ': ' if field else ''}{reason}")


class LimitsError(InputError):
    """Raised when a limit is unknown, out of range, or contradicts another one."""


class RunOwned(InputError):
    """Raised when another supervisor already owns the output folder."""

    def __init__(self, output_dir: object, pid: int | None) -> None:
        self.output_dir = str(output_dir)
        self.pid = pid
        owner = f"process {pid}" if pid else "another process"
        super().__init__(output_dir, f"is owned by another supervisor ({owner}); see `fluxguard status {output_dir}`")


class StateUnusable(FluxguardError):
    """Raised when a saved state does not verify and must not be resumed from."""

    def __init__(self, path: object, reason: str) -> None:
        self.path = str(path)
        self.reason = reason
        super().__init__(f"{self.path}: {reason}")


class CacheBroken(FluxguardError, OSError):
    """Raised when a cache file is proven broken: truncated, failing its CRC, or not a regular file."""

    def __init__(self, path: object, reason: str = "") -> None:
        # With one argument, the whole message: so torch makes an exception of a worker again in the trainer.
        self.path = str(path)
        self.reason = reason
        super().__init__(f"{self.path}: {reason}" if reason else self.path)


class PatchError(FluxguardError):
    """Raised when a checkout cannot be hardened as promised."""


class UnknownCheckout(InputError, PatchError):
    """Raised when a folder does not look like an sd-scripts checkout."""

    def __init__(self, path: object, looked_for: str) -> None:
        self.path = str(path)
        self.looked_for = looked_for
        super().__init__(path, f"not an sd-scripts checkout (looked for {looked_for})")


class RuleMissed(PatchError):
    """Raised when a required rule protects nothing, or not all: a silent no-op would be an unprotected training."""

    def __init__(self, rules: Sequence[str], failed: Sequence[object] = ()) -> None:
        self.rules = tuple(rules)
        self.failed = tuple(failed)
        what = "cannot protect all that they found" if failed else "found nothing to protect"
        why = "".join(f"; {site}" for site in failed)
        super().__init__(f"required rules {what}: {', '.join(self.rules)}{why}; nothing was changed")


class CheckoutChanged(PatchError):
    """Raised when hardened files were edited since, so that taking the hardening back would lose the edit."""

    def __init__(self, files: Sequence[str], restored: Sequence[str] | None = None) -> None:
        self.files = tuple(files)
        self.restored = restored
        rest = "" if restored is None else f" ({len(restored)} other files were restored)"
        super().__init__(f"edited since it was hardened, left as it is: {', '.join(self.files)}{rest}")
