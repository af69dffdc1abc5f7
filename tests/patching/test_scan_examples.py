"""Laws of the examples of the scan: it finds what each shows before, and nothing in what it shows after."""

from __future__ import annotations

from pathlib import Path

import pytest

from fluxguard.patching.scan_document import kinds, main, page
from fluxguard.patching.scan_examples import EXAMPLES, IMPORTS
from fluxguard.patching.scan_kinds import ON_SOME_RANKS
from fluxguard.patching.scan_sites import find

FIRST = IMPORTS.count("\n") + 1


def found(code: str) -> list[tuple[str, int]]:
    """Return the kinds found in an example, each with its line there."""
    sites = find(f"{IMPORTS}{code}\n")
    return [(f"{one.kind.name}{ON_SOME_RANKS if one.condition else ''}", one.line - FIRST + 1) for one in sites]


@pytest.mark.parametrize("kind", EXAMPLES)
def test_the_scan_finds_what_is_before_and_leaves_alone_what_is_after(kind: str) -> None:
    """Just that kind, once: an example that shows two things teaches neither."""
    example = EXAMPLES[kind]
    assert [name for name, _ in found(example.before)] == [kind]
    assert found(example.after) == []


def test_every_kind_has_an_example() -> None:
    """One that is listed only on some ranks has one for that."""
    for kind in kinds():
        assert kind.name in EXAMPLES or f"{kind.name}{ON_SOME_RANKS}" in EXAMPLES, kind.name
        assert not kind.everywhere or kind.name in EXAMPLES, kind.name


def test_the_page_holds_every_kind_and_is_the_one_in_the_documents(tmp_path: Path) -> None:
    """It is written by `make docs`."""
    for name, example in EXAMPLES.items():
        assert f"\n## {name}\n" in page()
        assert all(f"\n-{line}" in page() or f"\n {line}" in page() for line in example.before.splitlines())
    assert main([str(tmp_path / "scan.md")]) == 0
    written = (tmp_path / "scan.md").read_text(encoding="utf-8")
    in_the_documents = Path(__file__).resolve().parents[2] / "docs" / "scan.md"
    assert in_the_documents.read_text(encoding="utf-8") == written == page(), "run `make docs`"
    assert main([]) == 2
