"""One FID beside the training: in a process of its own, which ends within its limit and takes its memory with it."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from fluxguard import limits
from fluxguard.distributed.measures import frechet
from fluxguard.errors import DeadlineExceeded, InputError, SubprocessFailed
from fluxguard.guard import deadlines, kin, pulse
from fluxguard.guard.watcher import awake

_POLL = 0.05
_BEATS = 1.0  # between two signs of life for those who wait for this rank
_WORDS = "words.txt"
_LAST = 2000  # bytes of what it said
_FEWEST = 2


def fid_in_subprocess(real: Any, fake: Any, *, what: str = "fid", limit: float | None = None) -> float:
    """Return the Frechet distance between two sets of features: tensors or arrays of shape (n, d) and (m, d).

    They are what the feature network made of the real and the generated images; 2 of each at the least, better more
    than d. The distance is computed by a process of its own (numpy only, double precision, no torch, no GPU), to which
    they go as .npy files in a folder for temporary files: 8 KB for each image at d = 2048. Whatever happens in there
    costs this process neither memory nor a crash. It is killed with all that it has started when it has taken `limit`
    seconds (that of a FID when None), when an earlier deadline of this thread passes, and when this process ends.

    It is for one rank, and meets none. `decide(lambda: fid_in_subprocess(...), "fid")` gives its value to all; the
    others wait then: after `setup` or under a supervisor patiently, because this rank beats meanwhile, else for the
    limit of a barrier. Nobody waits when it is called on a thread of its own, which does not beat.

    Raises InputError for what are no two sets of features of one width, DeadlineExceeded when the limit has passed,
    SubprocessFailed when it died or could not compute: values that are NaN, no memory.
    """
    arrays = _features(what, "real", real), _features(what, "fake", fake)
    if arrays[0].shape[1] != arrays[1].shape[1]:
        raise InputError(what, f"the real features are {arrays[0].shape[1]} wide, the fake ones {arrays[1].shape[1]}")
    limit = limits.current().wait.fid if limit is None else limit
    began = awake()
    with tempfile.TemporaryDirectory(prefix="fluxguard-fid-", ignore_cleanup_errors=True) as name, _beating():
        folder = Path(name)
        _hand_over(folder, arrays)
        with _started(folder) as process:
            _until_ended(process, what, limit, began)
        return _result(folder, what, process.returncode)


def _features(what: str, name: str, features: Any) -> Any:
    """Return features as an array in the type in which they are written; on the CPU, not copied if they are there."""
    import numpy as np

    if hasattr(features, "detach"):
        tensor = features.detach().cpu()
        features = (tensor if tensor.element_size() > 2 else tensor.float()).numpy()  # numpy knows no bfloat16
    array = np.asarray(features)
    if array.ndim != 2 or array.dtype.kind not in "fiu":
        raise InputError(what, f"must be numbers of shape (n, d), not {array.dtype} of shape {array.shape}", name)
    if len(array) < _FEWEST or not array.shape[1]:
        raise InputError(what, f"needs {_FEWEST} rows at the least, not the shape {array.shape}", name)
    return array


def _hand_over(folder: Path, arrays: tuple[Any, Any]) -> None:
    import numpy as np

    for name, array in zip((frechet.REAL, frechet.FAKE), arrays, strict=True):
        np.save(folder / name, array, allow_pickle=False)


@contextlib.contextmanager
def _started(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Start the process and leave nothing of it; its input stays open as long as this process lives."""
    paths = [os.path.abspath(path) for path in sys.path]
    with open(folder / _WORDS, "wb") as words:
        process = _python(folder, {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}, words)
    try:
        yield process
    finally:
        if process.poll() is None:
            kill_rest = kin.kill_below([process.pid])
            process.kill()
            kill_rest()
        if process.stdin is not None:
            process.stdin.close()
        process.wait()


def _python(folder: Path, env: dict[str, str], words: IO[bytes]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", frechet.__name__, str(folder)],
        stdin=subprocess.PIPE,
        stdout=words,
        stderr=words,
        cwd=folder,  # the first place in which it looks for modules
        env=env,
        start_new_session=True,  # a Ctrl-C is for the training, which ends it
    )


def _until_ended(process: subprocess.Popen[bytes], what: str, limit: float | None, began: float) -> None:
    beat_at = began
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=_POLL)
            return
        now = awake()
        if limit is not None and now - began > limit:
            hint = "its process was killed, and nothing else is lost"
            raise DeadlineExceeded(f"{what!r} in a subprocess", limit, hint, "fid")
        deadlines.check()
        if now >= beat_at and _is_main_thread():
            pulse.progress(int(now - began))
            beat_at = now + _BEATS


def _result(folder: Path, what: str, code: int) -> float:
    words = ""
    with contextlib.suppress(OSError, ValueError):
        said = json.loads((folder / frechet.RESULT).read_bytes())
        if "distance" in said:
            return float(said["distance"])
        words = str(said["error"])
    if not words:
        with contextlib.suppress(OSError):
            words = (folder / _WORDS).read_bytes()[-_LAST:].decode(errors="replace").strip()
    raise SubprocessFailed(what, code, words)


@contextlib.contextmanager
def _beating() -> Iterator[None]:
    """Be in the phase of a validation, unless this is another thread than the one that trains."""
    with pulse.during("validation") if _is_main_thread() else contextlib.nullcontext():
        yield


def _is_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()
