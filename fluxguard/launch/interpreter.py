"""Which Python runs the trainer, and in what environment: never ours, unless the command is taken as typed."""

from __future__ import annotations

import fnmatch
import os
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from fluxguard.errors import InputError
from fluxguard.launch.trainer import is_python

_PACKAGE = Path(__file__).resolve().parents[1]
_VENVS = ("env", "venv", ".venv")
_IN_VENV = (Path("bin") / "python", Path("Scripts") / "python.exe")
_LAUNCHERS = (Path("bin") / "accelerate", Path("Scripts") / "accelerate.exe")
_ON_PATH = ("python", "python3", "python.exe")
_OURS = ("VIRTUAL_ENV", "PYTHONHOME", "CONDA_PREFIX")
_WITH_OURS = {
    "VIRTUAL_ENV": ("VIRTUAL_ENV_PROMPT",),
    "CONDA_PREFIX": ("CONDA_DEFAULT_ENV", "CONDA_PROMPT_MODIFIER", "CONDA_PYTHON_EXE"),
}
_OWN_VARIABLES = "FLUXGUARD_"
_LAUNCHER_OF_MACOS = "__PYVENV_LAUNCHER__"
_EXEC = "'''exec' "
_LONGEST_HEAD = 1 << 10
_READABLE = {"PYTHONUNBUFFERED": "1", "PYTHONIOENCODING": "utf-8"}
_RECORDED = {
    "PATH",
    "LANG",
    "LD_LIBRARY_PATH",
    "LIBRARY_PATH",
    "PYTHONPATH",
    "PYTHONHASHSEED",
    "PYTHONIOENCODING",
    "PYTHONUNBUFFERED",
    "VIRTUAL_ENV",
    "CONDA_PREFIX",
    "HF_HOME",
    "HF_HUB_OFFLINE",
    "HF_HUB_CACHE",
    "TRANSFORMERS_OFFLINE",
    "TOKENIZERS_PARALLELISM",
    "XDG_CACHE_HOME",
    "TRITON_CACHE_DIR",
    "WANDB_MODE",
    "LOG_LEVEL",
    "TMPDIR",
}
_RECORDED_PATTERNS = (
    "LC_*",
    "CUDA_*",
    "CUBLAS_*",
    "CUDNN_*",
    "NVIDIA_*",
    "NCCL_*",
    "GLOO_*",
    "TORCH_*",
    "TORCHINDUCTOR_*",
    "TORCHDYNAMO_*",
    "PYTORCH_*",
    "ACCELERATE_*",
    "OMP_*",
    "MKL_*",
    "OPENBLAS_*",
    "HIP_*",
    "ROCR_*",
    "HSA_*",
)
_SECRET = ("KEY", "TOKEN", "SECRET", "PASSWORD", "PASSWD", "CREDENTIAL")


def own_prefix() -> Path | None:
    """Return the folder of the environment that fluxguard runs in, or None when that is the system's own Python."""
    prefix = Path(sys.prefix)
    return prefix if sys.prefix != sys.base_prefix or (prefix / "conda-meta").is_dir() else None


def active(env: Mapping[str, str], own_prefix: Path | None) -> Path | None:
    """Return the environment that is active here, when a trainer can be launched from it and it is not ours.

    That is what a script that just says `accelerate launch` uses. conda's `base` is active without anybody's doing.
    """
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        if name == "CONDA_PREFIX" and env.get("CONDA_DEFAULT_ENV", "base") == "base":
            continue
        folder = Path(env[name]) if env.get(name) else None
        if folder and not _inside(folder, own_prefix) and _first(folder / place for place in _LAUNCHERS):
            return folder
    return None


def choose(
    checkout: Path,
    python: str | None,
    activate: Path | None,
    path_entries: Sequence[str],
    own_prefix: Path | None,
    active: Path | None = None,
) -> Path:
    """Return the interpreter of a trainer; links are not followed, because a venv is one.

    `python` (a program, a venv's folder, or a name on the path) comes first, then the venv that the script activates,
    then the one that is `active` already, then `env`, `venv` and `.venv` in the checkout and in its parent, then the
    path. Only what the user named may be our own environment. Raises InputError when there is none, or not what was
    named.
    """
    entries = [Path(entry) for entry in path_entries if entry and not _inside(entry, own_prefix)]
    if python is not None:
        return _named(python, entries)
    if activate is not None:
        found = _first(activate / place for place in _IN_VENV)
        if found is None:
            raise InputError(activate, "is activated by the train script, but holds no Python")
        return found
    if active is not None and (found := _first(active / place for place in _IN_VENV)):
        return found
    venvs = [folder / name for folder in (checkout, checkout.parent) for name in _VENVS]
    found = _first(venv / place for venv in venvs if not _inside(venv, own_prefix) for place in _IN_VENV)
    found = found or _first(entry / name for entry in entries for name in _ON_PATH)
    if found is None:
        looked = f"{', '.join(_VENVS)} in {checkout} and {checkout.parent}, then PATH"
        raise InputError("--python", f"must be given: no Python for the trainer was found (looked for {looked})")
    return found


def typed(program: str, cwd: Path, path: str | None) -> Path | None:
    """Return the program that a shell in `cwd` runs for a word; None when there is none. Links are not followed."""
    found = shutil.which(str(cwd / program) if os.path.dirname(program) else program, path=path)
    return Path(os.path.abspath(found)) if found else None


def of_script(program: Path) -> Path | None:
    """Return the Python that a script such as `torchrun` names in its first line; None where it names none.

    pip writes `/bin/sh` there, and the Python behind it, where the name is too long for the system.
    """
    try:
        with program.open("rb") as file:
            first, second, *_ = [*file.read(_LONGEST_HEAD).decode("utf-8", "replace").split("\n"), "", ""]
    except OSError:
        return None
    if not first.startswith("#!"):
        return None
    named = first[2:].strip().strip('"')
    if named == "/bin/sh" and second.startswith(_EXEC):
        named = second.removeprefix(_EXEC).split('"$0"')[0].strip().strip('"')
    python = Path(named)
    return _first([python]) if python.is_absolute() and is_python(python.name) else None


def _named(python: str, entries: Sequence[Path]) -> Path:
    given = Path(python).expanduser()
    places = [given, *(given / place for place in _IN_VENV)]
    if given.name == python:
        places += [entry / name for entry in entries for name in (python, f"{python}.exe")]
    found = _first(places)
    if found is None:
        raise InputError("--python", f"{python} is no program, no virtual environment and no name on the PATH")
    return found


def _first(places: Iterator[Path] | Sequence[Path]) -> Path | None:
    return next((place.absolute() for place in places if os.path.isfile(place) and os.access(place, os.X_OK)), None)


def _inside(path: str | Path, folder: Path | None) -> bool:
    if folder is None or not str(path):
        return False
    # Both as written and with links followed: a prefix reached through a link is the same prefix.
    return Path(os.path.abspath(path)).is_relative_to(folder) or Path(path).resolve().is_relative_to(folder.resolve())


def environment(
    own: Mapping[str, str],
    exports: Mapping[str, str],
    own_prefix: Path | None,
    extra: Mapping[str, str],
    interpreter: Path | None = None,
) -> dict[str, str]:
    """Return the environment of a trainer: the supervisor's without a trace of ours, and what the script exports.

    PATH, PYTHONPATH, VIRTUAL_ENV, PYTHONHOME and CONDA_PREFIX lose what belongs to `own_prefix` or to this package, the
    user's own entries stay. `extra` is set last. The folder of `interpreter` comes first on the PATH, unless it is
    there already.
    """
    env = {**own, **exports}
    for name in [name for name in env if name.startswith(_OWN_VARIABLES)]:
        del env[name]
    env.pop(_LAUNCHER_OF_MACOS, None)
    for name in _OURS:
        if _inside(env.get(name, ""), own_prefix):
            for leak in (name, *_WITH_OURS.get(name, ())):
                env.pop(leak, None)
    path = [entry for entry in _entries(env, "PATH") if not _inside(entry, own_prefix)]
    if interpreter is not None and str(interpreter.parent) not in path:
        path.insert(0, str(interpreter.parent))
    _put(env, "PATH", path)
    imports = [entry for entry in _entries(env, "PYTHONPATH") if not (_inside(entry, own_prefix) or _is_package(entry))]
    _put(env, "PYTHONPATH", imports)
    return {**env, **_READABLE, **extra}


def as_typed(own: Mapping[str, str], exports: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a command that is taken as it is typed: the supervisor's, without its own variables."""
    env = {name: value for name, value in {**own, **exports}.items() if not name.startswith(_OWN_VARIABLES)}
    env.pop(_LAUNCHER_OF_MACOS, None)
    return {**env, **_READABLE}


def _is_package(entry: str) -> bool:
    return bool(entry) and (_inside(entry, _PACKAGE) or Path(entry).resolve() == _PACKAGE.parent)


def _entries(env: Mapping[str, str], name: str) -> list[str]:
    return env[name].split(os.pathsep) if env.get(name) else []


def _put(env: dict[str, str], name: str, entries: Sequence[str]) -> None:
    if entries:
        env[name] = os.pathsep.join(entries)
    else:
        env.pop(name, None)


def is_secret(name: str) -> bool:
    """Whether the name of a variable says that its value must not be written down."""
    return name not in _RECORDED and any(part in name.upper() for part in _SECRET)


def recorded(env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that may stand in job.json with their values: those that matter and are no secret."""
    return {
        name: value
        for name, value in sorted(env.items())
        if not is_secret(name)
        and (name in _RECORDED or any(fnmatch.fnmatchcase(name, pattern) for pattern in _RECORDED_PATTERNS))
    }


def references(env: Mapping[str, str]) -> tuple[str, ...]:
    """Return the names of the secrets that are set; their values stay where they are."""
    return tuple(sorted(name for name in env if is_secret(name)))
