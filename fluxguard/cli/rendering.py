"""What the command line shows: lines of text and tables, made here and printed there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fluxguard.rundir import RunDir

if TYPE_CHECKING:
    from fluxguard.drill.drill import Result
    from fluxguard.patching.asking import Answer
    from fluxguard.patching.scanning import Scan

# rich is imported where a table is made: most calls of the command line make none, and it costs as much as all else.


def status(seen: Mapping[str, Any]) -> Iterator[Any]:
    """Yield how a run is."""
    from rich.table import Table
    from rich.text import Text

    table = Table(show_header=False, box=None)
    planned = seen["planned_steps"] or "?"
    verified = "verified" if seen["weights"]["verified"] else "not there yet, or not verified"
    saved = f", {seen['applied_steps']} saved" if seen["state"] == "stopped" else ""
    rows = {
        "state": seen["reason"] if seen["reason"].startswith(seen["state"]) else f"{seen['state']}: {seen['reason']}",
        "steps": f"{seen['step']} of {planned}{saved} (attempt {seen['attempts']})",
        "phase": seen["phase"],
        "loss": seen["loss"] if seen["loss"] is None else f"{seen['loss']:.4g}",
        "machine": seen.get("machine"),
        "ranks": seen.get("ranks") or None,
        "debugging": seen.get("debugging") or None,
        "healed": seen["healing"].removeprefix("healed ") or None,
        "otherwise": "; ".join(one["words"] for one in seen["remedies"]) or None,
        "decided": seen["decided"] or None,
        "machine of several": seen.get("node"),
        "weights": f"{seen['weights']['path']} ({verified})" if seen["weights"]["path"] else None,
    }
    for name, value in rows.items():
        if value is not None:
            table.add_row(name, Text(str(value)))
    yield table
    yield from (f"note: {trouble}" for trouble in seen["troubles"])
    yield from (heal["words"] for heal in seen["healed"])
    for number, incident in enumerate(seen["incidents"], 1):
        yield f"incident {number} at step {incident['step']}: {incident['words']}"
        if incident["report"]:
            yield f"  report: {incident['report']}"


def nodes(seen: Sequence[Mapping[str, Any]]) -> Iterator[Any]:
    """Yield how each machine of a run is, a line each, and below it why and what has happened there."""
    for one in seen:
        where = f" (on {one['host']})" if one["host"] else ""
        steps = f"step {one['step']} of {one['planned_steps'] or '?'}"
        phase = f", {one['phase']}" if one["phase"] else ""
        yield f"{one['node'] or 'alone'}{where}: {one['state']}, {steps}{phase}, attempt {one['attempts']}"
        yield f"  {one['reason']}"
        if one.get("ranks"):
            yield f"  ranks: {one['ranks']}"
        yield from (f"  note: {trouble}" for trouble in one["troubles"])
        for number, incident in enumerate(one["incidents"], 1):
            yield f"  incident {number} at step {incident['step']}: {incident['words']}"


def limits(rows: Mapping[str, Mapping[str, Any]]) -> Iterator[Any]:
    """Yield the limits of a run, those in seconds first."""
    from rich.table import Column, Table
    from rich.text import Text

    table = Table(Column("limit", no_wrap=True), Column("value", justify="right", no_wrap=True), "why", box=None)
    for name, row in sorted(rows.items(), key=lambda item: item[1]["unit"] is None):
        value, unit = row["value"], row["unit"]
        number = f"{value:g}" if isinstance(value, float) else str(value).lower()
        said = "no limit" if value is None else f"{number} {unit or ''}"
        table.add_row(Text(name), said, Text(row["why"]))
    yield table


def drill(result: Result) -> Iterator[Any]:
    """Yield how a drill went."""
    from rich.table import Table

    table = Table("fault", "detected after", "cause named", "resumed at step", "steps lost")
    seen = result.status
    restarted = [fault for fault in result.faults if not fault.heals]
    for fault, incident in zip(restarted, seen.incidents, strict=False):
        after, step = f"{incident['detected_after_s']:.1f} s", incident["resumed_step"]
        table.add_row(fault.words, after, incident["cause"], str(step), str(incident["lost_steps"]))
    in_place = [fault for fault in result.faults if fault.heals]
    for fault, heal in zip(in_place, seen.healed, strict=False):
        table.add_row(fault.words, f"{heal['seconds']:.1f} s", heal["cause"], "went on", "0")
    yield table
    yield f"{seen.state}: {seen.reason}"
    yield f"steps embodied in the final weights: {seen.applied_steps} of {seen.planned_steps} planned"
    same = "identical, bit for bit" if result.identical else "NOT IDENTICAL"
    yield f"compared with an undisturbed, unhardened training: {same}"
    yield f"weights: {seen.weights['path']}"
    yield f"reports: {RunDir(seen.output_dir).incidents}"
    yield f"{'passed' if result.passed else 'FAILED'} in {result.seconds:.0f} s"


def hardening(answers: Sequence[Answer]) -> Iterator[Any]:
    """Yield what is guarded in each place, and what is to be said of it."""
    from rich.table import Column, Table

    for answer in answers:
        if answer.report is not None:
            table = Table("rule", *(Column(name, justify="right") for name in ("guarded", "unguarded", "files")))
            for row in answer.report.rows:
                table.add_row(row.rule, str(row.sites), str(row.unguarded), str(len(row.files)))
            yield table
        yield from answer.lines


def scan(found: Scan, *, explain: bool = False) -> Iterator[str]:
    """Yield what a scan found, what a FLUX LoRA training may come to first; the reasons stand once, below."""
    for on_path, title in {True: "on the FLUX LoRA path:", False: "elsewhere:", None: ""}.items():
        rows = [finding for finding in found.findings if finding.on_path is on_path]
        if rows and title:
            yield title
        for row in rows:
            where = f" in {row.function}" if row.function else ""
            yield f"  {row.file}:{row.line}  {row.kind} ({row.severity}){where}"
    yield from dict.fromkeys(f"{finding.kind}: {finding.why}" for finding in found.findings if not finding.condition)
    yield from (
        f"{finding.kind}, line {finding.line}: {finding.why}" for finding in found.findings if finding.condition
    )
    if explain:
        yield from (f"\n{kind}:\n{change}" for kind, change in found.examples().items())
    for name, reason in found.skipped.items():
        yield f"skipped {name}: {reason}"
    counts = ", ".join(f"{count} {kind}" for kind, count in found.counts().items())
    yield f"{len(found.findings)} unguarded in {found.files} files{': ' if counts else ''}{counts}"
