"""What is said of a diagnosis besides, where several ranks train: which of them to look at, and what they debugged."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fluxguard.supervisor.causes import ranks, wording

if TYPE_CHECKING:
    from fluxguard.supervisor.causes.diagnosis import Diagnosis, Evidence
    from fluxguard.supervisor.detecting.detectors import Symptom

OF_RANKS = frozenset(cause.name for cause in ranks.CAUSES)
"""The names of causes that tell of ranks themselves."""
_SEGFAULT = "crashed (SIGSEGV)"
_DETAIL = (
    "Its ranks debugged their collectives (TORCH_DISTRIBUTED_DEBUG=DETAIL), and some versions of torch crash by it."
)
_LESS = (
    "Leave --debug-distributed out: the next attempt is without it, unless TORCH_DISTRIBUTED_DEBUG=DETAIL stands in the"
    " environment."
)


def changes(found: Diagnosis, symptom: Symptom, evidence: Evidence) -> dict[str, Any]:
    """Return what changes of a diagnosis: it says first which rank the others waited for, or which one ended first."""
    words, changed = found.words, dict[str, Any]()
    if evidence.debugging and found.cause == _SEGFAULT:
        words, changed = f"{words} {_DETAIL}", {"advice": _LESS}
    said = (*([symptom.ranks] if symptom.ranks else []), *evidence.collectives)
    if symptom.kind == "ended" and found.cause not in OF_RANKS:
        said = (f"rank {evidence.how.rank} ended first",) if evidence.how.rank is not None else ()
    if said:
        words = f"{wording.ended(wording.sentence(said[0]))} {words}"
        changed["proof"] = (*said, *(one for one in found.proof if one not in said))
    return {**changed, "words": words}
