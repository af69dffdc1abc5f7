"""Laws of the manifest."""

import json
import os
from pathlib import Path

import pytest

from fluxguard import manifest
from fluxguard.errors import StateUnusable
from fluxguard.manifest import Manifest


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """A state of two files with its manifest."""
    (tmp_path / "model.safetensors").write_bytes(b"weights" * 100)
    (tmp_path / "optimizer.bin").write_bytes(b"moments" * 100)
    made = Manifest(
        true_step=12, epoch=2, batch=2, world_size=1, batches_per_epoch=10, files=manifest.of_files(tmp_path)
    )
    manifest.write(tmp_path, made)
    return tmp_path


def test_a_whole_state_verifies(state: Path) -> None:
    """The manifest comes back as it was written."""
    assert manifest.verify(state).true_step == 12


def damage_flip(state: Path) -> None:
    """One bit, in the middle."""
    data = bytearray((state / "optimizer.bin").read_bytes())
    data[300] ^= 1
    (state / "optimizer.bin").write_bytes(data)


def damage_cut(state: Path) -> None:
    """The second half is missing."""
    data = (state / "model.safetensors").read_bytes()
    (state / "model.safetensors").write_bytes(data[: len(data) // 2])


def damage_missing(state: Path) -> None:
    """A file is gone."""
    (state / "optimizer.bin").unlink()


def damage_manifest(state: Path) -> None:
    """The manifest itself is cut short."""
    path = state / manifest.NAME
    path.write_bytes(path.read_bytes()[:50])


def damage_no_manifest(state: Path) -> None:
    """There is no manifest."""
    (state / manifest.NAME).unlink()


@pytest.mark.parametrize("damage", [damage_flip, damage_cut, damage_missing, damage_manifest, damage_no_manifest])
def test_a_damaged_state_is_unusable(state: Path, damage: object) -> None:
    """Every kind of damage is found, and the error names the state."""
    assert callable(damage)
    damage(state)
    with pytest.raises(StateUnusable) as caught:
        manifest.verify(state)
    assert caught.value.path == str(state)


def test_a_manifest_of_the_version_before_is_still_read(state: Path) -> None:
    """It had no digest of its own, and said neither whose state it is nor who asked for it."""
    path = state / manifest.NAME
    told = json.loads(path.read_bytes())
    older = {name: value for name, value in told.items() if name not in ("digest", "attempt", "asked")}
    path.write_text(json.dumps({**older, "version": 1}))
    assert manifest.verify(state).attempt == ""


def test_every_flipped_bit_of_a_manifest_is_found(state: Path) -> None:
    """Also one that makes a step another step."""
    path = state / manifest.NAME
    whole = path.read_bytes()
    for at in range(len(whole)):
        for bit in range(8):
            path.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << bit]) + whole[at + 1 :])
            with pytest.raises(StateUnusable):
                manifest.read(state)


def test_a_pipe_in_place_of_a_file_blocks_nobody(state: Path) -> None:
    """It is refused without being opened."""
    (state / "optimizer.bin").unlink()
    os.mkfifo(state / "optimizer.bin")
    with pytest.raises(StateUnusable, match="no plain file"):
        manifest.verify(state)


def test_a_file_is_shown_in_order_and_whole(state: Path) -> None:
    """Who looks at it sees each byte once, whatever the pieces are."""
    seen = bytearray()

    def look(offset: int, data: memoryview) -> None:
        assert offset == len(seen)
        seen.extend(data)

    (state / "large.bin").write_bytes(bytes(range(256)) * 5000)
    size, _ = manifest.digest(state, "large.bin", look)
    assert (size, bytes(seen)) == (1_280_000, bytes(range(256)) * 5000)
