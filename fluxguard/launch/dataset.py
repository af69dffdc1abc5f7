"""Looking at a dataset description before hours are spent on it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fluxguard.errors import InputError
from fluxguard.launch.flags import read_json, read_toml

_SUFFIXES = ("png", "jpg", "jpeg", "webp", "bmp", "jxl", "avif")
# As the trainer looks for them: all small or all capital letters, never mixed.
IMAGE_SUFFIXES = frozenset(f".{spelling}" for suffix in _SUFFIXES for spelling in (suffix, suffix.upper()))


def check(dataset_config: Path, cwd: Path | None = None) -> None:
    """Refuse a description that the trainer would fail on, or end without training on; relative folders are in `cwd`.

    Raises InputError naming the file and the field: missing, not TOML (with line and column), no datasets, no subsets,
    an image folder that is not there, no images at all.
    """
    if images(dataset_config, cwd) == 0:
        raise InputError(dataset_config, "has no images in any of its folders", "datasets.subsets.image_dir")


def images(dataset_config: Path, cwd: Path | None = None) -> int:
    """Return how many images there are to train on, without repeats and regularisation images. Raises as `check`."""
    here = Path.cwd() if cwd is None else cwd
    return sum(_in_subset(dataset_config, place, subset, here) for place, subset in _subsets(dataset_config))


def folders(dataset_config: Path, cwd: Path | None = None) -> tuple[Path, ...]:
    """Return the folders of the images, beside which the trainer keeps its caches; none where it does not say."""
    here = Path.cwd() if cwd is None else cwd
    try:
        named = [subset.get("image_dir") for _, subset in _subsets(dataset_config)]
    except InputError:
        return ()
    return tuple(dict.fromkeys(here / name for name in named if isinstance(name, str) and name))


def _read(path: Path) -> Mapping[str, Any]:
    suffix = path.suffix.lower()
    if suffix not in (".toml", ".json"):
        raise InputError(path, "must end in .toml or .json, or the trainer does not read it")
    return read_toml(path) if suffix == ".toml" else read_json(path)


def _subsets(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for number, dataset in enumerate(_tables(path, _read(path), "datasets", "datasets")):
        place = f"datasets[{number}].subsets"
        for index, subset in enumerate(_tables(path, dataset, "subsets", place)):
            yield f"{place}[{index}]", subset


def _tables(path: Path, values: Mapping[str, Any], name: str, place: str) -> list[Mapping[str, Any]]:
    found = values.get(name)
    if found is None or found == []:
        raise InputError(path, "is missing: there is nothing to train on", place)
    if not isinstance(found, list) or not all(isinstance(table, Mapping) for table in found):
        written = "[[datasets]]" if name == "datasets" else "[[datasets.subsets]]"
        raise InputError(path, f"must be written as {written}", place)
    return found


def _in_subset(path: Path, place: str, subset: Mapping[str, Any], cwd: Path) -> int:
    listed = subset.get("metadata_file")
    if listed is not None:
        return _in_metadata(path, f"{place}.metadata_file", cwd / str(listed))
    folder = subset.get("image_dir")
    if not isinstance(folder, str) or not folder:
        raise InputError(path, "must name a folder", f"{place}.image_dir")
    found = _in_folder(path, f"{place}.image_dir", cwd / folder)
    return 0 if subset.get("is_reg") is True else found


def _in_folder(path: Path, place: str, folder: Path) -> int:
    try:
        with os.scandir(folder) as entries:
            return sum(1 for entry in entries if _is_image(entry))
    except FileNotFoundError:
        raise InputError(path, f"{folder} does not exist", place) from None
    except NotADirectoryError:
        raise InputError(path, f"{folder} is not a folder", place) from None
    except OSError as error:
        raise InputError(path, f"{folder} cannot be read ({error.strerror})", place) from None


def _is_image(entry: os.DirEntry[str]) -> bool:
    return os.path.splitext(entry.name)[1] in IMAGE_SUFFIXES and not entry.name.startswith(".") and entry.is_file()


def _in_metadata(path: Path, place: str, listed: Path) -> int:
    try:
        return len(read_json(listed))
    except InputError as error:
        raise InputError(path, str(error), place) from None
