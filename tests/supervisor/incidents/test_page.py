"""Laws of the page and of the Markdown: they tell the whole incident, and nothing from outside becomes markup."""

from __future__ import annotations

import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from fluxguard.supervisor.incidents import markdown, page
from fluxguard.supervisor.incidents.incident import Incident
from tests.supervisor.incidents.made import AT, EVIL, incident, points

_LONGEST = 60.0
VOID = {"meta", "img", "br", "link", "input", "hr"}


class Reader(HTMLParser):
    """Reads a page: its tags, attributes and texts; says whether every tag is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.texts: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """See the base class."""
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """See the base class."""
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        """See the base class."""
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        """See the base class."""
        self.texts.append(data)

    @property
    def text(self) -> str:
        """What a person reads."""
        return " ".join(" ".join(self.texts).split())


def evil() -> Incident:
    """Return an incident in which everything from outside is hostile."""
    return incident(
        cause=EVIL, words=EVIL, advice=EVIL, decision=EVIL, phase=EVIL, notes=(EVIL,), proof=(EVIL,),
        lines=(EVIL, "```"), troubles=(EVIL,), figures={EVIL: EVIL}, missing={EVIL: EVIL}, flags=(EVIL,),
        state=EVIL, origin=EVIL,
        timeline=tuple({**point, "phase": EVIL} for point in points()),
    )  # fmt: skip


def test_the_page_says_everything_that_is_known() -> None:
    """What happened, what was done and why, what to do, the proof, the figures, the states, the lines."""
    made = incident()
    read = Reader(page.render(made, {"stacks.txt": "main (train.py:1)"}))
    assert not read.open
    for words in (made.words, made.decision, made.advice, *made.proof, *made.notes, *made.lines, "12.0 of 62.0 GiB"):
        assert words in read.text
    assert "main (train.py:1)" in read.text
    assert "details" in read.tags
    assert "not available: gdb: no" in read.text


def test_what_is_unknown_is_shown_as_unknown() -> None:
    """Never as nothing, and never as zero."""
    read = Reader(page.render(incident()))
    assert "GPU unknown" in read.text
    assert "Unknown: GPU power, GPU memory" in read.text
    assert "No timeline was recorded" in Reader(page.render(incident(timeline=()))).text


def test_the_page_is_one_file() -> None:
    """It loads nothing, runs nothing, and goes to nobody."""
    text = page.render(incident(), {"stacks.txt": "x"})
    read = Reader(text)
    assert not {"script", "link", "img", "iframe", "object", "form", "a"} & set(read.tags)
    assert not re.search(r"https?:|url\(|@import", text)
    assert "default-src 'none'" in text


def test_the_picture_is_told_to_who_does_not_see_it() -> None:
    """Every drawing has a title and a description of its own."""
    read = Reader(page.render(incident()))
    drawings = read.tags.count("svg")
    assert drawings > 4
    assert read.tags.count("title") - 1 == read.tags.count("desc") == drawings
    named = [value.split() for name, value in read.attributes if name == "aria-labelledby"]
    ids = [value for name, value in read.attributes if name == "id"]
    assert len(ids) == len(set(ids)) == 2 * drawings
    assert sorted(one for pair in named for one in pair) == sorted(ids)
    assert "training" not in read.text or "step" in read.text


def test_it_is_readable_on_a_phone_and_in_the_dark() -> None:
    """The width is the screen's, no text is inside the drawings, and there are two sets of colours."""
    text = page.render(incident())
    assert 'content="width=device-width, initial-scale=1"' in text
    assert "prefers-color-scheme: dark" in text
    assert "<text" not in text


@pytest.mark.parametrize("name", ["page", "beside"])
def test_nothing_from_outside_becomes_markup(name: str) -> None:
    """Not in a cause, a line, a file's name, a file's text, a phase or a figure."""
    text = page.render(evil(), {EVIL: EVIL} if name == "beside" else {})
    read = Reader(text)
    assert not read.open
    assert not {"script", "img"} & set(read.tags)
    assert not [name for name, _ in read.attributes if name.startswith("on")]
    assert "\x1b" not in text
    assert "alert(1)" in read.text


def test_nothing_from_outside_becomes_markup_in_markdown() -> None:
    """And no line ends the block that it stands in."""
    text = markdown.of(evil())
    outside = re.sub(r"(?ms)^(`{3,})text$.*?^\1$", "", text)
    assert "<script" not in outside.replace("\\<script", "")
    assert "<img" not in outside.replace("\\<img", "")
    assert "\x1b" not in text
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    assert all(len(re.findall(r"(?<!\\)\|", row)) == 3 for row in rows)


def test_the_markdown_says_everything_that_is_known() -> None:
    """It is what a terminal shows in the morning."""
    made = incident(flags=("--blocks_to_swap 24 (was 18)",))
    text = markdown.of(made)
    assert text.startswith("# Incident 2: no progress (step)")
    for words in (made.words, made.decision, made.advice, *made.proof, *made.lines, "--blocks_to_swap 24 (was 18)"):
        assert words in text
    assert "| GPU | unknown |" in text


def test_the_page_reads_only_its_own_folder(tmp_path: Path) -> None:
    """A report that came from elsewhere names no file of ours."""
    (tmp_path / "secret.txt").write_text("s")
    folder = tmp_path / "0001"
    folder.mkdir()
    (folder / "stacks.txt").write_text("stack")
    (folder / "flight-recorder-0").write_bytes(b"\x80\x04")
    (folder / "link.txt").symlink_to(tmp_path / "secret.txt")
    named = incident(
        files=("stacks.txt", "../secret.txt", "link.txt", "flight-recorder-0", "gone.txt", str(tmp_path / "secret.txt"))
    )
    assert page.beside(folder, named) == {"stacks.txt": "stack"}
    assert named.at == AT


@pytest.mark.integration
def test_who_wants_no_page_does_not_pay_for_it() -> None:
    """The supervisor stays small: what renders pages is loaded where one is made."""
    asked = "import sys, fluxguard.supervisor.supervise, fluxguard.cli; sys.exit('jinja2' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", asked], timeout=_LONGEST).returncode == 0
