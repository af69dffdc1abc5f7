"""Which programs and libraries took part: read from files, without importing or running any of them."""

from __future__ import annotations

import contextlib
import platform
import re
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

LIBRARIES = (
    "torch", "torchvision", "accelerate", "transformers", "diffusers", "safetensors", "huggingface-hub", "bitsandbytes",
    "xformers", "triton", "numpy", "prodigyopt", "lion-pytorch", "schedulefree", "opencv-python", "pillow", "toml",
    "tensorboard", "wandb", "deepspeed", "nvidia-nccl-cu12", "nvidia-cudnn-cu12", "nvidia-cublas-cu12",
)  # fmt: skip
UNKNOWN = "unknown"
_DRIVER = Path("/proc/driver/nvidia")
_RELEASE = Path("/etc/os-release")
_FOLDERS = ("lib/python3*/site-packages", "lib64/python3*/site-packages", "Lib/site-packages")
_SYSTEM = ("lib/python3/dist-packages", "local/lib/python3*/dist-packages")


def of_trainer(interpreter: Path) -> dict[str, str]:
    """Return the versions in the environment of a trainer: Python's, and those of the libraries that matter."""
    home = _home(interpreter)
    found = {"python": _python(home)}
    places = [str(path) for path in _packages(home)]
    for library in LIBRARIES:
        found[library] = _version(library, places)
    return {name: version for name, version in found.items() if version or name in ("python", *LIBRARIES[:6])}


def of_library(library: str, interpreter: Path) -> str:
    """Return the version of one library in the environment of an interpreter; empty when it is not known."""
    return _version(library, [str(path) for path in _packages(_home(interpreter))])


def _home(interpreter: Path) -> Path:
    return interpreter.parent.parent if interpreter.parent.name in ("bin", "Scripts") else interpreter.parent


def _packages(home: Path) -> Iterator[Path]:
    for pattern in (*_FOLDERS, *_SYSTEM):
        with contextlib.suppress(OSError):
            yield from sorted(home.glob(pattern))
    below = _below(home)
    if below is not None:
        yield from _packages(below)


def _below(home: Path) -> Path | None:
    """Return the environment that a virtual one sees too, when it was made so."""
    with contextlib.suppress(OSError):
        said = dict(
            line.partition("=")[::2] for line in (home / "pyvenv.cfg").read_text("utf-8", "replace").splitlines()
        )
        said = {name.strip(): value.strip() for name, value in said.items()}
        if said.get("include-system-site-packages", "").lower() == "true" and said.get("home"):
            base = Path(said["home"])
            return base.parent if base.name in ("bin", "Scripts") else base
    return None


def _version(library: str, places: list[str]) -> str:
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        for one in metadata.distributions(name=library, path=places):
            return str(one.version)
    return ""


def _python(home: Path) -> str:
    """Return the version of the Python of an environment: a venv writes it down, a folder of packages shows it."""
    with contextlib.suppress(OSError):
        text = (home / "pyvenv.cfg").read_text("utf-8", "replace")
        if found := re.search(r"^version(?:_info)?\s*=\s*(\d[\w.]*)", text, re.MULTILINE):
            return found[1]
    folders = [match[1] for path in _packages(home) if (match := re.search(r"python(3\.\d+)", str(path)))]
    return folders[0] if folders else ""


def of_machine() -> dict[str, str]:
    """Return what the machine is: system, processor, driver, cards; no name of it and none of its user."""
    return {
        "system": platform.system(),
        "release": platform.release(),
        "distribution": _distribution() or UNKNOWN,
        "machine": platform.machine(),
        "fluxguard's python": platform.python_version(),
        "nvidia driver": _driver() or UNKNOWN,
        "cards": ", ".join(_cards()) or UNKNOWN,
    }


def _distribution() -> str:
    with contextlib.suppress(OSError):
        found = re.search(r'^PRETTY_NAME="?([^"\n]*)', _RELEASE.read_text("utf-8", "replace"), re.MULTILINE)
        return found[1] if found else ""
    return ""


def _driver() -> str:
    with contextlib.suppress(OSError):
        found = re.search(r"\s(\d{3}\.\d[\d.]*)\s", (_DRIVER / "version").read_text("utf-8", "replace"))
        return found[1] if found else ""
    return ""


def _cards() -> Iterator[str]:
    with contextlib.suppress(OSError):
        for path in sorted((_DRIVER / "gpus").glob("*/information")):
            if found := re.search(r"Model:\s*(.+)", path.read_text("utf-8", "replace")):
                yield found[1].strip()
