"""The page itself: one screen. What it shows comes from files each second, so every browser sees the same."""

from __future__ import annotations

from typing import Any

import gradio as gr

from fluxguard.errors import FluxguardError, InputError
from fluxguard.launch.script import INSTEAD

from . import markup, start, view
from .desk import Desk
from .view import Screen

IN_A_TERMINAL = "write it as one plain command, or in a terminal: fluxguard supervise --output-dir DIR -- COMMAND"
_TICK = 1.0
_DEMO, _SCRIPT = "Demo", "My own train.sh"
_ABOUT_DEMO = "Trains a tiny model for about a minute on the processor: no graphics card, no download, nothing to pay."
_ABOUT_SCRIPT = "It is read, never executed as text: one trainer command is what may stand in it."

Update = Any


def theme() -> gr.themes.Base:
    """Return the look; only fonts that this computer has."""
    look = gr.themes.Base(
        primary_hue=gr.themes.colors.teal,
        neutral_hue=gr.themes.colors.stone,
        radius_size=gr.themes.sizes.radius_md,
        font=["system-ui", "-apple-system", "Segoe UI", "Roboto", "Helvetica Neue", "sans-serif"],
        font_mono=["ui-monospace", "SFMono-Regular", "Menlo", "Consolas", "DejaVu Sans Mono", "monospace"],
    )
    # One palette, in style.css, which knows light and dark.
    paper, ground, line, ink, soft = (f"var(--fg-{name})" for name in ("paper", "ground", "line", "ink", "soft"))
    return look.set(
        body_background_fill=ground, body_background_fill_dark=ground,
        body_text_color=ink, body_text_color_dark=ink,
        block_background_fill=paper, block_background_fill_dark=paper,
        block_border_color=line, block_border_color_dark=line,
        block_label_text_color=soft, block_label_text_color_dark=soft,
        block_title_text_color=soft, block_title_text_color_dark=soft,
        block_info_text_color=soft, block_info_text_color_dark=soft,
        block_radius="12px",
        input_background_fill=ground, input_background_fill_dark=ground,
        input_border_color=line, input_border_color_dark=line, input_border_width="1px",
        input_border_color_focus="var(--fg-busy)",
        input_border_color_focus_dark="var(--fg-busy)",
        checkbox_label_background_fill=ground, checkbox_label_background_fill_dark=ground,
        checkbox_background_color_selected="var(--fg-busy)", checkbox_background_color_selected_dark="var(--fg-busy)",
        checkbox_border_color_selected="var(--fg-busy)", checkbox_border_color_selected_dark="var(--fg-busy)",
        button_primary_background_fill="var(--fg-busy)", button_primary_background_fill_dark="var(--fg-busy)",
        button_primary_background_fill_hover="var(--fg-busy-strong)",
        button_primary_background_fill_hover_dark="var(--fg-busy-strong)",
        button_primary_border_color="var(--fg-busy)",
        button_primary_border_color_dark="var(--fg-busy)",
        button_primary_border_color_hover="var(--fg-busy-strong)",
        button_primary_border_color_hover_dark="var(--fg-busy-strong)",
        button_primary_text_color="var(--fg-on-busy)", button_primary_text_color_dark="var(--fg-on-busy)",
    )  # fmt: skip


def build(desk: Desk) -> gr.Blocks:
    """Return the page of a desk."""
    acts = _Acts(desk)
    with gr.Blocks(title="fluxguard", analytics_enabled=False, fill_width=True) as blocks:
        shown = gr.State({})
        gr.HTML('<h1 class="fg-name">fluxguard</h1>', elem_id="fg-head")
        with gr.Row(elem_id="fg-page"):
            with gr.Column(elem_id="fg-run", scale=3, min_width=300):
                state = gr.HTML(markup.state(view.EMPTY), elem_id="fg-state")
                with gr.Row(elem_id="fg-buttons"):
                    resume = gr.Button("Resume", variant="primary", visible=False, elem_id="fg-resume", min_width=120)
                    stop = gr.Button("Stop", variant="stop", visible=False, elem_id="fg-stop", min_width=120)
                incidents = gr.HTML("", elem_id="fg-incidents")
                gr.HTML("<h3>Last lines of the trainer</h3>", elem_id="fg-log-title")
                log = gr.HTML("", elem_id="fg-log")
            with gr.Column(elem_id="fg-start", scale=1, min_width=300):
                runs = gr.Dropdown([], label="Show the training", visible=False, elem_id="fg-runs", filterable=False)
                gr.HTML("<h3>New training</h3>")
                kind = gr.Radio([_DEMO, _SCRIPT], value=_DEMO, label="What to train", elem_id="fg-kind")
                path = gr.Textbox(
                    label="Path of the train.sh", placeholder="/home/me/fluxgym/outputs/my-lora/train.sh",
                    visible=False, max_lines=1, elem_id="fg-path", html_attributes=_plain_input(),
                )  # fmt: skip
                fresh = gr.Checkbox(
                    False, label="Begin anew", info="What an earlier run left there is moved aside, never deleted.",
                    visible=False, elem_id="fg-fresh",
                )  # fmt: skip
                answer = gr.HTML(markup.quiet(_ABOUT_DEMO), elem_id="fg-answer")
                begin = gr.Button("Start", variant="primary", elem_id="fg-begin")
        changing = [state, resume, stop, incidents, log, runs]
        quick: dict[str, Any] = {"preprocess": False, "show_progress": "hidden", "api_visibility": "private"}
        quick |= {"concurrency_limit": None}
        gr.Timer(_TICK).tick(acts.tick, [runs, shown], [shown, *changing], **quick)
        blocks.load(acts.first, [], [shown, *changing], **quick)
        runs.input(acts.tick, [runs, shown], [shown, *changing], **quick)
        kind.input(acts.kind, [kind, path], [path, fresh, answer], **quick)
        for changed in (path.submit, path.blur):
            changed(acts.read, [path], [answer], **quick)
        begin.click(acts.begin, [kind, path, fresh, runs, shown], [answer, fresh, shown, *changing], **quick)
        stop.click(acts.stop, [runs, shown], [shown, *changing], **quick)
        resume.click(acts.resume, [runs, shown], [answer, shown, *changing], **quick)
        gr.api(acts.status, api_name="status")  # type: ignore[attr-defined] # gradio says so only at run time
    made: gr.Blocks = blocks
    return made


def _plain_input() -> gr.InputHTMLAttributes:
    return gr.InputHTMLAttributes(autocapitalize="off", autocorrect="off", spellcheck=False)


class _Acts:
    """What happens on each event; values come as the browser sends them, so they are looked up, never trusted."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    def tick(self, output_dir: Any, shown: dict[str, Any]) -> list[Update]:
        return self._show(output_dir, shown)

    def first(self) -> list[Update]:
        return self._show(self._desk.newest(), {})

    def kind(self, kind: Any, path: Any) -> list[Update]:
        if kind != _SCRIPT:
            return [gr.update(visible=False), gr.update(visible=False, value=False), markup.quiet(_ABOUT_DEMO)]
        return [gr.update(visible=True), gr.update(visible=True), self.read(path)]

    def read(self, path: Any) -> str:
        """Answer a path at once, so that what is wrong with it is known before the start."""
        if not isinstance(path, str) or not path.strip():
            return markup.quiet(_ABOUT_SCRIPT)
        try:
            return markup.command(start.check(path))
        except (FluxguardError, OSError) as error:
            return markup.refusal(said(error))

    def begin(self, kind: Any, path: Any, fresh: Any, output_dir: Any, shown: dict[str, Any]) -> list[Update]:
        answer: Update = markup.quiet(_ABOUT_DEMO)
        try:
            if kind == _SCRIPT:
                typed = path if isinstance(path, str) else ""
                answer = markup.command(start.check(typed))
                output_dir = self._desk.start_script(typed, fresh=fresh is True)
            else:
                output_dir = self._desk.start_demo()
        except (FluxguardError, OSError) as error:
            answer = markup.refusal(said(error))
        return [answer, gr.update(value=False), *self._show(output_dir, shown)]

    def stop(self, output_dir: Any, shown: dict[str, Any]) -> list[Update]:
        if isinstance(output_dir, str):
            self._desk.stop(output_dir)
        return self._show(output_dir, shown)

    def resume(self, output_dir: Any, shown: dict[str, Any]) -> list[Update]:
        answer: Update = gr.skip()
        try:
            if isinstance(output_dir, str):
                self._desk.resume(output_dir)
        except (FluxguardError, OSError) as error:
            answer = markup.refusal(said(error))
        return [answer, *self._show(output_dir, shown)]

    def status(self, output_dir: str = "") -> dict[str, Any]:
        """Return the status of a known run, the newest when none is named."""
        chosen = output_dir or self._desk.newest()
        return {"output_dir": chosen, "status": self._desk.mapping(chosen)}

    def _show(self, output_dir: Any, shown: dict[str, Any]) -> list[Update]:
        """Return what is shown now, and an update for each part in which it differs from what was shown."""
        choices = self._desk.choices()
        known = {folder for _, folder in choices}
        chosen = output_dir if isinstance(output_dir, str) and output_dir in known else self._desk.newest()
        parts = _parts(self._desk.screen(chosen))
        parts["runs"] = {"choices": choices, "value": chosen, "visible": len(choices) > 0}
        before = shown if isinstance(shown, dict) else {}
        updates = [gr.skip() if before.get(name) == part else gr.update(**part) for name, part in parts.items()]
        return [parts if parts != before else gr.skip(), *updates]


def _parts(screen: Screen) -> dict[str, dict[str, Any]]:
    return {
        "state": {"value": markup.state(screen)},
        "resume": {"visible": screen.can_resume, "value": screen.resume_label},
        "stop": {
            "visible": screen.can_stop or screen.stop_label != "Stop",
            "value": screen.stop_label,
            "interactive": screen.can_stop,
        },
        "incidents": {"value": markup.incidents(screen)},
        "log": {"value": markup.log(screen)},
    }


def said(error: Exception) -> str:
    """Return an error in words for the page: what the input is called there is known from where it stands."""
    if isinstance(error, InputError) and error.source == "path":
        return error.reason
    return str(error).replace(INSTEAD, IN_A_TERMINAL)
