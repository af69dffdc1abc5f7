"""Hardening a checkout: apply, check, and take it back byte for byte."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from fluxguard.errors import CheckoutChanged, InputError, PatchError, RuleMissed
from fluxguard.patching import checkout as checkouts
from fluxguard.patching import journal
from fluxguard.patching import stamp as stamps
from fluxguard.patching.checkout import Checkout
from fluxguard.patching.lock import held
from fluxguard.patching.originals import original
from fluxguard.patching.places import FLUXGYM, ORIGINALS, PACKAGE, SIGNPOST, STAMP
from fluxguard.patching.report import Report
from fluxguard.patching.stamp import AS_LEFT, EDITED, Choice, Stamp
from fluxguard.patching.vendored import our_digest, vendored

if TYPE_CHECKING:
    from fluxguard.patching.planning import Plan, Progress

CORE = frozenset({"durable-states", "exact-resume", "pulse"})
"""What a supervisor relies on in a hardened trainer."""


def apply(
    checkout: str | os.PathLike[str],
    *,
    to: str | os.PathLike[str] | None = None,
    partial: bool = False,
    only: Iterable[str] = (),
    skip: Iterable[str] = (),
    progress: Progress = lambda done, of: None,
) -> Report:
    """Harden a checkout in place, or a copy of it at `to`; twice is the same as once.

    Raises RuleMissed when a required rule found no site (unless `partial`), CheckoutChanged when hardened files were
    edited since, InputError when a chosen rule does not exist, and OSError; nothing has been changed then.
    """
    found = checkouts.recognise(checkout)
    choice = Choice.of(only, skip)
    if to is None:
        with held(found.root):
            journal.recover(found.root)
            return _harden(found, choice, partial=partial, progress=progress)
    target = Path(to).absolute()
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise InputError("--to", f"{target} is there already and is not empty")
    if target.resolve().is_relative_to(found.root):
        raise InputError("--to", f"{target} lies in the checkout itself")
    target.parent.mkdir(parents=True, exist_ok=True)
    with held(target.parent):
        return harden_copy(found, target, choice, partial=partial, progress=progress)


def _harden(found: Checkout, choice: Choice, *, partial: bool, progress: Progress) -> Report:
    stamp = stamps.read(found.root)
    if stamp is None:
        _refuse_foreign(found)
    elif edited := stamps.edited(found.root, stamp):
        raise CheckoutChanged(edited)
    elif (report := _as_stamped(found, stamp, choice)) is not None and (partial or not report.missed):
        return report
    from fluxguard.patching.planning import plan

    planned = plan(found.root, choice=choice, progress=progress)
    if planned.marked and stamp is None:
        raise _stamp_gone(found, planned.marked)
    if planned.missed and not partial:
        raise RuleMissed(planned.missed, [failed for failed in planned.failed if failed.rule in planned.missed])
    _write(planned, stamp)
    return planned.report(done=True)


def _refuse_without_stamp(found: Checkout) -> None:
    """Raise when hardened files lie in a checkout of which nothing is known any more."""
    names, _ = checkouts.sources(found)
    if marked := [name for name in names if stamps.MARK in (found.root / name).read_bytes()]:
        raise _stamp_gone(found, marked)


def _stamp_gone(found: Checkout, marked: Sequence[str]) -> PatchError:
    return PatchError(
        f"{found.root}: {len(marked)} files are hardened ({', '.join(marked[:3])} ...), but their stamp is gone; get "
        "them back from git (`git checkout .`), then apply again"
    )


def _refuse_foreign(found: Checkout) -> None:
    """Raise when what we would bring is there and is not ours."""
    _sweep(found.root)
    for name in (PACKAGE, SIGNPOST):
        if (found.root / name).exists():
            raise PatchError(f"{found.root / name}: is there already and is not ours")


def _write(planned: Plan, stamp: Stamp | None) -> None:
    root = planned.checkout
    known = stamp.files if stamp else {}
    writes: dict[str, journal.Content] = {}
    files: dict[str, stamps.Digests] = {}
    for change in planned.changes:
        files[change.path] = stamps.digests(change.before, change.after)
        if change.path not in known or stamps.content(root / ORIGINALS / change.path) != change.before:
            writes[f"{ORIGINALS}/{change.path}"] = _before(root, change.path, change.before)
        if stamps.content(root / change.path) != change.after:
            writes[change.path] = change.after
    back, _, unneeded = _way_back(root, {name: digests for name, digests in known.items() if name not in files})
    brought = vendored(planned.kind)
    digests = {name: checkouts.digest(data) for name, data in brought.items()}
    writes |= back
    writes |= {name: data for name, data in brought.items() if stamps.content(root / name) != data}
    unneeded += [name for name in (stamp.vendored if stamp else ()) if name not in brought]
    writes[STAMP] = Stamp(
        digest=our_digest(),
        files=files,
        vendored=digests,
        tree=planned.tree,
        choice=planned.choice,
        whole=planned.whole,
        report=planned.report(done=True).to_mapping(),
        python=sys.executable if planned.kind == FLUXGYM else None,
    ).to_bytes()
    journal.change(root, writes, unneeded)


def _before(root: Path, name: str, before: bytes) -> journal.Content:
    """Return the original of a file as what lies there now, when it does, so that its times and rights are kept."""
    return root / name if stamps.content(root / name) == before else before


def _way_back(
    root: Path, files: dict[str, stamps.Digests]
) -> tuple[dict[str, journal.Content], dict[str, stamps.Digests], list[str]]:
    """Return what restores hardened files, which of them were edited and stay, and the originals not needed then."""
    writes: dict[str, journal.Content] = {}
    edited: dict[str, stamps.Digests] = {}
    unneeded: list[str] = []
    for name, known in files.items():
        data = stamps.content(root / name)
        state = stamps.state_of(data, known)
        if state == EDITED:
            edited[name] = known
            continue
        if state == AS_LEFT and data is not None:
            before = original(root, name, like=data, known=known)
            kept = root / ORIGINALS / name
            writes[name] = kept if stamps.content(kept) == before else before
        unneeded.append(f"{ORIGINALS}/{name}")
    return writes, edited, unneeded


def harden_copy(found: Checkout, target: Path, choice: Choice, *, partial: bool, progress: Progress) -> Report:
    """Make a hardened copy; to be called by whoever holds the folder around it. What was cut off before is cleared."""
    fresh = target.parent / f".{target.name}.fluxguard"
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir()
    try:
        checkouts.copy(found.root, fresh)
        if (stamp := stamps.read(found.root)) is not None:
            _restore(found.root, fresh, stamp)
        report = _harden(Checkout(fresh, found.kind), choice, partial=partial, progress=progress)
        fresh.chmod(found.root.stat().st_mode)
        if target.exists():
            target.rmdir()
        fresh.rename(target)
    except BaseException:
        shutil.rmtree(fresh, ignore_errors=True)
        raise
    return replace(report, checkout=target)


def _restore(hardened: Path, fresh: Path, stamp: Stamp) -> None:
    """Turn a copy of a hardened checkout back into what was hardened. Raises CheckoutChanged."""
    if edited := stamps.edited(hardened, stamp):
        raise CheckoutChanged(edited)
    writes, _, _ = _way_back(hardened, dict(stamp.files))
    for name, content in writes.items():
        (fresh / name).write_bytes(content if isinstance(content, bytes) else content.read_bytes())
    for name in stamp.vendored:
        (fresh / name).unlink(missing_ok=True)
    _sweep(fresh)


def revert(checkout: str | os.PathLike[str]) -> tuple[str, ...]:
    """Take the hardening of a checkout back, byte for byte; return the files that were restored.

    Raises CheckoutChanged when hardened files were edited since: those stay as they are, with their originals and the
    guard that they call, and the others are restored. Undo the edit and revert again.
    """
    found = checkouts.recognise(checkout)
    root = found.root
    with held(root):
        journal.recover(root)
        if (stamp := stamps.read(root)) is None:
            _refuse_without_stamp(found)
            _sweep(root)
            return ()
        edited = stamps.edited(root, stamp)
        writes, files, removes = _way_back(root, dict(stamp.files))
        restored = tuple(writes)
        kept = {name: known for name, known in stamp.vendored.items() if files or name in edited}
        removes += [name for name in stamp.vendored if name not in kept]
        if edited:
            writes[STAMP] = replace(stamp, files=files, vendored=kept, tree="", report=None).to_bytes()
        else:
            removes.append(STAMP)
        journal.change(root, writes, removes)
        _sweep(root)
    if edited:
        raise CheckoutChanged(edited, restored)
    return restored


def _sweep(root: Path) -> None:
    """Remove what Python compiled of ours where we are gone."""
    package, signpost = root / PACKAGE, root / SIGNPOST
    if not (package / "__init__.py").exists():
        for folder in (package / "guard", package):
            shutil.rmtree(folder / "__pycache__", ignore_errors=True)
            with contextlib.suppress(OSError):  # it is not there, or somebody has put something into it
                folder.rmdir()
    if not signpost.exists():
        for path in (signpost.parent / "__pycache__").glob(f"{signpost.stem}.*.pyc"):
            path.unlink(missing_ok=True)


def check(checkout: str | os.PathLike[str], choice: Choice | None = None, progress: Progress | None = None) -> Report:
    """Return what is guarded and what is not, by the rules chosen when it was hardened (or by `choice`).

    Changes nothing, except that a change that was cut off is undone.
    """
    found = checkouts.recognise(checkout)
    if journal.is_cut_off(found.root):
        with held(found.root):
            journal.recover(found.root)
    stamp = stamps.read(found.root)
    wanted = choice or (stamp.choice if stamp else stamps.ALL)
    if stamp and (report := _as_stamped(found, stamp, wanted)) is not None:
        return report
    from fluxguard.patching.planning import plan

    report = plan(found.root, choice=wanted, progress=progress or (lambda done, of: None)).report()
    lost = [name for name in (stamp.vendored if stamp else ()) if not (found.root / name).exists()]
    return replace(report, lost=tuple(lost))


def _as_stamped(found: Checkout, stamp: Stamp, choice: Choice) -> Report | None:
    """Return what was said when a checkout was hardened, if everything is as it was then; saves the whole search."""
    if stamp.report is None or stamp.choice != choice or stamp.digest != our_digest():
        return None
    names, _ = checkouts.sources(found)
    if stamps.tree_digest((name, (found.root / name).read_bytes()) for name in names) != stamp.tree:
        return None
    if not _is_complete(found.root, stamp):
        return None
    return replace(Report.from_mapping(stamp.report), checkout=found.root)


def _is_complete(root: Path, stamp: Stamp) -> bool:
    brought = ((stamps.content(root / name), known) for name, known in stamp.vendored.items())
    return all(data is not None and checkouts.digest(data) == known for data, known in brought)


def is_hardened(checkout: str | os.PathLike[str], *, by_us: bool = True) -> bool:
    """Return whether a checkout was hardened with every required rule, and is as it was left.

    By this version, or with `by_us` false by any: a run keeps to the copy that it has begun in. One in which a rule of
    CORE found nothing is not: it is trained and resumed as any unhardened one.
    """
    root = Path(checkout).resolve()
    stamp = stamps.read(root)
    if stamp is None or journal.is_cut_off(root) or not stamp.whole:
        return False
    if by_us and stamp.digest != our_digest():
        return False
    if stamp.report is None or CORE & set(Report.from_mapping(stamp.report).missed):
        return False
    states = (stamps.state_of(stamps.content(root / name), known) for name, known in stamp.files.items())
    return all(state == AS_LEFT for state in states) and _is_complete(root, stamp)
