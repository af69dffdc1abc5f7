"""What the command line asks of a checkout, or of a FluxGym with one in it, and the answers in words."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fluxguard.errors import CheckoutChanged, InputError
from fluxguard.patching import checkout as checkouts
from fluxguard.patching import hardening
from fluxguard.patching import stamp as stamps
from fluxguard.patching.checkout import Checkout
from fluxguard.patching.places import FLUXGYM
from fluxguard.patching.report import Report

if TYPE_CHECKING:
    from fluxguard.patching.planning import Progress

_MODES = ("--to", "--check", "--diff", "--revert")
_CONTRADICTIONS = {
    "--revert": ("--partial", "--only", "--skip", "--json"),
    "--to": ("--fluxgym",),
    "--check": ("--partial",),
    "--diff": ("--partial", "--json"),
}


def refuse_contradictions(given: Mapping[str, object], only: Sequence[str], skip: Sequence[str]) -> None:
    """Raise InputError when two options cannot both be meant."""
    modes = [mode for mode in _MODES if given[mode]]
    pairs = [
        *itertools.pairwise(modes),
        *((mode, other) for mode in modes for other in _CONTRADICTIONS.get(mode, ())),
    ]
    for one, other in pairs:
        if given[one] and given[other]:
            raise InputError(one, f"contradicts {other}")
    for rule in sorted(set(only) & set(skip)):
        raise InputError("--only", f"contradicts --skip for {rule!r}")


@dataclass(frozen=True, kw_only=True)
class Places:
    """What is meant by one folder."""

    scripts: Checkout
    page: Checkout | None
    page_wanted: bool
    """Whether the user asked for the page, or it is hardened already."""
    offer: str
    """What to say about a page that could be hardened and is not; empty when there is none."""

    @property
    def all(self) -> tuple[Checkout, ...]:
        """Every place."""
        return (self.scripts, self.page) if self.page else (self.scripts,)

    @property
    def wanted(self) -> tuple[Checkout, ...]:
        """The places to look at."""
        return self.all if self.page_wanted else (self.scripts,)


def places(folder: Path, *, page: bool | None) -> Places:
    """Return what a folder holds. Raises InputError when it is no folder or nothing that can be hardened."""
    if not folder.is_dir():
        raise InputError(folder, "is no folder")
    scripts, *pages = checkouts.within(folder)
    found = pages[0] if pages else None
    if page and found is None:
        raise InputError("--fluxgym", f"{folder} is no FluxGym")
    hardened = found is not None and stamps.read(found.root) is not None
    offered = page is None and found is not None and not hardened and _has_rules()
    return Places(
        scripts=scripts,
        page=found,
        page_wanted=bool(page) or (hardened and page is None),
        offer="FluxGym's own page (app.py) is as it was; --fluxgym hardens it too" if offered else "",
    )


def _has_rules() -> bool:
    from fluxguard.patching.rules import load_rules

    return any(rule.checkout == FLUXGYM for rule in load_rules())


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What came out for one place."""

    report: Report | None
    good: bool
    lines: tuple[str, ...]


@dataclass(frozen=True)
class Job:
    """What is to be done at each place. The choice of rules is for sd-scripts; a FluxGym's page has all of its own."""

    only: tuple[str, ...]
    skip: tuple[str, ...]
    partial: bool
    to: Path | None
    progress: Progress

    def apply(self, place: Checkout) -> Answer:
        """Harden a place. Raises as `hardening.apply` does."""
        only, skip = ((), ()) if place.kind == FLUXGYM else (self.only, self.skip)
        report = hardening.apply(
            place.root, to=self.to, partial=self.partial, only=only, skip=skip, progress=self.progress
        )
        without = "" if place.kind == FLUXGYM or (place.root / checkouts.FLUX).is_file() else " (it has no FLUX)"
        return Answer(report=report, good=True, lines=(*_lines(report), f"hardened: {report.checkout}{without}"))

    def check(self, place: Checkout) -> Answer:
        """Say what is guarded at a place."""
        chosen = (self.only or self.skip) and place.kind != FLUXGYM
        choice = stamps.Choice.of(self.only, self.skip) if chosen else None
        report = hardening.check(place.root, choice, self.progress)
        verdict = "hardened" if report.hardened else "not hardened, or not all of it"
        return Answer(report=report, good=report.hardened, lines=(*_lines(report), f"{verdict}: {report.checkout}"))

    def diff(self, place: Checkout) -> bytes:
        """Return what hardening changes at a place, or has changed, as a unified diff."""
        from fluxguard.patching.diffs import diff
        from fluxguard.patching.planning import plan

        only, skip = ((), ()) if place.kind == FLUXGYM else (self.only, self.skip)
        stamp = stamps.read(place.root)
        choice = stamps.Choice.of(only, skip) if only or skip or stamp is None else stamp.choice
        return diff(plan(place.root, choice=choice, progress=self.progress))

    def revert(self, place: Checkout) -> Answer:
        """Take the hardening of a place back; files that were edited since stay."""
        try:
            restored = hardening.revert(place.root)
        except CheckoutChanged as error:
            return Answer(report=None, good=False, lines=(f"{place.root}: {error}",))
        return Answer(report=None, good=True, lines=(f"restored {len(restored)} files in {place.root}",))


def _lines(report: Report) -> Iterator[str]:
    """Yield what the table does not say."""
    if report.left_out:
        yield f"left out: {', '.join(report.left_out)}"
    if report.lost:
        yield f"the guard is gone ({', '.join(report.lost)}), so this checkout cannot train; apply again, or revert"
    if not report.edited:  # what is in an edited file is not told apart from what never was
        for rule in report.missed:
            yield f"not protected: {rule}"
    for failed in report.failed:
        yield f"cannot be changed: {failed}"
    for name, reason in report.skipped.items():
        yield f"skipped {name}: {reason}"
    for name in report.edited:
        yield f"edited since it was hardened: {name}"


def to_mapping(answers: Sequence[Answer]) -> dict[str, Any]:
    """Return the reports as JSON has them: the one of the sd-scripts, with the one of a FluxGym's page in it."""
    first, *pages = (answer.report.to_mapping() for answer in answers if answer.report is not None)
    return {**first, "fluxgym": pages[0] if pages else None}
