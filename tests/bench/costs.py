"""What one call of the guard costs in a supervised trainer, in microseconds. Run as a program: it becomes a trainer."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np

import fluxguard
from fluxguard.guard import pulse
from tests.bench.measure import Figures, median_us, paired_us, tell

CALLS = 2000
READS = 40
LATENT = (16, 128, 128)
"""What a latent cache holds for one picture of 1024 x 1024."""


def scope() -> None:
    """Enter and leave a scope that raises."""
    with fluxguard.fail_after(60, "a step"):
        pass


def ending_scope() -> None:
    """Enter and leave a scope that ends the process."""
    with fluxguard.exit_after(60, "a step"):
        pass


def phase() -> None:
    """Enter and leave a phase."""
    with fluxguard.phase("saving"):
        pass


def load(path: str) -> Any:
    """Read a cache file as the trainer does."""
    with np.load(path) as arrays:
        return {name: arrays[name] for name in arrays}


def elsewhere(measure: Callable[[], float]) -> float:
    """Return what `measure` returns on another thread than the main one."""
    results: list[float] = []
    thread = threading.Thread(target=lambda: results.append(measure()))
    thread.start()
    thread.join()
    return results[0]


def main() -> None:
    """Measure and print."""
    fluxguard.train_begins()
    heart = pulse.heart()
    assert heart is not None, "it must be run as a supervisor runs a trainer"
    done: Future[int] = Future()
    done.set_result(1)
    guarded = fluxguard.reads(load)
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "picture.npz")
        np.savez(path, latents=np.zeros(LATENT, np.float32), original_size=np.array([1024, 1024]))

        def read() -> float:
            return paired_us(lambda: load(path), lambda: guarded(path), READS)

        figures: Figures = {
            "beat": median_us(heart.beat, CALLS),
            "step": median_us(lambda: fluxguard.step(1, total=2, epoch=1, loss=0.1), CALLS),
            "phase": median_us(phase, CALLS),
            "fail_after": median_us(scope, CALLS),
            "exit_after": median_us(ending_scope, CALLS),
            "result": median_us(lambda: fluxguard.result(done), CALLS),
            "plain result": median_us(lambda: done.result(), CALLS),
            "read": read(),
            "read elsewhere": elsewhere(read),
        }
    tell(figures)


if __name__ == "__main__":
    main()
