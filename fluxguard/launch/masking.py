"""Keeps secrets out of everything that is written, shown or sent: launchers print whole commands, tokens and all.

A secret is known by its value (from the command, its settings files and the environment), by its look, or by the name
before it. Of what is known by value every spelling is hidden: as it is, as JSON, Python, a shell and a URL write it.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from fluxguard.errors import InputError
from fluxguard.launch import interpreter
from fluxguard.launch.flags import flag_name, read_json, read_toml
from fluxguard.launch.looks import MASK, by_look, is_secret_name, is_trivial

_SHORTEST = 6  # a shorter value is a word that other text holds too, and no secret worth the name
_SHORTEST_LINE = 16
_SHORT = 64
_LONG = 500  # a line that is as long may have been cut by whoever read it
_PLACES = ("_PATH", "_FILE", "_DIR", "_HOME", "_SOCK", "_CONTROL", "_LAYOUT")
"""Ends of names of variables that say where a secret is, which is none itself."""


def masked(argv: Sequence[str]) -> tuple[str, ...]:
    """Return a command for display and for job.json: the values of secret flags, and what looks like one, are `***`."""
    done: list[str] = []
    hide = False
    for word in argv:
        name = flag_name(word)
        if name is None:
            done.append(MASK if hide else by_look(word))
            continue
        flag, equals, _ = word.partition("=")
        secret = _is_secret_flag(name)
        hide = secret and not equals
        done.append(f"{flag}={MASK}" if secret and equals else by_look(word))
    return tuple(done)


def _is_secret_flag(name: str) -> bool:
    return is_secret_name(name.replace("-", "_").lower())


def secrets_of(argv: Sequence[str], *environments: Mapping[str, str]) -> frozenset[str]:
    """Return the secret values in a command and in environments."""
    values: set[str] = set()
    hide = False
    for word in argv:
        name = flag_name(word)
        if name is None:
            values |= {word} if hide else _in_url(word)
            continue
        _, equals, value = word.partition("=")
        hide = _is_secret_flag(name) and not equals
        values |= {value} if _is_secret_flag(name) else _in_url(value)
    for env in environments:
        values |= {env[name] for name in interpreter.references(env) if not name.upper().endswith(_PLACES)}
        values |= {password for value in env.values() if "@" in value for password in _in_url(value)}
    return frozenset(value for value in values if _worth_hiding(value))


def secrets_in(path: Path | None) -> frozenset[str]:
    """Return the secret values in a settings file of the trainer, TOML or JSON; none when it cannot be read."""
    if path is None:
        return frozenset()
    try:
        values = read_json(path) if path.suffix == ".json" else read_toml(path)
    except InputError:
        return frozenset()
    return frozenset(value for value in _named_secret(values) if _worth_hiding(value))


def _named_secret(values: Any, name: str = "") -> Iterable[str]:
    if isinstance(values, Mapping):
        for key, value in values.items():
            yield from _named_secret(value, str(key))
    elif isinstance(values, (list, tuple)):
        for value in values:
            yield from _named_secret(value, name)
    elif isinstance(values, str):
        yield from {values} if _is_secret_flag(name) else _in_url(values)


def _in_url(value: str) -> frozenset[str]:
    """Return the password in an address, as it is written and as it is meant."""
    try:
        password = urlsplit(value).password if "://" in value else None
    except ValueError:
        return frozenset()
    return frozenset({password, unquote(password)} if password else ())


def _worth_hiding(value: str) -> bool:
    return len(value) >= _SHORTEST and not is_trivial(value)


def mask(text: str, secrets: Iterable[str] = ()) -> str:
    """Return the text with `***` in the place of each secret, known by its value, its look or the name before it."""
    for value in _all_spellings(frozenset(secrets)):
        text = text.replace(value, MASK)
    return by_look(text)


@lru_cache(maxsize=8)
def _all_spellings(secrets: frozenset[str]) -> tuple[str, ...]:
    return tuple(sorted({spelt for secret in secrets for spelt in _spellings(secret)}, key=len, reverse=True))


def _spellings(secret: str) -> frozenset[str]:
    """Return how a secret may stand in a text; one of several lines may stand there by line."""
    lines = {line for line in secret.splitlines() if len(line) >= _SHORTEST_LINE}
    found = {secret, *lines}
    for value in (secret, *lines):
        found |= {json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1], repr(value)[1:-1]}
        found |= {quote(value, safe=""), quote(value), shlex.quote(value), value.replace("'", "'\"'\"'")}
    return frozenset(value for value in found if len(value) >= _SHORTEST)


def lines(texts: Sequence[str], secrets: Iterable[str] = ()) -> list[str]:
    """Return lines with their secrets hidden, those too that span several lines or that a long line was cut in."""
    secrets = frozenset(secrets)
    whole = (_without_cut(text, secrets) if len(text) >= _LONG else text for text in texts)
    return mask("\n".join(whole), secrets).split("\n") if texts else []


def _without_cut(text: str, secrets: frozenset[str]) -> str:
    """Hide the beginning of a secret at the end of a text."""
    for value in _all_spellings(secrets):
        for size in range(len(value) - 1, _SHORTEST - 1, -1):
            if text.endswith(value[:size]):
                return text[:-size] + MASK
    return text


def everywhere(value: Any, secrets: Iterable[str] = ()) -> Any:
    """Return plain values (frozen dataclasses among them) with every text in them masked, keys too.

    What stands under a secret name is hidden whatever it looks like.
    """
    secrets = frozenset(secrets)
    if isinstance(value, str):
        return _short(value, secrets) if len(value) <= _SHORT else mask(value, secrets)
    if isinstance(value, Mapping):
        return {_key(key, secrets): _under(key, one, secrets) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        made = [everywhere(one, secrets) for one in value]
        return made if isinstance(value, list) else type(value)(*made) if hasattr(value, "_fields") else tuple(made)
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{f.name: everywhere(getattr(value, f.name), secrets) for f in fields(value) if f.init})
    return value


def _key(key: Any, secrets: frozenset[str]) -> Any:
    return everywhere(key, secrets) if isinstance(key, str) else key


@lru_cache(maxsize=512)
def _short(text: str, secrets: frozenset[str]) -> str:
    """Mask a name or a word, of which a table holds many."""
    return mask(text, secrets)


def _under(key: Any, value: Any, secrets: frozenset[str]) -> Any:
    if isinstance(value, str) and isinstance(key, str) and _is_secret_flag(key) and not is_trivial(value):
        return MASK
    return everywhere(value, secrets)
