"""Hardened copies that supervised runs train in, so that the checkout itself stays clean for `git pull`."""

from __future__ import annotations

import contextlib
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from fluxguard.errors import PatchError, RuleMissed
from fluxguard.patching import checkout as checkouts
from fluxguard.patching import stamp as stamps
from fluxguard.patching.hardening import CORE, check, harden_copy, is_hardened
from fluxguard.patching.lock import held
from fluxguard.patching.planning import plan
from fluxguard.patching.report import Report
from fluxguard.patching.vendored import our_digest

_DIGEST_LETTERS = 12


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """The checkout that a supervised run trains in."""

    checkout: Path
    said: tuple[str, ...] = ()
    """What its user should know: what is not protected, and why."""


def to_train_in(checkout: str | os.PathLike[str], used: Path | None = None) -> Chosen:
    """Return a hardened checkout for a run: this one, the one it has `used` so far, or a copy made now.

    Where that cannot be had, it is the checkout as it stands and what is said tells why: a training that is not
    hardened is better than none.
    """
    root = Path(checkout)
    if is_hardened(root):
        return Chosen(checkout=root)
    if used is not None and _is_copy_of(root, used) and is_hardened(used, by_us=False):
        return Chosen(checkout=used)
    try:
        report = hardened_copy(root, partial=True)
        _keep_out_of_git(report.checkout)
    except (PatchError, OSError) as error:
        return Chosen(checkout=root, said=(f"trained as it is, not hardened: {error}",))
    return Chosen(
        checkout=report.checkout,
        said=(
            f"training in a hardened copy: {report.checkout}",
            *(f"not protected: {rule} finds nothing in {root}" for rule in report.missed),
        ),
    )


def hardened_copy(checkout: str | os.PathLike[str], *, partial: bool = False) -> Report:
    """Return the hardened copy that a supervised run uses, made beside the checkout when it is not there yet.

    It is named by the digest of checkout, rules and guard, so that a `git pull` in the checkout never reaches a run
    that has begun. Raises as `apply` does, and RuleMissed, `partial` or not, where a rule of CORE finds nothing.
    """
    found = checkouts.recognise(checkout)
    target = found.root.parent / (_prefix(found.root) + _digest_of_all(found.root)[:_DIGEST_LETTERS])
    if is_hardened(target):
        return check(target)
    if lacking := [rule for rule in plan(found.root).missed if rule in CORE]:
        raise RuleMissed(lacking)
    with held(target.parent):
        if not is_hardened(target):
            shutil.rmtree(target, ignore_errors=True)
            return harden_copy(found, target, stamps.ALL, partial=partial, progress=lambda done, of: None)
    return check(target)


def _keep_out_of_git(copy: Path) -> None:
    """Keep the copy out of a repository around the checkout, such as FluxGym's."""
    with contextlib.suppress(OSError):
        (copy / ".gitignore").write_text("*\n", encoding="utf-8")


def _is_copy_of(root: Path, copy: Path) -> bool:
    return copy.parent == root.resolve().parent and copy.name.startswith(_prefix(root.resolve()))


def _prefix(root: Path) -> str:
    return f".{root.name}-fluxguard-"


def _digest_of_all(root: Path) -> str:
    # A changed JSON beside the sources is another copy as well; a caption that lies in the checkout is not.
    files = (
        (name, path.read_bytes())
        for name, path in checkouts.copied(root)
        if path.suffix.lower() in checkouts.CODE and path.is_file()
    )
    return checkouts.digest(f"{stamps.tree_digest(files)} {our_digest()}".encode())
