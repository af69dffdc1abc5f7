"""The options of `pytest -m upstream`, the laws of hardening held against a checkout the user has.

A plugin of its own and not a conftest: pytest takes a path behind an option that it does not know yet for its root.
"""

from __future__ import annotations

from typing import Any


def pytest_addoption(parser: Any) -> None:
    """Add the options; see pytest's hook of this name."""
    group = parser.getgroup("fluxguard")
    group.addoption("--sd-scripts", metavar="PATH", help="a checkout for the tests marked `upstream`")
    group.addoption("--trainer-python", metavar="PATH", help="the interpreter of the environment it trains in")
