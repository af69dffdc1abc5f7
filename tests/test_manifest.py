"""Laws of the manifest."""

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
