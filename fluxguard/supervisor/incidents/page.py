"""An incident as one page: no script, nothing loaded from elsewhere, everything from outside escaped."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from fluxguard.supervisor.incidents import chart
from fluxguard.supervisor.incidents.incident import LAST_LINES, Incident
from fluxguard.supervisor.incidents.texts import plain

_TEMPLATE = Path(__file__).with_name("page.html.jinja")
_KINDS = ("start", "caches", "training", "sampling", "saving", "other")
_TEXTS = (".txt", ".json")
_LONGEST = 300_000
"""Bytes of one file that the page shows."""


def beside(folder: Path, incident: Incident) -> dict[str, str]:
    """Return the texts that lie beside a report, by name; what is not there any more is left out."""
    found = {}
    for name in incident.files:
        path = folder / name
        # The report may have come from another machine: it names files of its own folder, or none.
        if Path(name).name != name or path.suffix not in _TEXTS or name == LAST_LINES or path.is_symlink():
            continue
        try:
            with path.open("rb") as file:
                found[name] = file.read(_LONGEST).decode("utf-8", "replace")
        except OSError:
            continue
    return found


def render(incident: Incident, texts: Mapping[str, str] | None = None) -> str:
    """Return the page; `texts` are shown folded, by name."""
    from jinja2 import Environment, StrictUndefined  # only who wants a page pays for it

    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, finalize=_shown
    )
    template = environment.from_string(_TEMPLATE.read_text("utf-8"))
    return template.render(
        incident=incident, beside=dict(texts or {}), chart=chart.drawn(incident.timeline, incident.at), kinds=_KINDS
    )


def _shown(value: object) -> object:
    """Take out of a text what turns letters around; what the template itself made stays as it is."""
    return plain(value) if type(value) is str else value
