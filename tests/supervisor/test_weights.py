"""Laws of verifying final weights."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np
import pytest

from fluxguard.supervisor.checkpoints.weights import verify


def write(path: Path, dtype: str, data: bytes, count: int) -> Path:
    """Write one tensor by hand: numpy has no type for some of them."""
    header = json.dumps({"lora": {"dtype": dtype, "shape": [count], "data_offsets": [0, len(data)]}}).encode()
    header += b" " * (-len(header) % 8)
    path.write_bytes(struct.pack("<Q", len(header)) + header + data)
    return path


def bf16(values: list[float]) -> bytes:
    """Return the upper halves of the float32 values."""
    return (np.array(values, dtype="<f4").view("<u4") >> 16).astype("<u2").tobytes()


GOOD = [0.5, -2.0, 65504.0, 0.0]
CASES = [
    ("F32", np.array(GOOD, "<f4").tobytes(), np.array([*GOOD[:3], np.inf], "<f4").tobytes()),
    ("F64", np.array(GOOD, "<f8").tobytes(), np.array([*GOOD[:3], np.nan], "<f8").tobytes()),
    ("F16", np.array(GOOD, "<f2").tobytes(), np.array([*GOOD[:3], -np.inf], "<f2").tobytes()),
    ("BF16", bf16([0.5, -2.0, 3e38, 0.0]), bf16([0.5, -2.0, 3e38, float("nan")])),
    ("BF16", bf16(GOOD), bf16([0.5, float("-inf"), 1.0, 2.0])),
    ("F8_E4M3", bytes([0x7E, 0xFE, 0x00, 0x38]), bytes([0x7E, 0xFF, 0x00, 0x38])),
    ("F8_E5M2", bytes([0x7B, 0x00, 0x01, 0x80]), bytes([0x7B, 0x7C, 0x01, 0x80])),
]


@pytest.mark.parametrize(("dtype", "good", "bad"), CASES)
def test_only_finite_values_verify(tmp_path: Path, dtype: str, good: bytes, bad: bytes) -> None:
    """In every type that a LoRA is saved in, the ones numpy does not know included."""
    assert verify(write(tmp_path / "good.safetensors", dtype, good, 4), newer_than=0).verified
    found = verify(write(tmp_path / "bad.safetensors", dtype, bad, 4), newer_than=0)
    assert not found.verified
    assert "not finite" in found.reason


def test_weights_from_before_the_run_do_not_count(tmp_path: Path) -> None:
    """An old file of the same name is no success."""
    path = write(tmp_path / "old.safetensors", "F32", bytes(16), 4)
    found = verify(path, newer_than=path.stat().st_mtime + 10)
    assert not found.verified
    assert "older than the run" in found.reason


@pytest.mark.parametrize("damage", ["missing", "empty", "cut", "garbage", "no tensors"])
def test_what_does_not_parse_does_not_verify(tmp_path: Path, damage: str) -> None:
    """Whatever is wrong is said, and nothing is raised."""
    path = write(tmp_path / "x.safetensors", "F32", bytes(400), 100)
    data = path.read_bytes()
    if damage == "missing":
        path.unlink()
    elif damage == "empty":
        path.write_bytes(b"")
    elif damage == "cut":
        path.write_bytes(data[:-50])
    elif damage == "garbage":
        path.write_bytes(b"\xff" * 300)
    else:
        path.write_bytes(struct.pack("<Q", 8) + b"{}      ")
    found = verify(path, newer_than=0)
    assert not found.verified
    assert "x.safetensors" in found.reason
