"""The drill itself: what `make demo` promises."""

from __future__ import annotations

from pathlib import Path

import pytest

from fluxguard.clock import SystemClock
from fluxguard.drill import drill
from fluxguard.drill.faults import FAULTS, named
from fluxguard.errors import InputError


def test_unknown_faults_are_refused_by_name() -> None:
    """And none means all."""
    assert named([]) == FAULTS
    with pytest.raises(InputError, match="flood"):
        named(["flood"])


@pytest.mark.integration
@pytest.mark.timeout(600)
def test_three_faults_leave_no_trace_in_the_weights(tmp_path: Path) -> None:
    """Each is detected in time, named, and resumed or put right; the end equals that of an undisturbed training."""
    result = drill.run(tmp_path, FAULTS, SystemClock(), lambda _: None)
    assert result.passed, result
    kill, swap = result.status.incidents
    (worker,) = result.status.healed
    assert [kill["cause"], swap["cause"]] == ["killed from outside (SIGKILL)", "block swap"]
    assert worker["cause"] == "loader worker"
    assert worker["identical"]
    assert kill["detected_after_s"] <= 1
    assert swap["detected_after_s"] <= 2 + 1
    assert worker["seconds"] <= 3 + 2
    assert all(Path(one["report"]).read_text().startswith("# Incident") for one in result.status.incidents)
    assert result.status.hardened
