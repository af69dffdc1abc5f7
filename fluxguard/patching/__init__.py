"""Hardening an sd-scripts checkout: rules rewrite its source, stamp it, show it, and take it back."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fluxguard.patching.checkout import within
    from fluxguard.patching.copies import Chosen, hardened_copy, to_train_in
    from fluxguard.patching.diffs import diff
    from fluxguard.patching.edits import EditFailed, Site
    from fluxguard.patching.hardening import apply, check, is_hardened, revert
    from fluxguard.patching.planning import Change, Plan, plan
    from fluxguard.patching.report import Failed, Report, Row
    from fluxguard.patching.rewriting import Unparsable, rewrite
    from fluxguard.patching.rules import Edit, Example, Rule, load_rules
    from fluxguard.patching.stamp import Choice

# Nothing is imported before it is asked for: whether a checkout is hardened is known without parsing anything.
_HOME = {
    "Change": "planning",
    "Choice": "stamp",
    "Chosen": "copies",
    "Edit": "rules",
    "EditFailed": "edits",
    "Example": "rules",
    "Failed": "report",
    "Plan": "planning",
    "Report": "report",
    "Row": "report",
    "Rule": "rules",
    "Site": "edits",
    "Unparsable": "rewriting",
    "apply": "hardening",
    "check": "hardening",
    "diff": "diffs",
    "hardened_copy": "copies",
    "is_hardened": "hardening",
    "load_rules": "rules",
    "plan": "planning",
    "revert": "hardening",
    "rewrite": "rewriting",
    "to_train_in": "copies",
    "within": "checkout",
}

__all__ = [
    "Change",
    "Choice",
    "Chosen",
    "Edit",
    "EditFailed",
    "Example",
    "Failed",
    "Plan",
    "Report",
    "Row",
    "Rule",
    "Site",
    "Unparsable",
    "apply",
    "check",
    "diff",
    "hardened_copy",
    "is_hardened",
    "load_rules",
    "plan",
    "revert",
    "rewrite",
    "to_train_in",
    "within",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
