"""Log patterns of the user's own (`--watch-log FILE.yaml`): what they are, and what a log has shown of them. Pure but
for `read`, `keep` and `kept`, which touch the file."""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fluxguard.errors import InputError
from fluxguard.rundir import RunDir, write_whole

if TYPE_CHECKING:
    import regex

_log = logging.getLogger(__name__)

LONGEST_LINE = 1000
"""Characters of a line that patterns are searched in: the time that a search takes grows with them."""
_MOST_PATTERNS = 50
_TOO_SLOW = 0.25
"""Seconds after which a search is given up, and its pattern is not searched for any more."""
_KEYS = ("name", "pattern", "within", "after", "every", "until", "finite", "progress", "loss", "then")
_THEN = ("restart", "stop")


@dataclass(frozen=True, kw_only=True)
class Pattern:
    """One pattern and what is expected of it."""

    name: str
    regex: regex.Pattern[str]
    within: float | None = None
    """Seconds within which the first match is expected: from the start, or from the first match of `after`."""
    after: str = ""
    every: float | None = None
    """Seconds within which, after the first match, each next one is expected."""
    until: str = ""
    """The pattern whose match ends what is expected of this one."""
    finite: str | int | None = None
    """The group that must be a finite number."""
    step: str | int | None = None
    total: str | int | None = None
    loss: str | int | None = None
    then: str = "restart"


@dataclass(frozen=True, kw_only=True)
class Matches:
    """What some lines have shown."""

    names: frozenset[str] = frozenset()
    """The patterns that matched."""
    not_finite: tuple[str, str] | None = None
    """(pattern, captured text) of the first value that is no finite number."""
    step: int | None = None
    total: int | None = None
    loss: float | None = None
    slow: tuple[str, ...] = ()
    """Patterns that took too long to search for, and are left out from now on."""

    def with_more(self, other: Matches) -> Matches:
        """Return both together, the other one being the later."""
        return Matches(
            names=self.names | other.names,
            not_finite=self.not_finite or other.not_finite,
            step=self.step if other.step is None else other.step,
            total=self.total if other.total is None else other.total,
            loss=self.loss if other.loss is None else other.loss,
            slow=tuple(dict.fromkeys(self.slow + other.slow)),
        )


NOTHING = Matches()


@dataclass
class Matcher:
    """Searches lines for patterns, within bounds."""

    patterns: tuple[Pattern, ...]
    _slow: tuple[str, ...] = ()

    def search(self, lines: Iterable[str]) -> Matches:
        """Return what the lines show; without patterns that costs nothing."""
        found = NOTHING
        if self.patterns:
            for line in lines:
                found = self._line(found, line[:LONGEST_LINE])
        return replace(found, slow=self._slow) if self._slow else found

    def _line(self, found: Matches, line: str) -> Matches:
        for pattern in self.patterns:
            if pattern.name in self._slow:
                continue
            try:
                match = pattern.regex.search(line, timeout=_TOO_SLOW)
            except TimeoutError:
                self._slow = (*self._slow, pattern.name)
                continue
            if match is not None:
                found = found.with_more(_shown(pattern, match))
        return found


def _shown(pattern: Pattern, match: regex.Match[str]) -> Matches:
    def text(group: str | int | None) -> str | None:
        return None if group is None else match[group]

    checked = text(pattern.finite)
    bad = checked is not None and not math.isfinite(_number(checked))
    loss = text(pattern.loss)
    return Matches(
        names=frozenset({pattern.name}),
        not_finite=(pattern.name, checked) if checked is not None and bad else None,
        step=_whole(text(pattern.step)),
        total=_whole(text(pattern.total)),
        loss=_number(loss) if loss is not None else None,
    )


def _number(text: str) -> float:
    try:
        return float(text.replace(",", ""))
    except ValueError:
        return math.nan


def _whole(text: str | None) -> int | None:
    number = math.nan if text is None else _number(text)
    return int(number) if math.isfinite(number) and number >= 0 else None


@dataclass(frozen=True)
class Broken:
    """A pattern whose expectation is not met."""

    pattern: Pattern
    reason: str
    limit: float | None = None
    """The seconds that have passed."""


@dataclass(frozen=True, kw_only=True)
class LogWatch:
    """What the log of an attempt has shown of the patterns so far."""

    patterns: tuple[Pattern, ...] = ()
    begun: float = 0.0
    """Monotonic seconds."""
    first: Mapping[str, float] = field(default_factory=dict)
    """When each pattern was first seen."""
    last: Mapping[str, float] = field(default_factory=dict)
    not_finite: tuple[str, str] | None = None

    def then(self, found: Matches, now: float) -> LogWatch:
        """Return it after some more lines, read at `now`."""
        if not found.names:
            return self
        seen = dict.fromkeys(found.names, now)
        return replace(
            self,
            first={**seen, **self.first},
            last={**self.last, **seen},
            not_finite=self.not_finite or found.not_finite,
        )

    def unread(self, now: float) -> LogWatch:
        """Return it after lines that nobody read: a first match may have been among them."""
        return self.then(Matches(names=frozenset(pattern.name for pattern in self.patterns)), now)

    def shifted(self, gap: float) -> LogWatch:
        """Return it after `gap` seconds that count for nothing."""
        first, last = ({name: at + gap for name, at in times.items()} for times in (self.first, self.last))
        return replace(self, begun=self.begun + gap, first=first, last=last)

    def broken(self, now: float, slow: Sequence[str] = ()) -> Broken | None:
        """Return the first expectation that is not met, or None. What is too slow to search for is not expected."""
        for pattern in self.patterns:
            if pattern.name not in slow and (found := self._broken(pattern, now)):
                return found
        return None

    def _broken(self, pattern: Pattern, now: float) -> Broken | None:
        if self.not_finite and self.not_finite[0] == pattern.name:
            return Broken(pattern, f"{self.not_finite[1]!r} is no finite number")
        if pattern.until in self.first:
            return None
        return self._late(pattern, now) or self._rare(pattern, now)

    def _late(self, pattern: Pattern, now: float) -> Broken | None:
        since = self.first.get(pattern.after) if pattern.after else self.begun
        if pattern.within is None or since is None or pattern.name in self.first:
            return None
        if now - since <= pattern.within:
            return None
        start = f"{pattern.after!r}" if pattern.after else "the start"
        return Broken(pattern, f"not seen within {pattern.within:g} s of {start}", pattern.within)

    def _rare(self, pattern: Pattern, now: float) -> Broken | None:
        seen = self.last.get(pattern.name)
        if pattern.every is None or seen is None or now - seen <= pattern.every:
            return None
        return Broken(pattern, f"not seen again within {pattern.every:g} s", pattern.every)


def parse(text: str, source: str) -> tuple[Pattern, ...]:
    """Return the patterns in a YAML text. Raises InputError naming `source` and the field that is wrong."""
    import yaml

    try:
        values = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise InputError(source, f"is not YAML ({' '.join(str(error).split())})") from None
    if not isinstance(values, list):
        raise InputError(source, "must be a list of patterns")
    if len(values) > _MOST_PATTERNS:
        raise InputError(source, f"holds {len(values)} patterns; {_MOST_PATTERNS} are the most")
    found = tuple(_pattern(one, f"pattern {number}", source) for number, one in enumerate(values, 1))
    names = [pattern.name for pattern in found]
    for pattern in found:
        if names.count(pattern.name) > 1:
            raise InputError(source, "is there twice", pattern.name)
        for key in ("after", "until"):
            if getattr(pattern, key) and getattr(pattern, key) not in names:
                raise InputError(source, f"{getattr(pattern, key)!r} is no pattern here", f"{pattern.name}: {key}")
    return found


def _pattern(values: object, where: str, source: str) -> Pattern:
    if not isinstance(values, Mapping):
        raise InputError(source, f"must be a table with {', '.join(_KEYS[:2])} and what is expected", where)
    name = _text(values, "name", where, source)
    if unknown := [key for key in values if key not in _KEYS]:
        raise InputError(source, f"is no key (keys: {', '.join(_KEYS)})", f"{name}: {unknown[0]}")
    pattern = _regex(_text(values, "pattern", name, source), name, source)
    then = values.get("then", _THEN[0])
    if then not in _THEN:
        raise InputError(source, f"must be {' or '.join(_THEN)}, not {then!r}", f"{name}: then")
    within, every = (_seconds(values, key, name, source) for key in ("within", "every"))
    if "after" in values and within is None:
        raise InputError(source, "belongs to a `within`", f"{name}: after")
    step, total = _progress(values.get("progress"), pattern, name, source)
    return Pattern(
        name=name,
        regex=pattern,
        within=within,
        after=_text(values, "after", name, source) if "after" in values else "",
        every=every,
        until=_text(values, "until", name, source) if "until" in values else "",
        finite=_group(values.get("finite"), pattern, f"{name}: finite", source),
        step=step,
        total=total,
        loss=_group(values.get("loss"), pattern, f"{name}: loss", source),
        then=str(then),
    )


def _text(values: Mapping[Any, Any], key: str, where: str, source: str) -> str:
    found = values.get(key)
    if not isinstance(found, str) or not found.strip():
        raise InputError(source, f"must be a text, not {found!r}" if key in values else "is missing", f"{where}: {key}")
    return found


def _seconds(values: Mapping[Any, Any], key: str, name: str, source: str) -> float | None:
    found = values.get(key)
    if found is None:
        return None
    if isinstance(found, bool) or not isinstance(found, (int, float)) or not 0 < found < math.inf:
        raise InputError(source, f"must be a number of seconds above 0, not {found!r}", f"{name}: {key}")
    return float(found)


def _group(value: object, pattern: regex.Pattern[str], where: str, source: str) -> str | int | None:
    if value is None:
        return None
    group: str | int = int(value) if isinstance(value, str) and value.isdigit() else value  # type: ignore[assignment]
    known = [*pattern.groupindex, *range(1, pattern.groups + 1)]
    if isinstance(value, bool) or group not in known:
        raise InputError(source, f"{value!r} is no group of its pattern (groups: {known or 'none'})", where)
    return group


def _progress(
    value: object, pattern: regex.Pattern[str], name: str, source: str
) -> tuple[str | int | None, str | int | None]:
    if value is None:
        return None, None
    step, slash, total = str(value).partition("/")
    where = f"{name}: progress"
    return _group(step, pattern, where, source), _group(total, pattern, where, source) if slash else None


def _regex(text: str, name: str, source: str) -> regex.Pattern[str]:
    import regex  # not re: a search of it, which nobody can end, would stop the watching of a training

    where = f"{name}: pattern"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            return regex.compile(text)
    except (regex.error, Warning, OverflowError, RecursionError) as error:
        raise InputError(source, f"is no regular expression ({error})", where) from None


def read(path: Path) -> tuple[Pattern, ...]:
    """Return the patterns in a file. Raises InputError naming the file and the field."""
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(path, f"cannot be read ({error})", "--watch-log") from None
    return parse(text, str(path))


def keep(run: RunDir, path: Path) -> None:
    """Copy a file of patterns into the run directory, so that whoever supervises the run later watches for them too.

    Raises InputError.
    """
    read(path)
    write_whole(run.watch_log, path.read_bytes())


def kept(run: RunDir) -> tuple[Pattern, ...]:
    """Return the patterns of a run; none when it has none, or when they cannot be read any more."""
    if not run.watch_log.exists():
        return ()
    try:
        return read(run.watch_log)
    except InputError as error:
        _log.warning("the log is not watched for your own patterns: %s", error)
        return ()
