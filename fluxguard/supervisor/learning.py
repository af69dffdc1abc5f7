"""Limits that a run has shown to be too short for it: what was learned, and the limits that follow from it. Pure.

Only what was completed teaches. A limit that nobody chose becomes `step_factor` times the longest of its kind, never
less than it was, and never more than as many times its own default: a wait that was completed had kept to its limit,
so more than that no healthy first attempt can teach, and what a broken file says cannot make a hang last for days.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from fluxguard.heartbeat import Beat
from fluxguard.limits import Limits, PhaseLimit
from fluxguard.supervisor.detecting.observation import History

WAITS = {
    "block_swap": ("longest_swap", "block swap", ("step",)),
    "batch": ("longest_batch", "batch", ("step",)),
    "first_batch": ("longest_first_batch", "first batch", ("first step", "step")),
    "read": ("longest_read", "read", ("step",)),
}
"""By limit of a wait: the field of a heartbeat that teaches it, what it is called, and the phases it is met in; fresh
workers that take the place of stuck ones in the middle of a training have the limit of a first batch.

A barrier is not among them: its limit is for the silence of a rank, and how long the others waited for one whose heart
went on says nothing about that.
"""
_GAPS = {
    "progress": ("ceiling", "the longest time without progress in it"),
    "life": ("patience", "the longest time without a sign of life in it"),
}
_WEEK = 7 * 86400.0  # whatever claims to have been waited for longer was not seen by us


@dataclass(frozen=True, kw_only=True)
class Learned:
    """The longest seconds of each kind that were completed in a run."""

    waits: Mapping[str, float] = field(default_factory=dict)
    """By name in WAITS."""
    progress: Mapping[str, float] = field(default_factory=dict)
    """By phase: between two of progress or beat."""
    life: Mapping[str, float] = field(default_factory=dict)
    """By phase: between two signs of life."""

    def merged(self, other: Learned) -> Learned:
        """Return the longest of both."""
        return Learned(**{name: _longest(values, getattr(other, name)) for name, values in vars(self).items()})

    def with_waits(self) -> Learned:
        """Return it with phases taught by the waits in them too: the guard, which knows more, is to end those first."""
        gaps: dict[str, float] = {}
        for name, (_, _, phases) in WAITS.items():
            gaps = _longest(gaps, dict.fromkeys(phases, self.waits.get(name, 0.0)))
        return self.merged(Learned(progress=gaps, life=gaps))

    def to_mapping(self) -> dict[str, Any]:
        """Return plain values, as `from_mapping` reads them."""
        return asdict(self)

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> Learned:
        """Return what `to_mapping` wrote; what is no plausible number of seconds, or of no known kind, is left out."""
        known = Limits().phase
        return cls(
            waits=_plausible(values.get("waits"), WAITS),
            progress=_plausible(values.get("progress"), known),
            life=_plausible(values.get("life"), known),
        )


NOTHING = Learned()


def of_beat(beat: Beat) -> Learned:
    """Return what the last heartbeat of a rank teaches."""
    return Learned.from_mapping({"waits": {name: getattr(beat, attribute) for name, (attribute, *_) in WAITS.items()}})


def of_history(history: History) -> Learned:
    """Return what the looks at one attempt teach. The interval that was open at its end is none that was completed."""
    return Learned.from_mapping({"progress": history.progresses.longest, "life": history.signs.longest})


@dataclass(frozen=True)
class Chosen:
    """The limits of a run before anything is learned."""

    limits: Limits = field(default_factory=Limits)
    named: Mapping[str, str] = field(default_factory=dict)
    """By dotted name, such as "phase.step.ceiling": who chose it, in words. Those are never changed."""

    def grown(self, learned: Learned) -> Limits:
        """Return the limits that hold with what was learned."""
        factor = self.limits.watch.step_factor
        waits, phases, learned = asdict(self.limits.wait), dict(self.limits.phase), learned.with_waits()
        for name in WAITS:
            if f"wait.{name}" not in self.named:
                waits[name] = _grown(waits[name], learned.waits.get(name), factor)
        for phase, limit in phases.items():
            grown = {
                kind: _grown(getattr(limit, kind), getattr(learned, gap).get(phase), factor)
                for gap, (kind, _) in _GAPS.items()
                if f"phase.{phase}.{kind}" not in self.named
            }
            phases[phase] = _ordered(replace(limit, **grown))
        return replace(self.limits, wait=replace(self.limits.wait, **waits), phase=phases)


def named(values: Mapping[str, Any], by: str) -> dict[str, str]:
    """Return the dotted names of the limits in a file's values, each with who named it."""
    return dict.fromkeys(_dotted(values), by)


def differing(limits: Limits, default: Limits, by: str) -> dict[str, str]:
    """Return the dotted names of the limits that are not the default, each as named by somebody."""
    plain = _values(default)
    return {name: by for name, value in _values(limits).items() if value != plain[name]}


@dataclass(frozen=True, kw_only=True)
class Explained:
    """One limit of a run and why it is what it is."""

    name: str
    """Dotted, as in a limits file."""
    value: float | int | bool | None
    """Seconds where it is a duration; None for no limit."""
    why: str
    longest_s: float | None = None
    """The longest completed seconds it was learned from; None where it was not learned."""

    def to_mapping(self) -> dict[str, Any]:
        """Return plain values, without the name."""
        is_duration = "." in self.name and self.name not in ("watch.step_factor", "save.share")
        return {
            "value": self.value,
            "unit": "s" if is_duration else None,
            "why": self.why,
            "longest_s": self.longest_s,
        }


def explained(chosen: Chosen, learned: Learned, *, hardened: bool | None) -> list[Explained]:
    """Return every limit of a run."""
    before, after = _values(chosen.limits), _values(chosen.grown(learned))
    plain, lessons = _values(Limits()), _lessons(learned.with_waits())
    found = []
    for name, value in after.items():
        longest = None
        if value != before[name]:
            longest, what = lessons[name]
            why = f"learned: {chosen.limits.watch.step_factor:g} x {longest:.3g} s, {what}"
            if value < chosen.limits.watch.step_factor * longest:
                why += ", as far as it may grow"
        elif name in chosen.named:
            why = chosen.named[name]
        elif before[name] != plain[name] and not hardened:
            why = "default, doubled: not hardened"
        else:
            why = "default"
        found.append(Explained(name=name, value=value, why=why, longest_s=longest))
    return found


def _lessons(learned: Learned) -> dict[str, tuple[float, str]]:
    """Return by dotted name of a limit the longest seconds that teach it, and what they were."""
    found = {
        f"wait.{name}": (seconds, f"the longest completed {WAITS[name][1]}") for name, seconds in learned.waits.items()
    }
    for gap, (kind, what) in _GAPS.items():
        found |= {f"phase.{phase}.{kind}": (seconds, what) for phase, seconds in getattr(learned, gap).items()}
    return found


def _grown(value: float | None, longest: float | None, factor: float) -> float | None:
    if value is None or longest is None:
        return value
    wanted = min(factor * longest, factor * value)
    return wanted if value < wanted < math.inf else value


def _ordered(limit: PhaseLimit) -> PhaseLimit:
    """Return a limit whose patience, which has grown, is not more than its ceiling, which may not."""
    if limit.patience is None or limit.ceiling is None:
        return limit
    return replace(limit, patience=min(limit.patience, limit.ceiling))


def _longest(one: Mapping[str, float], other: Mapping[str, float]) -> dict[str, float]:
    return {name: max(one.get(name, 0.0), other.get(name, 0.0)) for name in {**one, **other}}


def _plausible(values: object, names: Mapping[str, Any]) -> dict[str, float]:
    if not isinstance(values, Mapping):
        return {}
    return {name: float(values[name]) for name in names if name in values and _is_plausible(values[name])}


def _is_plausible(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value <= _WEEK


def _values(limits: Limits) -> dict[str, Any]:
    """Return each limit by its dotted name."""
    values = limits.to_mapping()
    found = {}
    for name in _dotted(values):
        inner: Any = values
        for key in name.split("."):
            inner = inner[key]
        found[name] = inner
    return found


def _dotted(values: Mapping[str, Any], before: str = "") -> Iterator[str]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _dotted(value, f"{before}{key}.")
        else:
            yield f"{before}{key}"
