"""The promises are read from the page that users read."""

from __future__ import annotations

import pytest

from tests.scenarios import rows

TABLE = """
# A page

| group | what you see | ends | cause | what fluxguard does |
|---|---|---|---|---|
| A1 | nothing moves | finished | `no progress (step)` | ends it |
| G | it is slow | finished | - | nothing |

| another | table |
|---|---|
| H | x |
"""


def test_each_row_promises_an_end_and_a_cause() -> None:
    """Other tables of the page are none of it."""
    assert rows.read(TABLE) == {
        "A1": rows.Row("A1", "finished", "no progress (step)"),
        "G": rows.Row("G", "finished", rows.NO_CAUSE),
    }


def test_a_page_without_the_table_promises_nothing() -> None:
    """Which is an error, not an empty promise."""
    with pytest.raises(ValueError, match="not in list"):
        rows.read(TABLE.replace("ends", "end"))
