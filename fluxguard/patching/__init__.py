"""Hardening an sd-scripts checkout: rules rewrite its source, stamp it, show it, and take it back."""

from fluxguard.patching.hardening import (
    Change,
    Plan,
    Report,
    Row,
    apply,
    check,
    hardened_copy,
    is_hardened,
    plan,
    revert,
)
from fluxguard.patching.rewriting import EditFailed, Site, Unparsable, rewrite
from fluxguard.patching.rules import Edit, Example, Rule, load_rules

__all__ = [
    "Change",
    "Edit",
    "EditFailed",
    "Example",
    "Plan",
    "Report",
    "Row",
    "Rule",
    "Site",
    "Unparsable",
    "apply",
    "check",
    "hardened_copy",
    "is_hardened",
    "load_rules",
    "plan",
    "revert",
    "rewrite",
]
