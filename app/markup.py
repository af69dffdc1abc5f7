"""The screen as HTML. Every text is escaped here; nothing else makes HTML."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from .start import Checked, shell_lines
from .view import Card, Screen


def state(screen: Screen) -> str:
    """Return the state line, the bar and the figures."""
    figures = "".join(
        f'<div class="fg-figure"><dt>{escape(name)}</dt><dd>{escape(said)}</dd></div>' for name, said in screen.figures
    )
    listed = f'<dl class="fg-figures">{figures}</dl>' if figures else ""
    return (
        f'<section class="fg-state fg-{screen.tone}" aria-label="State of the training">'
        f'<h2 class="fg-headline" role="status">{escape(screen.headline)}</h2>'
        f'<p class="fg-detail">{escape(screen.detail)}</p>'
        f"{_bar(screen)}"
        f"{listed}{_machine(screen)}</section>"
    )


def _machine(screen: Screen) -> str:
    lines = "<br>".join(f"{escape(name)}: {escape(said)}" for name, said in screen.machine)
    return f'<p class="fg-quiet fg-machine">{lines}</p>' if lines else ""


def _bar(screen: Screen) -> str:
    if screen.share is None:
        return '<div class="fg-bar fg-bar-unknown"></div>' if screen.tone == "busy" else ""
    percent = f"{100 * screen.share:.1f}"
    return (
        f'<div class="fg-bar" role="progressbar" aria-label="Steps trained" aria-valuemin="0" aria-valuemax="100"'
        f' aria-valuenow="{percent}"><div style="width:{percent}%"></div></div>'
    )


def incidents(screen: Screen) -> str:
    """Return the incidents, newest first; a quiet line when there is none."""
    if not screen.figures:
        return ""
    cards = "".join(_card(card) for card in screen.cards)
    lists = (
        _listed("Not as it should be, but it goes on", screen.troubles)
        + _listed("Done otherwise than the command says", screen.remedies)
        + _listed("Put right without a restart", screen.heals)
    )
    body = cards + lists or '<p class="fg-quiet">Nothing went wrong so far.</p>'
    count = f' <span class="fg-count">{len(screen.cards)}</span>' if screen.cards else ""
    return f'<section class="fg-incidents"><h3>Incidents{count}</h3>{body}</section>'


def _listed(title: str, sentences: Sequence[str]) -> str:
    lines = "".join(f"<li>{escape(line)}</li>" for line in sentences)
    return f'<section class="fg-heals"><h4>{title}</h4><ul>{lines}</ul></section>' if lines else ""


def _card(card: Card) -> str:
    advice = f'<p class="fg-advice"><b>What you can do.</b> {escape(card.advice)}</p>' if card.advice else ""
    report = (
        f"<details><summary>Full report</summary><pre tabindex=0>{escape(card.report)}</pre></details>"
        if card.report
        else ""
    )
    return (
        f'<article class="fg-card" aria-label="Incident {card.number}">'
        f"<header><h4>{escape(card.cause)}</h4><span>{escape(card.facts)}</span></header>"
        f"<p>{escape(card.words)}</p>"
        f'<p class="fg-done"><b>What was done.</b> {escape(card.done)}</p>'
        f"{advice}{report}</article>"
    )


def log(screen: Screen) -> str:
    """Return the last lines of the trainer; the style sheet keeps their end in view."""
    if not screen.log:
        return ""
    title = "Last lines of the trainer"
    return (
        f'<div class="fg-lines" tabindex="0" role="log" aria-live="off" aria-label="{title}">{escape(screen.log)}</div>'
    )


def command(checked: Checked) -> str:
    """Return what a train.sh was understood to say."""
    protected = "yes" if checked.hardened else "by a hardened copy of the trainer, where its shape is known"
    rows = [("Saves into", str(checked.run.output_dir)), ("Runs in", str(checked.cwd)), ("Hardened", protected)]
    if not set(checked.argv[0]) & set("/\\"):  # else the command itself names its interpreter
        rows.insert(2, ("Python", str(checked.interpreter)))
    table = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in rows)
    return (
        f'<div class="fg-command"><dl>{table}</dl><details><summary>The command, as it was read</summary>'
        f"<pre tabindex=0>{escape(shell_lines(checked.argv))}</pre></details></div>"
    )


def quiet(text: str) -> str:
    """Return a line of explanation."""
    return f'<p class="fg-quiet">{escape(text)}</p>'


def refusal(text: str) -> str:
    """Return why something that was asked for is not done."""
    return f'<p class="fg-refusal" role="alert">{escape(text)}</p>'
