"""The page about what goes wrong is made from the table of causes."""

from __future__ import annotations

from pathlib import Path

from fluxguard.supervisor.causes import BY_NAME, CAUSES
from fluxguard.supervisor.causes.document import main, page
from fluxguard.supervisor.causes.groups import GROUPS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "what-goes-wrong.md"


def test_every_cause_is_on_the_page() -> None:
    """With its sentence, what shows it, and what to do."""
    text = page()
    for cause in CAUSES:
        assert f"\n### {cause.name.replace('{what}', '...')}\n" in text
        assert cause.advice in text
    assert text.count("**Shown by**\n- ") == text.count("**Tried again.** ") == len(CAUSES)
    assert "THIS FILE IS GENERATED" in text.splitlines()[0]


def test_every_group_ends_by_a_cause_that_is_known() -> None:
    """Or without one."""
    assert len({group for group, *_ in GROUPS}) == 16
    for _, _, ends, cause, _ in GROUPS:
        assert ends in ("finished", "stopped", "refused")
        assert cause == "-" or cause in BY_NAME


def test_the_page_is_written_where_it_is_wanted(tmp_path: Path) -> None:
    """And nowhere else."""
    assert main([str(tmp_path / "page.md")]) == 0
    assert (tmp_path / "page.md").read_text(encoding="utf-8") == page()
    assert main([]) == 2


def test_the_page_in_the_documents_is_the_one_of_this_table() -> None:
    """A change of the table is a change of the page."""
    assert PAGE.read_text(encoding="utf-8") == page(), "run `make docs`"
