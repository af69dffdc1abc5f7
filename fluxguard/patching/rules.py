"""Rules: data that says what to find in foreign code, what to call there, and proves itself by its examples."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from fluxguard.errors import InputError
from fluxguard.patching.places import FLUXGYM, RULES, SD_SCRIPTS

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times as fast, where PyYAML was built with it

ACTIONS = ("replace", "callee", "decorate", "before", "after")
SEVERITIES = ("critical", "high", "medium")
CHECKOUTS = (SD_SCRIPTS, FLUXGYM)
_DEFINITION = re.compile(r"\bdef\s+(\w+)")


@dataclass(frozen=True, kw_only=True)
class Example:
    """A text before and after one edit."""

    before: str
    after: str


class Words:
    """What a text says, asked by many edits and looked up once."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._held: dict[str, bool] = {}
        self._defined: frozenset[str] | None = None

    def hold(self, literal: str) -> bool:
        """Return whether the text holds a literal."""
        known = self._held.get(literal)
        if known is None:
            known = self._held[literal] = literal in self._text
        return known

    def define(self, name: str) -> bool:
        """Return whether the text defines a function of a name."""
        if self._defined is None:
            self._defined = frozenset(_DEFINITION.findall(self._text))
        return name in self._defined


@dataclass(frozen=True, kw_only=True)
class Edit:
    """One thing to find and what to do there."""

    find: Mapping[str, Any]
    """An ast-grep rule."""
    needs: str | tuple[str, ...]
    """A literal (or several, of which one will do) without which a file cannot hold a site: most are never parsed."""
    action: str
    """One of `ACTIONS`."""
    text: str
    """What the action writes; `$NAME` and `$$$NAME` stand for what `find` captured."""
    guarded: Mapping[str, Any] | None = None
    """An ast-grep rule for a site that somebody else guards already: it counts, and is left alone."""
    optional: bool = False
    """Whether a required rule keeps its promise without this edit."""
    names: tuple[tuple[str, ...], ...] = ()
    """Functions that `find` asks for: a text without one of each group cannot hold a site either."""
    rewrites: tuple[Example, ...] = ()
    leaves_alone: tuple[str, ...] = ()

    @property
    def literals(self) -> tuple[str, ...]:
        """The literals of which a text needs one."""
        return (self.needs,) if isinstance(self.needs, str) else self.needs

    def may_be_in(self, words: Words) -> bool:
        """Return whether a text may hold a site, so that most texts need not be parsed."""
        return any(map(words.hold, self.literals)) and all(any(map(words.define, group)) for group in self.names)


@dataclass(frozen=True, kw_only=True)
class Rule:
    """One weakness of the trainer and the edits that answer it."""

    id: str
    title: str
    why: str
    issue: str
    severity: str
    order: int
    required: bool
    unless_without: str = ""
    """A required rule promises nothing for a checkout in which no file holds this literal."""
    checkout: str = SD_SCRIPTS
    """One of `CHECKOUTS`: where the rule belongs."""
    edits: tuple[Edit, ...] = field(default=())


class _Table:
    """Takes fields out of a mapping, and refuses what nobody took."""

    def __init__(self, values: object, source: str, where: str = "") -> None:
        self._source = source
        self._where = where
        if not isinstance(values, Mapping):
            raise InputError(source, "must be a table", where)
        self._values = dict(values)

    def take(self, name: str, kind: type, default: object = ...) -> Any:
        if name not in self._values:
            if default is ...:
                self.refuse("is missing", name)
            return default
        value = self._values.pop(name)
        if not isinstance(value, kind):
            self.refuse(f"must be of type {kind.__name__}, not {type(value).__name__}", name)
        return value.strip() if isinstance(value, str) and name != "find" else value

    def table(self, name: str) -> _Table:
        return _Table(self.take(name, Mapping), self._source, self._path(name))

    def has(self, name: str) -> bool:
        return name in self._values

    def holds(self, name: str, kind: type) -> bool:
        return isinstance(self._values[name], kind)

    def refuse(self, reason: str, name: str = "") -> None:
        raise InputError(self._source, reason, self._path(name))

    def end(self) -> None:
        if self._values:
            self.refuse("is not known", sorted(map(str, self._values))[0])

    def _path(self, name: str) -> str:
        return ".".join(filter(None, (self._where, name)))


def load_rules(folder: Path = RULES) -> tuple[Rule, ...]:
    """Return all rules of a folder, in the order in which they are to be applied.

    Raises InputError naming the file and the field that is wrong.
    """
    rules = [parse(path.read_text(encoding="utf-8"), path.name) for path in sorted(folder.glob("*.yaml"))]
    if not rules:
        raise InputError(folder, "holds no rules")
    for one, two in zip(ordered := sorted(rules, key=lambda rule: rule.order), ordered[1:], strict=False):
        if one.order == two.order:
            raise InputError(f"{two.id}.yaml", f"is taken by {one.id}", "order")
    return tuple(ordered)


def parse(text: str, source: str) -> Rule:
    """Return the rule written in `text`. Raises InputError naming `source` and the field."""
    try:
        values = yaml.load(text, _LOADER)
    except yaml.YAMLError as error:
        raise InputError(source, f"is not YAML ({' '.join(str(error).split())})") from None
    table = _Table(values, source)
    edits = table.take("edits", list)
    rule = Rule(
        id=table.take("id", str),
        title=table.take("title", str),
        why=" ".join(table.take("why", str).split()),
        issue=table.take("issue", str),
        severity=table.take("severity", str),
        order=table.take("order", int),
        required=table.take("required", bool),
        unless_without=table.take("unless_without", str, ""),
        checkout=table.take("checkout", str, SD_SCRIPTS),
        edits=tuple(_edit(_Table(edit, source, f"edits.{number}")) for number, edit in enumerate(edits)),
    )
    table.end()
    if not re.fullmatch(r"[a-z0-9-]+", rule.id) or (source.endswith(".yaml") and source != f"{rule.id}.yaml"):
        table.refuse("must be the name of the file, in small letters and dashes", "id")
    if rule.severity not in SEVERITIES:
        table.refuse(f"must be one of {', '.join(SEVERITIES)}", "severity")
    if rule.checkout not in CHECKOUTS:
        table.refuse(f"must be one of {', '.join(CHECKOUTS)}", "checkout")
    if not rule.edits:
        table.refuse("must hold at least one edit", "edits")
    return rule


def _edit(table: _Table) -> Edit:
    chosen = [action for action in ACTIONS if table.has(action)]
    if len(chosen) != 1:
        table.refuse(f"must have exactly one of {', '.join(ACTIONS)}")
    find = table.take("find", Mapping)
    edit = Edit(
        find=expand(find),
        names=tuple(_names(find)),
        needs=_needs(table),
        action=chosen[0],
        text=table.take(chosen[0], str),
        guarded=expand(table.take("guarded", Mapping)) if table.has("guarded") else None,
        optional=table.take("optional", bool, False),
        rewrites=tuple(_example(table, example) for example in table.take("rewrites", list)),
        leaves_alone=tuple(map(str, table.take("leaves_alone", list, []))),
    )
    table.end()
    if edit.action != "replace" and "\n" in edit.text:
        table.refuse("must be one line", edit.action)
    if not edit.rewrites:
        table.refuse("must hold at least one example", "rewrites")
    return edit


def _needs(table: _Table) -> str | tuple[str, ...]:
    if not table.has("needs") or table.holds("needs", str):
        return str(table.take("needs", str))
    return tuple(map(str, table.take("needs", list)))


def _example(table: _Table, values: object) -> Example:
    if not isinstance(values, Mapping) or set(values) != {"before", "after"}:
        table.refuse("must hold `before` and `after`", "rewrites")
        raise AssertionError("unreachable")
    return Example(before=str(values["before"]), after=str(values["after"]))


def expand(find: Mapping[str, Any]) -> dict[str, Any]:
    """Return an ast-grep rule in which the conveniences are spelled out.

    `within: NAME` (or a list of names) is a function of that name around the site, at any depth; `def: NAME` is the
    definition itself.
    """
    rule = {key: _expanded(value) for key, value in find.items()}
    clauses: list[dict[str, Any]] = []
    if "within" in rule:
        clauses.append({"inside": {**_definition(rule.pop("within")), "stopBy": "end"}})
    if "def" in rule:
        clauses.append(_definition(rule.pop("def")))
    return {"all": [*([rule] if rule else []), *clauses]} if clauses else rule


def _names(find: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    """Yield the groups of function names of which a text must hold one each to match."""
    for key in ("within", "def"):
        if isinstance(names := find.get(key), str | list):
            yield (names,) if isinstance(names, str) else tuple(names)
    for part in find.get("all", ()):
        yield from _names(part)
    each = [tuple(_names(part)) for part in find.get("any", ())]
    if each and all(each):
        yield tuple(name for groups in each for name in groups[0])


def _expanded(value: Any) -> Any:
    if isinstance(value, Mapping):
        return expand(value)
    if isinstance(value, list) and any(isinstance(item, Mapping) for item in value):
        return [_expanded(item) for item in value]
    return value


def _definition(names: str | Sequence[str]) -> dict[str, Any]:
    alternatives = "|".join(map(re.escape, [names] if isinstance(names, str) else names))
    return {"kind": "function_definition", "has": {"field": "name", "regex": f"^({alternatives})$"}}
