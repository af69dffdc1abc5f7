"""The page about the rules is made from the rules."""

from __future__ import annotations

from pathlib import Path

from fluxguard.patching import load_rules
from fluxguard.patching.document import main, page


def test_every_rule_and_every_example_is_on_the_page() -> None:
    rules = load_rules()
    text = page(rules)
    for rule in rules:
        assert f"\n## {rule.id}\n" in text
        assert rule.why in text
    assert text.count("```diff") == sum(len(edit.rewrites) for rule in rules for edit in rule.edits)
    assert "THIS FILE IS GENERATED" in text.splitlines()[0]


def test_the_page_is_written_where_it_is_wanted(tmp_path: Path) -> None:
    assert main([str(tmp_path / "rules.md")]) == 0
    assert (tmp_path / "rules.md").read_text(encoding="utf-8") == page(load_rules())
    assert main([]) == 2


def test_the_page_in_the_documents_is_the_one_of_these_rules() -> None:
    page_there = Path(__file__).resolve().parents[2] / "docs" / "rules.md"
    assert page_there.read_text(encoding="utf-8") == page(load_rules()), "run `make docs`"
