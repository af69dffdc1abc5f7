"""Laws of the FID in a process of its own: the same number, or a clear error, and nothing left of it."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from fluxguard import distributed, limits
from fluxguard.distributed.measures import frechet
from fluxguard.errors import DeadlineExceeded, InputError, SubprocessFailed
from fluxguard.guard import deadlines
from tests.conftest import POLL, ROOT

LIMIT, GRACE = 0.3, 1.0
START = 2.0  # in which it has started a process of its own, on a busy machine too
POPEN = subprocess.Popen


def features(rows: int, width: int = 4, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal((rows, width))


def lives(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def slowly(monkeypatch: pytest.MonkeyPatch, program: str) -> None:
    """Let the process run `program` instead of what computes."""

    def start(command: list[str], **known: Any) -> subprocess.Popen[bytes]:
        return POPEN([sys.executable, "-c", program, command[-1]], **known)

    monkeypatch.setattr("fluxguard.distributed.measures.fid.subprocess.Popen", start)


def test_the_distance_of_normal_distributions_is_the_known_one() -> None:
    """Of means and variances alone, where the covariances are diagonal."""
    corners = np.array([[a, b] for a in (-1.0, 1.0) for b in (-1.0, 1.0)] * 500)
    scale = len(corners) / (len(corners) - 1)  # the variance of n - 1
    wider = corners * [2.0, 3.0] + [1.0, -1.0]
    assert frechet.distance(corners, wider) == pytest.approx(2 + ((2 - 1) ** 2 + (3 - 1) ** 2) * scale)


def test_equal_features_have_no_distance() -> None:
    """Never less than none, nor for fewer rows than numbers in each."""
    same = features(3, 16)
    assert frechet.distance(same, same) == pytest.approx(0, abs=1e-6)
    assert frechet.distance(same, same) >= 0


def test_rows_are_read_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """And the pieces make no difference."""
    whole = frechet.distance(features(100), features(50, seed=1))
    monkeypatch.setattr(frechet, "_ROWS", 7)
    assert frechet.distance(features(100), features(50, seed=1)) == pytest.approx(whole, rel=1e-12)


@pytest.mark.parametrize(
    ("real", "fake", "said"),
    [
        (features(9), features(9, 5), "the real features are 4 wide, the fake ones 5"),
        (features(1), features(9), "real: needs 2 rows"),
        (features(9), features(9)[0], "fake: must be numbers of shape"),
        (features(9), np.array([["a"] * 4] * 2), "fake: must be numbers"),
        (features(9, 0), features(9, 0), "real: needs 2 rows"),
        (None, features(9), "real: must be numbers"),
    ],
)
def test_what_are_no_features_starts_no_process(
    monkeypatch: pytest.MonkeyPatch, real: Any, fake: Any, said: str
) -> None:
    """It is an error that names the argument."""
    slowly(monkeypatch, "raise SystemExit(9)")
    with pytest.raises(InputError, match=said):
        distributed.fid_in_subprocess(real, fake)


@pytest.mark.integration
def test_a_process_computes_what_this_one_would(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From whatever thread and type; no file is left."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    real, fake = features(60), features(50, seed=1) * 1.5
    assert distributed.fid_in_subprocess(real, fake) == frechet.distance(real, fake)
    found: list[float] = []
    halves = real.astype(np.float16), fake.astype(np.float32)
    thread = threading.Thread(target=lambda: found.append(distributed.fid_in_subprocess(*halves)))
    thread.start()
    thread.join()
    assert found == [pytest.approx(frechet.distance(real, fake), rel=1e-2)]
    assert not list(tmp_path.iterdir())


@pytest.mark.integration
def test_it_says_why_it_could_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own words, or those of its end."""
    with pytest.raises(SubprocessFailed, match="ValueError: the fake features hold values that are NaN") as caught:
        distributed.fid_in_subprocess(features(9), features(9) * np.nan)
    assert caught.value.code == 0
    slowly(monkeypatch, "import os; os.kill(os.getpid(), 9)")
    with pytest.raises(SubprocessFailed, match="'my fid' failed in its subprocess: was killed by signal 9"):
        distributed.fid_in_subprocess(features(9), features(9), what="my fid")
    slowly(monkeypatch, "raise OSError('no numpy here')")
    with pytest.raises(SubprocessFailed, match=r"(?s)ended with code 1; .*no numpy here"):
        distributed.fid_in_subprocess(features(9), features(9))


@pytest.mark.integration
@pytest.mark.parametrize("how", ["limit", "limits", "fail_after"])
def test_it_ends_at_the_limit(monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    """The one of the call, of the process, or of the thread."""
    slowly(monkeypatch, "import time; time.sleep(60)")
    begin = time.monotonic()
    with (
        limits.use(fid=LIMIT if how == "limits" else 60),
        deadlines.fail_after(LIMIT if how == "fail_after" else 60, "the fid"),
        pytest.raises(DeadlineExceeded) as caught,
    ):
        distributed.fid_in_subprocess(features(9), features(9), limit=LIMIT if how == "limit" else None)
    assert LIMIT <= time.monotonic() - begin < LIMIT + GRACE
    assert ("limits.use(fid=SECONDS)" in str(caught.value)) == (how != "fail_after")


@pytest.mark.integration
def test_it_is_killed_with_its_tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Deaf to everything but SIGKILL."""
    pids = tmp_path / "pids"
    slowly(
        monkeypatch,
        "import os, signal, subprocess, sys, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        f"open({str(pids)!r}, 'w').write(f'{{os.getpid()}} {{child.pid}}')\n"
        "time.sleep(60)",
    )
    with pytest.raises(DeadlineExceeded):
        distributed.fid_in_subprocess(features(9), features(9), limit=START)
    until = time.monotonic() + GRACE
    while (left := [pid for pid in pids.read_text().split() if lives(int(pid))]) and time.monotonic() < until:
        time.sleep(POLL)
    assert not left


@pytest.mark.integration
def test_it_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    """However that ends: its input is closed then."""
    os.mkfifo(tmp_path / frechet.REAL)  # it waits for ever to read this
    waiting = subprocess.Popen(
        [sys.executable, "-m", frechet.__name__, str(tmp_path)],
        stdin=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert waiting.stdin is not None
    with pytest.raises(subprocess.TimeoutExpired):
        waiting.wait(timeout=LIMIT)
    waiting.stdin.close()
    assert waiting.wait(timeout=GRACE) == 1
