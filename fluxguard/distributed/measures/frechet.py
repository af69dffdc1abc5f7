"""The process in which one FID is computed: `python -m` with the name of this module and a folder. Needs numpy only.

The folder holds real.npy and fake.npy, features of shape (n, d); it writes result.json there, with the distance or the
error in words. It ends when its standard input is closed, which the end of the one that started it does.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path
from typing import Any

REAL, FAKE, RESULT = "real.npy", "fake.npy", "result.json"
_ROWS = 4096  # that are made double at a time: 64 MiB of 2048 features


def distance(real: Any, fake: Any) -> float:
    """Return the Frechet distance of the normal distributions of two arrays of features, (n, d) and (m, d).

    |mean - mean'|^2 + trace(C + C' - 2 sqrt(C C')), with the covariances of n - 1. The root needs no general matrix
    root: C C' has the eigenvalues of the symmetric A C' A^T with A^T A = C, and none is negative. Raises ValueError
    when a value is NaN or infinite.
    """
    import numpy as np

    mean, covariance = _moments(real, "real")
    other_mean, other = _moments(fake, "fake")
    values, vectors = np.linalg.eigh(covariance)
    root = np.sqrt(values.clip(min=0))[:, None] * vectors.T
    shared = np.sqrt(np.linalg.eigvalsh(root @ other @ root.T).clip(min=0)).sum()
    apart = mean - other_mean
    return float(max(0.0, apart @ apart + np.trace(covariance) + np.trace(other) - 2 * shared))


def _moments(features: Any, name: str) -> tuple[Any, Any]:
    """Return mean and covariance in double precision; two passes, so that a large mean costs no digits."""
    import numpy as np

    count, width = features.shape
    total = np.zeros(width)
    for at in range(0, count, _ROWS):
        total += features[at : at + _ROWS].sum(axis=0, dtype=np.float64)
    mean = total / count
    if not np.isfinite(mean).all():
        raise ValueError(f"the {name} features hold values that are NaN or infinite")
    squares = np.zeros((width, width))
    for at in range(0, count, _ROWS):
        apart = features[at : at + _ROWS].astype(np.float64) - mean
        squares += apart.T @ apart
    return mean, squares / (count - 1)


def main(folder: Path) -> None:
    """Compute the distance of the features in a folder and write it there, or why there is none."""
    import numpy as np

    try:
        real, fake = (np.load(folder / name, mmap_mode="r", allow_pickle=False) for name in (REAL, FAKE))
        said: dict[str, float | str] = {"distance": distance(real, fake)}
    except (ArithmeticError, MemoryError, OSError, ValueError) as error:  # numpy's LinAlgError is a ValueError
        said = {"error": f"{type(error).__name__}: {error}"}
    (folder / RESULT).write_text(json.dumps(said), encoding="utf-8")


def _ends_with_its_starter() -> None:
    os.read(0, 1)  # and not sys.stdin, whose lock the end of the interpreter would meet
    os._exit(1)


if __name__ == "__main__":
    threading.Thread(target=_ends_with_its_starter, daemon=True).start()
    main(Path(sys.argv[1]))
