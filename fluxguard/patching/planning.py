"""What hardening changes in a checkout, and how it is told; nothing is touched."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path

from fluxguard.errors import InputError
from fluxguard.patching import checkout as checkouts
from fluxguard.patching import stamp as stamps
from fluxguard.patching.checkout import Checkout
from fluxguard.patching.edits import Site
from fluxguard.patching.originals import original
from fluxguard.patching.report import Failed, Report, Row
from fluxguard.patching.rewriting import Unparsable, rewrite
from fluxguard.patching.rules import Rule, load_rules
from fluxguard.patching.sharing import shared
from fluxguard.patching.stamp import ALL, AS_LEFT, Choice
from fluxguard.patching.vendored import import_line

Progress = Callable[[int, int], None]
"""Told how many of how many files have been searched."""


@dataclass(frozen=True, kw_only=True)
class Change:
    """One file of a plan."""

    path: str
    """Relative to the checkout."""
    before: bytes
    after: bytes


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What hardening would change; nothing has been touched."""

    checkout: Path
    kind: str
    changes: tuple[Change, ...]
    sites: Mapping[str, tuple[Site, ...]]
    """File -> its sites."""
    skipped: Mapping[str, str]
    missed: tuple[str, ...]
    rules: tuple[Rule, ...]
    left_out: tuple[str, ...] = ()
    choice: Choice = ALL
    whole: bool = True
    """Whether every required rule was chosen."""
    tree: str = ""
    """Digest of all sources as hardening would leave them."""
    marked: tuple[str, ...] = ()
    """Files that carry our marks although nothing is known of them: their stamp was lost."""

    @property
    def failed(self) -> tuple[Failed, ...]:
        """Sites that cannot be changed."""
        return tuple(
            Failed(file=name, line=site.line, rule=site.rule, reason=site.reason)
            for name, sites in self.sites.items()
            for site in sites
            if site.state == "failed"
        )

    def pending(self) -> frozenset[str]:
        """Return the files that are not (or not any more) as this plan would leave them."""
        return frozenset(
            change.path for change in self.changes if stamps.content(self.checkout / change.path) != change.after
        )

    def report(self, *, done: bool = False) -> Report:
        """Return the plan as a table, against what is in the checkout now, or as it will be when it is `done`."""
        pending = frozenset() if done else self.pending()
        stamp = None if done else stamps.read(self.checkout)
        return Report(
            checkout=self.checkout,
            rows=tuple(_row(rule, self.sites, pending, missed=rule.id in self.missed) for rule in self.rules),
            skipped=self.skipped,
            changed=tuple(change.path for change in self.changes),
            edited=stamps.edited(self.checkout, stamp) if stamp else self.marked,
            failed=self.failed,
            left_out=self.left_out,
        )


def plan(
    checkout: str | os.PathLike[str],
    rules: Sequence[Rule] | None = None,
    *,
    choice: Choice = ALL,
    progress: Progress = lambda done, of: None,
) -> Plan:
    """Return what hardening changes in a checkout, seen from its originals when it is hardened already.

    Raises UnknownCheckout, and InputError for a choice of rules that do not exist.
    """
    found = checkouts.recognise(checkout)
    rules = load_rules() if rules is None else rules
    chosen, left_out = choose(found.kind, rules, choice)
    names, skipped = checkouts.sources(found)
    sources = dict(_pristine(found.root, names))
    needs = tuple({literal.encode() for rule in chosen for edit in rule.edits for literal in edit.literals})
    touched = [name for name, data in sources.items() if any(literal in data for literal in needs)]
    outcomes = shared(
        lambda name: _hardened(name, sources[name], chosen),
        touched,
        size=lambda name: len(sources[name]),
        done=lambda count: progress(count, len(touched)),
    )
    skipped |= {name: outcome for name, outcome in zip(touched, outcomes, strict=True) if isinstance(outcome, str)}
    searched = {name: outcome for name, outcome in zip(touched, outcomes, strict=True) if not isinstance(outcome, str)}
    changes = [
        Change(path=name, before=sources[name], after=after)
        for name, (after, _) in searched.items()
        if after != sources[name]
    ]
    return Plan(
        checkout=found.root,
        kind=found.kind,
        changes=tuple(changes),
        sites={name: of_file for name, (_, of_file) in searched.items() if of_file},
        skipped=skipped,
        missed=_missed(chosen, {name: of_file for name, (_, of_file) in searched.items()}, sources, found),
        rules=tuple(chosen),
        left_out=left_out,
        choice=choice,
        whole=not any(rule.required and rule.id in left_out for rule in rules),
        marked=tuple(name for name, data in sources.items() if stamps.MARK in data),
        tree=stamps.tree_digest({**sources, **{change.path: change.after for change in changes}}.items()),
    )


def _hardened(name: str, data: bytes, rules: Sequence[Rule]) -> tuple[bytes, tuple[Site, ...]] | str:
    """Return a file as hardening leaves it and its sites, or why it cannot be searched."""
    try:
        text, encoding, mark = checkouts.decode(data)
        changed, sites = rewrite(text, rules, import_line(name))
        return (data if changed == text else mark + changed.encode(encoding)), sites
    except (SyntaxError, UnicodeError, Unparsable) as error:
        return str(error)


def choose(kind: str, rules: Sequence[Rule], choice: Choice) -> tuple[tuple[Rule, ...], tuple[str, ...]]:
    """Return the chosen rules for a kind of checkout and the ids of the others.

    Raises InputError naming a rule that does not exist.
    """
    known = [rule for rule in rules if rule.checkout == kind]
    for option, ids in (("--only", choice.only), ("--skip", choice.skip)):
        for unknown in sorted(set(ids) - {rule.id for rule in known}):
            raise InputError(option, f"there is no rule {unknown!r}; known are {', '.join(rule.id for rule in known)}")
    chosen = tuple(rule for rule in known if choice.wants(rule.id))
    return chosen, tuple(rule.id for rule in known if rule not in chosen)


def _pristine(root: Path, names: Sequence[str]) -> Iterator[tuple[str, bytes]]:
    """Yield name and content of each source as it was before it was hardened."""
    stamp = stamps.read(root)
    hardened = stamp.files if stamp else {}
    for name in names:
        data = (root / name).read_bytes()
        if name in hardened and stamps.state_of(data, hardened[name]) == AS_LEFT:
            data = original(root, name, like=data, known=hardened[name])
        yield name, data


def _missed(
    rules: Sequence[Rule], sites: Mapping[str, tuple[Site, ...]], sources: Mapping[str, bytes], found: Checkout
) -> tuple[str, ...]:
    """Return the required rules that protect nothing, or not all, where a training passes; elsewhere proves nothing."""
    path = found.on_the_path(sources)
    if not path:
        return ()
    on_it = [site for name in path for site in sites.get(name, ())]
    seen = {(site.rule, site.edit) for site in on_it}
    failed = {site.rule for site in on_it if site.state == "failed"}
    return tuple(
        rule.id
        for rule in rules
        if rule.required
        and any(rule.unless_without.encode() in sources[name] for name in path)
        and (
            rule.id in failed
            or any((rule.id, number) not in seen for number, edit in enumerate(rule.edits) if not edit.optional)
        )
    )


def _row(rule: Rule, sites: Mapping[str, tuple[Site, ...]], pending: Set[str], *, missed: bool) -> Row:
    mine = [(name, site) for name, per_file in sites.items() for site in per_file if site.rule == rule.id]
    open_sites = sum(site.state == "failed" or (site.state == "new" and name in pending) for name, site in mine)
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
