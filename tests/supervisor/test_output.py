"""Laws of reading the trainer's output."""

from __future__ import annotations

from pathlib import Path

import pytest

from fluxguard.supervisor.sensing import output
from fluxguard.supervisor.sensing.output import Shown, Tail, bound, shown_after


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


@pytest.mark.parametrize(
    ("line", "bar", "total", "loss"),
    [
        ("my_lora:  12%|#2  | 240/2000 [10:00<1:10:00, 2.39s/it, lr: 1.0e-04 loss: 3.5e-01]", 240, 2000, 0.35),
        ("Steps:  12%|#| 12/100 [00:10<01:00, 1.2it/s, loss=0.1, lr=0.0001]", 12, 100, 0.1),
        ("Epoch 1/10, Steps:  12%|#| 12/100 [00:10<01:00, lr=0.1, step_loss=0.3]", 12, 100, 0.3),
        ("12/100 [00:10<01:00, loss=0.25]", 12, 100, 0.25),
        ("step 12/100", 12, 100, None),
        ("[INFO] Step: 12 of 100 - loss: 0.5", 12, 100, 0.5),
        ("{'step': 12, 'loss': 0.5, 'epoch': 1.2}", 12, 0, 0.5),
        ('{"global_step": 12, "train_loss": NaN}', 12, 0, float("nan")),
        ("[2024-01-01 10:00:00] [logging.py] step=12, skipped=0, lr=[0.1]", 12, 0, None),
        ("iter 12/100: avg_loss = 1e-3", 12, 100, 0.001),
    ],
)
def test_bars_and_lines_of_other_trainers_are_understood(line: str, bar: int, total: int, loss: float | None) -> None:
    """What most trainers share: a bar in the manner of tqdm, or a line with a step and a loss."""
    shown = shown_after(Shown(), [line])
    assert (shown.bar, shown.total, shown.phase) == (bar, total, "step")
    assert shown.loss == loss or (shown.loss != shown.loss and loss != loss)
    assert shown.planned == 0  # a guess is nothing to verify an end by


@pytest.mark.parametrize("line", ["epoch 3/10", "Epoch [3/10] loss: 0.5", "epoch: 3 of 10"])
def test_epochs_of_other_trainers_are_progress(line: str) -> None:
    """However they are written."""
    shown = shown_after(Shown(), [line])
    assert (shown.epoch, shown.epochs) == (3, 10)


@pytest.mark.parametrize(
    "line",
    [
        "Fetching 3 files:  33%|###  | 1/3 [00:10<00:20, 10s/it]",
        "initial_step: 500",
        "resume at step 500",
        "Step size 1024",
        "the loss is weighted",
        "version 1.2/3",
        "step 1.5",
    ],
)
def test_other_numbers_are_no_steps(line: str) -> None:
    """A bar of files, a setting, a sentence."""
    shown = shown_after(Shown(), [line])
    assert (shown.bar, shown.loss) == (0, None)


def test_the_bar_of_sd_scripts_alone_counts_its_steps() -> None:
    """Once it was seen; what came before it was a guess."""
    lines = [
        "step 7/9",
        "steps:   0%|          | 0/40 [00:00<?, ?it/s]",
        "steps:  25%|##5       | 10/40 [00:01<01:05,  5.10it/s, avr_loss=2.76]",
        "validation steps:  20%|##  | 1/5 [00:01<00:05, val_loss=9.0]",
        "step 99/100 loss=3",
        "Steps:  12%|#| 12/100 [00:10<01:00, 1.2it/s, loss=0.1]",
    ]
    shown = shown_after(Shown(), lines)
    assert (shown.bar, shown.loss, shown.known) == (10, 2.76, True)


def test_states_of_one_bar_in_a_row_read_as_the_last() -> None:
    """Nothing is lost by it."""
    bars = [f"steps:  25%|##5       | {step}/40 [00:01<01:05,  5.10it/s, avr_loss={step}.5]" for step in range(9)]
    assert shown_after(Shown(), bars) == shown_after(shown_after(Shown(), bars[:4]), bars[4:])


def test_failures_that_come_again_are_counted() -> None:
    """Numbers and places apart; of a great many kinds those that came often are kept."""
    lines = [f"[{n}] ERROR: connection 0x{n:x} refused after {n}.5 s" for n in range(30)]
    lines += [f"error of kind {chr(97 + n % 26)}{chr(97 + n // 26)}" for n in range(200)]
    errors = shown_after(Shown(), lines).errors
    assert errors["[#] ERROR: connection # refused after # s"] == 30
    assert len(errors) <= 16


def test_a_line_of_progress_is_no_failure() -> None:
    """Whatever its figures are called."""
    lines = [f"step {n}/99 loss=0.5 reconstruction_error=0.1 failed=0" for n in range(30)]
    assert shown_after(Shown(), lines).errors == {}


def test_the_device_is_what_the_trainer_says() -> None:
    """sd-scripts says it once."""
    assert shown_after(Shown(), ["accelerator device: cpu"]).device == "cpu"


def reads(tail: Tail) -> list[str]:
    """Return all that a tail reads of what is there."""
    found: list[str] = []
    before = -1
    while tail.position != before:
        before = tail.position
        found += tail.read()
    return found


def test_of_a_very_long_log_its_beginning_and_its_end_are_read(tmp_path: Path) -> None:
    """What lies between is passed over, and counted."""
    log = tmp_path / "train.log"
    log.write_bytes(b"first\n" + b"between\n" * 1_000_000 + b"last\n")
    tail = Tail(log, 0)
    lines = reads(tail)
    assert (lines[0], lines[-1]) == ("first", "last")
    assert sum(map(len, lines)) < 1 << 19
    assert tail.skipped > 7 << 20
    assert tail.position == log.stat().st_size


def test_who_is_far_behind_a_flood_reads_its_end(tmp_path: Path) -> None:
    """One read is enough to come back to the present."""
    log = tmp_path / "train.log"
    log.write_bytes(b"first\n")
    tail = Tail(log, 0)
    assert tail.read() == ["first"]
    with log.open("ab") as file:
        file.write(b"flood\n" * 1_000_000 + b"now\n")
    assert tail.read()[-1] == "now"
    assert tail.skipped > 5 << 20


def test_a_line_without_an_end_is_bounded(tmp_path: Path) -> None:
    """Gigabytes of dots are no line."""
    log = tmp_path / "train.log"
    log.write_bytes(b"." * (3 << 20))
    assert max(map(len, reads(Tail(log, 0)))) <= 4000


def test_of_a_log_that_grew_too_fast_its_end_is_kept(tmp_path: Path) -> None:
    """Copying gigabytes would stall the looking."""
    log = tmp_path / "train.log"
    log.write_bytes(b"x" * 1000 + b"end")
    assert bound(log, 10)
    assert (tmp_path / "train.log.1").read_bytes() == b"x" * 7 + b"end"
    assert log.stat().st_size == 0


def test_of_a_flood_little_is_kept(tmp_path: Path) -> None:
    """Copying it all, again and again, would cost more than it tells."""
    log = tmp_path / "train.log"
    log.write_bytes(b"x" * 640 + b"end")
    assert bound(log, 320, flood=True)
    assert (tmp_path / "train.log.1").read_bytes() == b"x" * 7 + b"end"


def test_who_writes_faster_than_we_copy_is_not_followed(tmp_path: Path) -> None:
    """The copy ends where the log ended when it was begun."""
    log, old = tmp_path / "train.log", tmp_path / "train.log.1"
    log.write_bytes(b"x" * 100 + b"y" * 1000)
    output._copy_end(log, old, size=100, kept=60)
    assert old.read_bytes() == b"x" * 60


def test_a_warning_is_no_error_unless_something_is_tried_again() -> None:
    """Upstream warns of many things that cost nothing, at every start."""
    harmless = "2026-02-01 17:36:18 WARNING  Failed to get git commit: not a repository    train_util.py:99"
    assert shown_after(Shown(), [harmless] * 20).errors == {}
    assert shown_after(Shown(), ["WARNING Retrying: connection refused"] * 20).errors
    assert shown_after(Shown(), ["ERROR Failed to read a file"] * 20).errors


@pytest.mark.parametrize("before", [True, False])
def test_a_bar_without_a_name_gives_the_total_of_the_steps_beside_it(before: bool) -> None:
    """A trainer that is not known may say its step in one place and how many there are in another."""
    bar, step = " 40%|####      | 40/100 [00:40<01:00,  1.00it/s]", "step 40 loss=0.1"
    shown = shown_after(Shown(), [bar, step] if before else [step, bar])
    assert (shown.bar, shown.total) == (40, 100)
    other = shown_after(Shown(), [step, " 40%|####      | 3/7 [00:40<01:00,  1.00it/s]"])
    assert (other.bar, other.total) == (40, 0)
