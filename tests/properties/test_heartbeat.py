"""Properties of the heartbeat's record."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluxguard import heartbeat
from fluxguard.heartbeat import Heart

UINT32 = st.integers(min_value=0, max_value=2**32 - 1)
UINT64 = st.integers(min_value=0, max_value=2**64 - 1)
MOMENTS = st.floats(min_value=0, max_value=1e12)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("beats") / "beat.0"


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A record as it is written."""
    path = tmp_path_factory.mktemp("beats") / "beat.0"
    heart = Heart(path, rank=3, attempt=bytes(range(16)))
    heart.wait = b"block swap"
    heart.beat()
    return path.read_bytes()


@given(record=st.binary(max_size=2 * heartbeat.SIZE) | st.binary(max_size=400).map(lambda more: b"FGHB\3\0" + more))
def test_arbitrary_bytes_are_no_beat(path: Path, record: bytes) -> None:
    """And no error."""
    assert heartbeat.unpack(record) is None
    path.write_bytes(record)
    assert heartbeat.read(path) is None


@given(data=st.data())
def test_a_record_with_any_byte_flipped_is_no_beat(good: bytes, data: st.DataObject) -> None:
    """However it is flipped."""
    place = data.draw(st.integers(min_value=0, max_value=heartbeat.SIZE - 1))
    flipped = bytearray(good)
    flipped[place] ^= data.draw(st.integers(min_value=1, max_value=255))
    assert heartbeat.unpack(bytes(flipped)) is None


@given(length=st.integers(min_value=0, max_value=heartbeat.SIZE - 1))
def test_a_record_that_is_cut_short_is_no_beat(good: bytes, length: int) -> None:
    """Wherever."""
    assert heartbeat.unpack(good[:length]) is None


@given(
    counts=st.fixed_dictionaries(
        dict.fromkeys(("step", "total", "epoch", "batch", "retries", "ooms", "unstepped", "unsampled"), UINT32)
    ),
    done=st.fixed_dictionaries({"done": UINT64, "of": UINT64}),
    seconds=st.fixed_dictionaries(
        dict.fromkeys(("phase_at", "deadline", "longest_swap", "longest_read", "longest_barrier"), MOMENTS)
    ),
    loss=st.floats(),
    phase=st.text(max_size=40),
    wait=st.text(max_size=80),
)
def test_what_is_written_is_read(
    path: Path,
    counts: dict[str, int],
    done: dict[str, int],
    seconds: dict[str, float],
    loss: float,
    phase: str,
    wait: str,
) -> None:
    """Numbers as they are; of words what there is room for."""
    heart = Heart(path)
    for name, value in {**counts, **done, **seconds, "loss": loss}.items():
        setattr(heart, name, value)
    heart.phase, heart.wait = phase.encode(), wait.encode()
    heart.beat()
    beat = heartbeat.read(path)
    assert beat is not None
    assert {name: getattr(beat, name) for name in (*counts, *done, *seconds)} == {**counts, **done, **seconds}
    assert beat.loss == loss or (math.isnan(beat.loss) and math.isnan(loss))
    assert beat.phase == phase.encode()[:16].rstrip(b"\0").decode("utf-8", "replace")
    assert beat.wait == wait.encode()[:32].rstrip(b"\0").decode("utf-8", "replace")
