"""Laws of reading the trainer's output."""

from __future__ import annotations

from pathlib import Path

from fluxguard.supervisor.output import Shown, Tail, bound, shown_after


def test_the_bar_gives_steps_loss_and_time() -> None:
    """The line as tqdm writes it."""
    shown = shown_after(Shown(), ["steps:  25%|##5       | 10/40 [00:01<01:05,  5.10it/s, avr_loss=2.76]"])
    assert (shown.bar, shown.loss, shown.eta, shown.phase) == (10, 2.76, 65.0, "step")


def test_totals_are_read_in_either_language() -> None:
    """Upstream's lines are bilingual; only their English beginning and their number count."""
    lines = [
        "  num batches per epoch / 1epochのバッチ数: 10",
        "  total optimization steps / 学習ステップ数: 40",
        "epoch 2/4",
    ]
    shown = shown_after(Shown(), lines)
    assert (shown.batches_per_epoch, shown.planned, shown.epoch, shown.epochs) == (10, 40, 2, 4)


def test_a_save_is_a_phase_until_the_next_step() -> None:
    """The bar that is only drawn again does not end it."""
    bar = "steps: 25%|##| 10/40 [00:01<00:05, 5it/s, avr_loss=2.7]"
    later = "steps: 25%|##| 11/40 [00:01<00:05, 5it/s, avr_loss=2.7]"
    saving = shown_after(Shown(), [bar, "saving checkpoint: /x/y.safetensors", bar])
    assert saving.phase == "saving"
    assert shown_after(saving, [later]).phase == "step"


def test_other_bars_do_not_count_steps() -> None:
    """Caching has a bar of its own: progress, not steps."""
    shown = shown_after(Shown(), ["caching latents...", " 30%|###  | 3/10 [00:01<00:02, 3.0it/s]"])
    assert (shown.bar, shown.count, shown.phase) == (0, (3, 10), "latent cache")


def test_a_nan_loss_is_read_as_one() -> None:
    """Not a number is a number worth knowing."""
    shown = shown_after(Shown(), ["steps: 1%|#| 1/40 [00:01<00:05, 5it/s, avr_loss=nan]"])
    assert shown.loss != shown.loss


def test_the_tail_splits_at_carriage_returns(tmp_path: Path) -> None:
    """A bar without a newline is seen as soon as it is whole; a torn line waits for its rest."""
    log = tmp_path / "train.log"
    log.write_bytes(b"one\nsteps: 1/2 [a]")
    tail = Tail(log, 0)
    assert tail.read() == ["one", "steps: 1/2 [a]"]
    with log.open("ab") as file:
        file.write(b"\rtorn li")
    assert tail.read() == []
    with log.open("ab") as file:
        file.write("ne \xff\n".encode("latin-1"))
    assert tail.read() == ["torn line \N{REPLACEMENT CHARACTER}"]
    assert Tail(tmp_path / "none", 0).read() == []


def test_a_log_that_was_cut_is_followed_on(tmp_path: Path) -> None:
    """Copy and truncate: nothing that comes after is missed."""
    log = tmp_path / "train.log"
    log.write_bytes(b"x" * 100 + b"\n")
    tail = Tail(log, 0)
    tail.read()
    assert bound(log, 50)
    assert (tmp_path / "train.log.1").read_bytes() == b"x" * 100 + b"\n"
    with log.open("ab") as file:
        file.write(b"after\n")
    assert tail.read() == ["after"]
    assert not bound(log, 50)
