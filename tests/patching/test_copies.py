"""Which checkout a supervised run trains in."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from fluxguard.errors import RuleMissed
from fluxguard.patching import apply, copies, hardened_copy, hardening, is_hardened, to_train_in

ROOT = Path(__file__).resolve().parents[2]
MINIATURE = ROOT / "fluxguard" / "demo"


@pytest.fixture
def miniature(tmp_path: Path) -> Path:
    """A checkout that every core rule knows."""
    return Path(
        shutil.copytree(MINIATURE, tmp_path / "home" / "sd-scripts", ignore=shutil.ignore_patterns("__pycache__"))
    )


@pytest.fixture
def stranger(tmp_path: Path) -> Path:
    """A checkout of a shape that no rule knows."""
    checkout = tmp_path / "home" / "sd-scripts"
    checkout.mkdir(parents=True)
    (checkout / "flux_train_network.py").write_text("print('I train in my own way')\n")
    return checkout


def test_a_hardened_checkout_trains_itself(miniature: Path) -> None:
    apply(miniature)
    assert to_train_in(miniature) == copies.Chosen(checkout=miniature)


def test_any_other_is_trained_in_a_hardened_copy_and_stays_as_it_was(miniature: Path) -> None:
    before = {path: path.read_bytes() for path in miniature.rglob("*") if path.is_file()}
    chosen = to_train_in(miniature)
    assert is_hardened(chosen.checkout)
    assert chosen.said == (f"training in a hardened copy: {chosen.checkout}",)
    assert {path: path.read_bytes() for path in miniature.rglob("*") if path.is_file()} == before


def test_a_run_keeps_its_copy_although_the_checkout_has_changed(miniature: Path) -> None:
    used = to_train_in(miniature).checkout
    (miniature / "library" / "losses.py").write_text("# pulled meanwhile\n")
    assert to_train_in(miniature, used).checkout == used
    assert to_train_in(miniature).checkout != used


def test_a_copy_of_another_checkout_is_not_used(miniature: Path, tmp_path: Path) -> None:
    other = Path(shutil.copytree(miniature, tmp_path / "other" / "sd-scripts"))
    used = to_train_in(other).checkout
    assert to_train_in(miniature, used).checkout.parent == miniature.parent


def test_a_stranger_is_trained_as_it_is_and_that_is_said(stranger: Path) -> None:
    chosen = to_train_in(stranger)
    assert chosen.checkout == stranger
    assert "exact-resume" in chosen.said[0]
    assert list(stranger.parent.iterdir()) == [stranger]
    with pytest.raises(RuleMissed):
        hardened_copy(stranger, partial=True)


def test_a_checkout_without_the_core_rules_is_not_taken_for_hardened(stranger: Path) -> None:
    apply(stranger, partial=True)
    assert not is_hardened(stranger)


def test_a_copy_that_cannot_be_written_does_not_keep_a_training_from_starting(
    miniature: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(copies, "harden_copy", full)
    chosen = to_train_in(miniature)
    assert chosen.checkout == miniature
    assert "No space left" in chosen.said[0]


def test_data_in_the_checkout_makes_no_other_copy_and_stays_out_of_it(miniature: Path) -> None:
    """Pictures, states, logs and captions change all the time, and are large."""
    first = to_train_in(miniature).checkout
    for name in ("train_images/a.png", "train_images/a.txt", "out/x-state/optimizer.bin", "run.log", "cache/blob.bin"):
        (miniature / name).parent.mkdir(parents=True, exist_ok=True)
        (miniature / name).write_bytes(b"data")
    if hasattr(os, "mkfifo"):
        os.mkfifo(miniature / "pipe")
    assert to_train_in(miniature).checkout == first
    shutil.rmtree(first)
    again = to_train_in(miniature).checkout
    assert not {path.name for path in again.rglob("*")} & {"a.png", "optimizer.bin", "run.log", "blob.bin", "pipe"}


def test_a_run_keeps_its_copy_when_fluxguard_is_upgraded(miniature: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Newer rules are for the next run: this one goes on with the code that it began with."""
    used = to_train_in(miniature).checkout
    for module in (hardening, copies):
        monkeypatch.setattr(module, "our_digest", lambda: "newer")
    assert not is_hardened(used)
    assert to_train_in(miniature, used).checkout == used
