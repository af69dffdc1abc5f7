"""The words that go with an archive: what is in it, and an issue that is ready to be pasted."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from fluxguard.supervisor.incidents.incident import REPORT, Incident, of_mapping
from fluxguard.supervisor.incidents.texts import block, in_line, said

_WHAT = {
    "issue.md": "ready to be pasted into an issue",
    "versions.json": "of the trainer's libraries, the system, the driver",
    "job.json": "what was run, where, and in what environment",
    "limits.json": "the limits that somebody chose",
    "learned.json": "what this machine has shown to be healthy",
    "ledger.jsonl": "what happened, in order, and why it was decided so",
    "rules.json": "the rules of hardening in force",
    "states.json": "the states that there are, and those set aside",
    "log-tail.txt": "the end of the trainer's output",
}
_LINES = 25


def readme(texts: Mapping[str, str], left_out: Mapping[str, str]) -> str:
    """Return what an archive says about itself."""
    names = ["issue.md", *texts]
    lines = [
        "A training under fluxguard, for somebody who wants to help.",
        "",
        "Secrets that are known or look like one were replaced by ***, the home folder by ~.",
        "LOOK INTO IT BEFORE YOU SEND IT: file names, captions and whatever the trainer prints are in it.",
        "No weights, images, states, prompts or binary files are.",
        "",
        *(f"{name:40} {_WHAT.get(name, '')}".rstrip() for name in names),
    ]
    if left_out:
        lines += ["", "Left out:", *(f"  {name}: {why}" for name, why in left_out.items())]
    return "\n".join(lines) + "\n"


def text(texts: Mapping[str, str]) -> str:
    """Return the issue: the newest incident, the versions, the command, the last lines."""
    return "\n".join(_parts(texts)) + "\n"


def _parts(texts: Mapping[str, str]) -> Iterator[str]:
    newest = max((name for name in texts if name.endswith(f"/{REPORT}")), default=None)
    values = _values(texts.get(newest or "", ""))
    found = of_mapping(values) if values else None
    if found is None:
        yield from ("## What happened", "", "There was no incident.", "")
    else:
        yield from _incident(found)
    yield from _versions(_values(texts.get("versions.json", "")))
    job = _values(texts.get("job.json", ""))
    if isinstance(job.get("argv"), list):
        yield from ("## Command", "", *block([" ".join(map(str, job["argv"]))]), "")
    rules = _values(texts.get("rules.json", ""))
    yield from ("## Trainer", "", f"Hardened by fluxguard: {'yes' if rules.get('hardened') else 'no'}", "")
    lines = found.lines if found else texts.get("log-tail.txt", "").splitlines()
    if lines:
        yield from ("## Last lines", "", *block(lines[-_LINES:]))


def _incident(found: Incident) -> Iterator[str]:
    yield from (f"## What happened: {said(found.cause)}", "", said(found.words), "")
    yield from (f"In phase {in_line(found.phase or 'unknown')} at step {found.step}, attempt {found.attempt}.", "")
    if found.proof:
        yield from ("## What shows it", "", *block(found.proof), "")
    yield from ("## What the supervisor did", "", said(found.decision), "")


def _versions(values: Mapping[str, Any]) -> Iterator[str]:
    yield from ("## Versions", "", "| | |", "|---|---|")
    for group in ("trainer", "machine"):
        table = values.get(group)
        for name, value in table.items() if isinstance(table, dict) else ():
            yield f"| {in_line(name)} | {in_line(value or 'unknown')} |"
    yield ""


def _values(text: str) -> dict[str, Any]:
    try:
        values = json.loads(text)
    except ValueError:
        return {}
    return values if isinstance(values, dict) else {}
