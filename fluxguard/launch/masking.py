"""Keeps secrets out of pages and reports: launchers print whole commands, tokens and all, into the log."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from fluxguard.launch import interpreter
from fluxguard.launch.job import MASK, masked

_SHORTEST = 6  # a shorter value is a word that other text holds too, and no secret worth the name
_KNOWN = re.compile(r"\b(hf_|sk-|ghp_|github_pat_|wandb_v1_)[A-Za-z0-9_-]{16,}")
_FLAG = re.compile(
    r"(?P<flag>--(?:[\w-]*[_-])?(?:token|api_?key|secret(?:_key)?|password|passwd|credentials?|access_key(?:_id)?))"
    r"(?P<between>['\"]?,?\s+['\"]?|=['\"]?)(?P<value>(?!--)[^\s'\",]+)",
    re.IGNORECASE,
)


def secrets_of(argv: Sequence[str], *environments: Mapping[str, str]) -> frozenset[str]:
    """Return the secret values in a command and in environments."""
    values = {
        word.removeprefix(shown.removesuffix(MASK))
        for word, shown in zip(argv, masked(argv), strict=True)
        if word != shown
    }
    for env in environments:
        values |= {env[name] for name in interpreter.references(env)}
    return frozenset(value for value in values if len(value) >= _SHORTEST)


def mask(text: str, secrets: Iterable[str] = ()) -> str:
    """Return the text with `***` in the place of each secret, known by its value, its look or the flag before it."""
    for value in sorted(secrets, key=len, reverse=True):
        text = text.replace(value, MASK)
    text = _KNOWN.sub(MASK, text)
    return _FLAG.sub(lambda found: found["flag"] + found["between"] + MASK, text)
