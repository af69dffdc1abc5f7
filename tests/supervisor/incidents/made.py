"""Incidents for the tests of what is made of them."""

from __future__ import annotations

from typing import Any

from fluxguard.supervisor.incidents.incident import Incident

AT = 1_790_000_000.0
EVIL = "<script>alert(1)</script>\x1b[31m`|</pre><img src=x onerror=alert(1)>"


def points(count: int = 60, *, step: float = 10.0) -> list[dict[str, Any]]:
    """Return a timeline that loads, trains, samples and ends at `AT`, in two attempts; some figures are unknown."""
    made = []
    for at in range(count):
        phase = "load" if at < 5 else "sampling" if 30 <= at < 34 else "step"
        one = {"at": AT - (count - at) * step, "attempt": 1 if at < 20 else 2, "phase": phase, "step": max(0, at - 5)}
        if at >= 6 and at % 9:
            one["loss"] = 0.4 - at / 400
        made.append({**one, "gpu_percent": 0 if phase == "load" else 97, "ram_used": (8 << 30) + at * (10 << 20)})
    return made


def incident(**changes: Any) -> Incident:
    """Return an incident."""
    values: dict[str, Any] = {
        "number": 2, "at": AT, "attempt": 2, "cause": "no progress (step)", "phase": "step", "step": 54,
        "detected_after_s": 300.25, "resumed_step": 50, "lost_steps": 4,
        "words": "Nothing moved for 300 s: no beat, no output, no processor time.",
        "advice": "If it comes again: look at the disk.", "decision": "Restarted: another attempt can end differently.",
        "symptom": {"kind": "idle"}, "ending": {"rungs": ["SIGCONT", "SIGTERM"], "left": [], "seconds": 0.2},
        "figures": {"free memory": "12.0 of 62.0 GiB", "GPU": "unknown"}, "notes": ("the state of step 52 is torn",),
        "format": 2, "proof": ("beat 300 s old", "loss=0.3"), "origin": "trainer", "state": "step-00000050",
        "files": ("last-lines.txt", "stacks.txt"), "missing": {"native-stacks.txt": "not available: gdb: no"},
        "lines": ("steps: 54/100", "last line"), "timeline": tuple(points()),
    }  # fmt: skip
    return Incident(**{**values, **changes})
