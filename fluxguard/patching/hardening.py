"""Hardening a checkout: plan without touching it, apply, check, and take it back byte for byte."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fluxguard.errors import CheckoutChanged, InputError, PatchError, RuleMissed
from fluxguard.patching import checkout as checkouts
from fluxguard.patching.rewriting import EditFailed, Site, Unparsable, marks, rewrite
from fluxguard.patching.rules import FOLDER, Rule, load_rules
from fluxguard.rundir import read_json, write_json

STAMP = ".fluxguard-stamp.json"
ORIGINALS = ".fluxguard-originals"
PACKAGE = "fluxguard"
LEAVES = ("__init__", "errors", "clock", "limits", "heartbeat", "rundir", "manifest")

_SOURCE = Path(__file__).resolve().parents[1]
_NEW_FILE_MODE = 0o644
_DIGEST_LETTERS = 12


@dataclass(frozen=True, kw_only=True)
class Change:
    """One file of a plan."""

    path: str
    """Relative to the checkout."""
    before: bytes
    after: bytes


@dataclass(frozen=True, kw_only=True)
class Row:
    """What one rule does in a checkout."""

    rule: str
    title: str
    severity: str
    required: bool
    sites: int
    """Sites guarded, by us or by somebody else."""
    unguarded: int
    """Sites found and not guarded (yet)."""
    files: tuple[str, ...]
    """Files with a site."""
    missed: bool
    """A required rule that found nothing to protect."""


@dataclass(frozen=True, kw_only=True)
class Report:
    """What hardening did, or what a check found."""

    checkout: Path
    rows: tuple[Row, ...]
    skipped: Mapping[str, str]
    """Files that could not be searched, with the reason."""
    changed: tuple[str, ...] = ()
    """Files that hardening changes."""
    edited: tuple[str, ...] = ()
    """Hardened files that were edited since."""

    @property
    def missed(self) -> tuple[str, ...]:
        """Required rules that found nothing."""
        return tuple(row.rule for row in self.rows if row.missed)

    @property
    def hardened(self) -> bool:
        """Whether every required rule is in force and no site is open."""
        return not self.edited and not any(row.missed or (row.required and row.unguarded) for row in self.rows)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What hardening would change; nothing has been touched."""

    checkout: Path
    changes: tuple[Change, ...]
    sites: Mapping[str, tuple[Site, ...]]
    """File -> its sites."""
    skipped: Mapping[str, str]
    missed: tuple[str, ...]
    rules: tuple[Rule, ...]

    def pending(self) -> frozenset[str]:
        """Return the files that are not (or not any more) as this plan would leave them."""
        return frozenset(
            change.path for change in self.changes if (self.checkout / change.path).read_bytes() != change.after
        )

    def report(self) -> Report:
        """Return the plan as a table, against what is in the checkout now."""
        pending = self.pending()
        return Report(
            checkout=self.checkout,
            rows=tuple(_row(rule, self.sites, pending, missed=rule.id in self.missed) for rule in self.rules),
            skipped=self.skipped,
            changed=tuple(change.path for change in self.changes),
            edited=_edited(self.checkout, _stamp(self.checkout)),
        )


def plan(checkout: str | os.PathLike[str], rules: Sequence[Rule] | None = None) -> Plan:
    """Return what hardening changes in a checkout, seen from its originals when it is hardened already.

    Raises UnknownCheckout, and EditFailed naming the file and the rule when a site cannot be changed.
    """
    root = checkouts.recognise(checkout)
    rules = load_rules() if rules is None else tuple(rules)
    needs = tuple({edit.needs for rule in rules for edit in rule.edits})
    changes: list[Change] = []
    sites: dict[str, tuple[Site, ...]] = {}
    skipped: dict[str, str] = {}
    sources = dict(_pristine(root))
    for name, data in sources.items():
        if not any(literal.encode() in data for literal in needs):
            continue
        try:
            text, encoding, mark = checkouts.decode(data)
            changed, found = rewrite(text, rules)
        except (SyntaxError, UnicodeDecodeError, Unparsable) as error:
            skipped[name] = str(error)
            continue
        except EditFailed as error:
            raise PatchError(f"{name}: {error}") from error
        if found:
            sites[name] = found
        if changed != text:
            changes.append(Change(path=name, before=data, after=mark + changed.encode(encoding)))
    return Plan(
        checkout=root,
        changes=tuple(changes),
        sites=sites,
        skipped=skipped,
        missed=_missed(rules, sites, sources),
        rules=tuple(rules),
    )


def _pristine(root: Path) -> Iterator[tuple[str, bytes]]:
    """Yield name and content of each source as it was before it was hardened."""
    hardened = _stamp(root).get("files", {})
    for path in checkouts.sources(root):
        name = path.relative_to(root).as_posix()
        data = path.read_bytes()
        if name in hardened and checkouts.digest(data) == hardened[name]["after"]:
            data = (root / ORIGINALS / name).read_bytes()
        yield name, data


def _missed(
    rules: Sequence[Rule], sites: Mapping[str, tuple[Site, ...]], sources: Mapping[str, bytes]
) -> tuple[str, ...]:
    """Return the required rules that found nothing where a training with FLUX passes; sites elsewhere prove nothing."""
    path = checkouts.on_the_path(sources)
    if not path:
        return ()
    found = {(site.rule, site.edit) for name in path for site in sites.get(name, ())}
    return tuple(
        rule.id
        for rule in rules
        if rule.required
        and any(rule.unless_without.encode() in sources[name] for name in path)
        and any((rule.id, number) not in found for number, edit in enumerate(rule.edits) if not edit.optional)
    )


def _row(rule: Rule, sites: Mapping[str, tuple[Site, ...]], pending: Set[str], *, missed: bool) -> Row:
    mine = [(name, site) for name, per_file in sites.items() for site in per_file if site.rule == rule.id]
    open_sites = sum(site.state == "new" and name in pending for name, site in mine)
    return Row(
        rule=rule.id,
        title=rule.title,
        severity=rule.severity,
        required=rule.required,
        sites=len(mine) - open_sites,
        unguarded=open_sites,
        files=tuple(dict.fromkeys(name for name, _ in mine)),
        missed=missed,
    )


def apply(
    checkout: str | os.PathLike[str], *, to: str | os.PathLike[str] | None = None, partial: bool = False
) -> Report:
    """Harden a checkout in place, or a copy of it at `to`; twice is the same as once.

    Raises RuleMissed when a required rule found no site (unless `partial`), CheckoutChanged when hardened files were
    edited since, and OSError; nothing has been changed then.
    """
    root = checkouts.recognise(checkout)
    if to is not None:
        return _apply_to_copy(root, Path(to).absolute(), partial=partial)
    if edited := _edited(root, _stamp(root)):
        raise CheckoutChanged(edited)
    planned = plan(root)
    if planned.missed and not partial:
        raise RuleMissed(planned.missed)
    if not is_hardened(root) or planned.pending():
        _withdraw(root)
        _write(planned)
    return planned.report()


def _apply_to_copy(root: Path, target: Path, *, partial: bool) -> Report:
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise InputError("--to", f"{target} is there already and is not empty")
    target.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}."))
    try:
        checkouts.copy(root, fresh)
        if (root / STAMP).is_file():
            _restore(fresh, root)
        report = apply(fresh, partial=partial)
        fresh.chmod(root.stat().st_mode)
        if target.exists():
            target.rmdir()
        fresh.rename(target)
    except BaseException:
        shutil.rmtree(fresh, ignore_errors=True)
        raise
    return replace(report, checkout=target)


def _restore(fresh: Path, hardened: Path) -> None:
    """Turn a copy of a hardened checkout back into what was hardened."""
    shutil.copyfile(hardened / STAMP, fresh / STAMP)
    shutil.copytree(hardened / ORIGINALS, fresh / ORIGINALS)
    _withdraw(fresh)


def hardened_copy(checkout: str | os.PathLike[str], *, partial: bool = False) -> Report:
    """Return the hardened copy that a supervised run uses, made beside the checkout when it is not there yet.

    It is named by the digest of checkout, rules and guard, so that a `git pull` in the checkout never reaches a run
    that has begun. Raises as `apply` does.
    """
    root = checkouts.recognise(checkout)
    target = root.parent / f".{root.name}-fluxguard-{_digest_of_all(root)[:_DIGEST_LETTERS]}"
    if not is_hardened(target):
        shutil.rmtree(target, ignore_errors=True)
        return apply(root, to=target, partial=partial)
    return check(target)


def _digest_of_all(root: Path) -> str:
    # A copy holds every small file, so that a changed JSON beside the sources is another copy as well.
    listing = [
        (path.relative_to(root).as_posix(), checkouts.digest(path.read_bytes()))
        for path in checkouts.copied(root)
        if path.is_file()
    ]
    return checkouts.digest(json.dumps([*listing, _our_digest()]).encode())


def revert(checkout: str | os.PathLike[str]) -> tuple[str, ...]:
    """Take the hardening of a checkout back, byte for byte; return the files that were restored.

    Raises CheckoutChanged when hardened files were edited since, and then changes nothing.
    """
    return _withdraw(checkouts.recognise(checkout))


def check(checkout: str | os.PathLike[str]) -> Report:
    """Return what is guarded and what is not; changes nothing."""
    return plan(checkout).report()


def is_hardened(checkout: str | os.PathLike[str]) -> bool:
    """Return whether a checkout was hardened by this version of rules and guard and is as it was left."""
    root = Path(checkout).resolve()
    stamp = _stamp(root)
    if not stamp or stamp.get("digest") != _our_digest() or _edited(root, stamp):
        return False
    return all((root / name).is_file() for name in stamp["vendored"])


def _write(planned: Plan) -> None:
    root = planned.checkout
    vendored = _vendored()
    if (root / PACKAGE).exists():
        raise PatchError(f"{root / PACKAGE}: is there already and is not ours")
    stamp: dict[str, Any] = {
        "digest": _our_digest(),
        "files": {
            change.path: {"before": checkouts.digest(change.before), "after": checkouts.digest(change.after)}
            for change in planned.changes
        },
        "vendored": {f"{PACKAGE}/{name}": checkouts.digest(data) for name, data in vendored.items()},
    }
    # First the way back, then the change: a kill at any moment leaves a checkout that `revert` can restore.
    for change in planned.changes:
        checkouts.write(root / ORIGINALS / change.path, change.before, _NEW_FILE_MODE)
    write_json(root / STAMP, stamp)
    for name, data in vendored.items():
        checkouts.write(root / PACKAGE / name, data, _NEW_FILE_MODE)
    for change in planned.changes:
        checkouts.write(root / change.path, change.after)


def _withdraw(root: Path) -> tuple[str, ...]:
    stamp = _stamp(root)
    if not stamp:
        return ()
    if edited := _edited(root, stamp):
        raise CheckoutChanged(edited)
    restored = []
    for name, digests in stamp["files"].items():
        path = root / name
        if path.is_file() and checkouts.digest(path.read_bytes()) == digests["after"]:
            checkouts.write(path, (root / ORIGINALS / name).read_bytes())
            restored.append(name)
    for name in stamp["vendored"]:
        (root / name).unlink(missing_ok=True)
    for folder in (root / PACKAGE / "guard", root / PACKAGE):
        shutil.rmtree(folder / "__pycache__", ignore_errors=True)
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()
    shutil.rmtree(root / ORIGINALS, ignore_errors=True)
    (root / STAMP).unlink()
    return tuple(restored)


def _edited(root: Path, stamp: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the hardened files that are neither as we left them nor free of us (a `git pull` replaces them whole)."""
    edited = []
    for name, digests in stamp.get("files", {}).items():
        path = root / name
        data = path.read_bytes() if path.is_file() else b""
        if checkouts.digest(data) not in (digests["after"], digests["before"]) and marks(data.decode(errors="replace")):
            edited.append(name)
    for name, digest in stamp.get("vendored", {}).items():
        path = root / name
        if path.is_file() and checkouts.digest(path.read_bytes()) != digest:
            edited.append(name)
    return tuple(edited)


def _stamp(root: Path) -> dict[str, Any]:
    return read_json(root / STAMP) or {}


def _vendored() -> dict[str, bytes]:
    """Return what is copied into the checkout: name in the package -> content."""
    paths = [_SOURCE / f"{leaf}.py" for leaf in LEAVES] + sorted((_SOURCE / "guard").glob("*.py"))
    return {path.relative_to(_SOURCE).as_posix(): path.read_bytes() for path in paths}


def _our_digest() -> str:
    parts = [*(path.read_bytes() for path in sorted(FOLDER.glob("*.yaml"))), *_vendored().values()]
    return checkouts.digest(b"\0".join(parts))
