"""What the flags of a trainer say, its --config_file included."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import tomlkit
from tomlkit.exceptions import TOMLKitError

from fluxguard.errors import InputError
from fluxguard.launch.trainer import COMMAND, Trainer

_SWITCHES = (
    "cpu_offload_checkpointing",
    "persistent_data_loader_workers",
    "sample_at_first",
    "save_state",
    "skip_until_initial_step",
    "split_mode",
)
_VALUES = (
    "blocks_to_swap",
    "config_file",
    "dataset_config",
    "gradient_accumulation_steps",
    "huggingface_token",
    "initial_epoch",
    "initial_step",
    "max_data_loader_n_workers",
    "max_train_epochs",
    "max_train_steps",
    "output_dir",
    "output_name",
    "resume",
    "sample_every_n_epochs",
    "sample_every_n_steps",
    "sample_prompts",
    "save_every_n_epochs",
    "save_every_n_steps",
    "save_model_as",
    "save_n_epoch_ratio",
    "seed",
    "train_data_dir",
    "wandb_api_key",
)
_WATCHED = (*_SWITCHES, "resume_from_huggingface", *_VALUES)
_UPSTREAM_STEPS = 1600
_UPSTREAM_WORKERS = 8


def flag_name(word: str) -> str | None:
    """Return the name of the flag that a word is, or None for a value.

    argparse takes a unique beginning for the whole name, and so does this for the flags that matter here.
    """
    name = word[2:].partition("=")[0]
    if not word.startswith("--") or not name or " " in name:
        return None
    longer = [known for known in _WATCHED if known.startswith(name)]
    return longer[0] if len(longer) == 1 and name not in _WATCHED else name


def spans(args: Sequence[str]) -> Iterator[tuple[str, int, int]]:
    """Yield (name, start, end) of each flag in `args` with the values that follow it."""
    start, name = 0, None
    for at, word in enumerate([*args, None]):
        found = None if word is None else flag_name(word)
        if found is None and word is not None:
            continue
        if name is not None:
            yield name, start, at
        start, name = at, found


class Flags:
    """What the flags of a trainer say: a later one wins, and the command line wins over its --config_file."""

    def __init__(
        self, args: Sequence[str], cwd: Path, config: Mapping[str, Any] | None = None, source: str = ""
    ) -> None:
        self._cwd = cwd
        self._config = dict(config or {})
        self._source = source
        self._given: dict[str, tuple[str, ...]] = {}
        for name, start, end in spans(args):
            _, equals, value = args[start].partition("=")
            self._given[name] = ((value,) if equals else ()) + tuple(args[start + 1 : end])

    @classmethod
    def of(cls, trainer: Trainer) -> Flags:
        """Read the flags of a trainer, and the file that --config_file names.

        Raises InputError when that file is missing or is not TOML.
        """
        plain = cls(trainer.args, trainer.cwd)
        path = plain.config_file
        if path is None:
            return plain
        return cls(trainer.args, trainer.cwd, _flattened(read_toml(path, "--config_file")), str(path))

    def with_args(self, args: Sequence[str]) -> Flags:
        """Return what other words on the command line say, over the same file."""
        return Flags(args, self._cwd, self._config, self._source)

    def given(self, name: str) -> bool:
        """Whether the command line or the file says anything about a flag."""
        return name in self._given or name in self._config

    def configured(self, name: str) -> bool:
        """Whether the file sets a flag that is not on the command line, to something other than false."""
        return name not in self._given and self._config.get(name, False) is not False

    def _where(self, name: str) -> str:
        return COMMAND if name in self._given else self._source

    def _text(self, name: str) -> str | None:
        if name in self._given:
            values = self._given[name]
            if not values:
                raise InputError(COMMAND, "needs a value", f"--{name}")
            return values[0]
        value = self._config.get(name)
        return None if value is None else str(value)

    def _number(self, name: str, least: int) -> int | None:
        text = self._text(name)
        if text is None:
            return None
        if not re.fullmatch(r"[+-]?\d+", text, re.ASCII) or int(text) < least:
            raise InputError(self._where(name), f"must be a whole number from {least}, not {text!r}", f"--{name}")
        return int(text)

    def _switch(self, name: str) -> bool:
        return name in self._given or bool(self._config.get(name, False))

    def _path(self, name: str) -> Path | None:
        text = self._text(name)
        return self._cwd / text if text else None

    def check(self) -> None:
        """Read every flag once. Raises InputError naming the first one whose value cannot be."""
        for name, kind in vars(type(self)).items():
            if isinstance(kind, property):
                getattr(self, name)

    @property
    def config_file(self) -> Path | None:
        """The file of further flags; upstream adds `.toml` where it is missing."""
        text = self._text("config_file") if "config_file" in self._given else None
        return self._cwd / (text if text.endswith(".toml") else f"{text}.toml") if text else None

    @property
    def output_dir(self) -> Path:
        """Where everything is saved, absolute. Raises InputError when it is not given."""
        path = self._path("output_dir")
        if path is None:
            raise InputError(COMMAND, "must be given: it is where the run lives", "--output_dir")
        return path

    @property
    def output_name(self) -> str | None:
        """The first part of the names of all that is saved; without it upstream says last, epoch and at."""
        return self._text("output_name")

    @property
    def dataset_config(self) -> Path | None:
        """The description of the images, absolute."""
        return self._path("dataset_config")

    @property
    def resume(self) -> Path | None:
        """The state that the user starts from, absolute."""
        return self._path("resume")

    @property
    def initial_step(self) -> int | None:
        """The step that the user says to start from."""
        return self._number("initial_step", 0)

    @property
    def initial_epoch(self) -> int | None:
        """The epoch, from 1, that the user says to start from."""
        return self._number("initial_epoch", 0)

    @property
    def skip_until_initial_step(self) -> bool:
        """Whether batches are skipped up to the initial step."""
        return self._switch("skip_until_initial_step")

    @property
    def gradient_accumulation_steps(self) -> int:
        """Batches to one optimizer step."""
        return self._number("gradient_accumulation_steps", 1) or 1

    @property
    def max_train_epochs(self) -> int | None:
        """Epochs to train; when it is there, the steps do not count."""
        return self._number("max_train_epochs", 1)

    @property
    def max_train_steps(self) -> int:
        """Optimizer steps to train when no epochs are given."""
        steps = self._number("max_train_steps", 1)
        return _UPSTREAM_STEPS if steps is None else steps

    @property
    def save_state(self) -> bool:
        """Whether a state is saved with the weights."""
        return self._switch("save_state")

    @property
    def save_every_n_steps(self) -> int | None:
        """Steps between two saves."""
        return self._number("save_every_n_steps", 1)

    @property
    def save_every_n_epochs(self) -> int | None:
        """Epochs between two saves."""
        return self._number("save_every_n_epochs", 1)

    @property
    def save_n_epoch_ratio(self) -> int | None:
        """Saves in all, from which upstream makes the epochs between two."""
        return self._number("save_n_epoch_ratio", 0)

    @property
    def save_model_as(self) -> str:
        """The kind, and the suffix, of the weights."""
        return self._text("save_model_as") or "safetensors"

    @property
    def persistent_data_loader_workers(self) -> bool:
        """Whether loader workers live longer than an epoch."""
        return self._switch("persistent_data_loader_workers")

    @property
    def max_data_loader_n_workers(self) -> int:
        """Processes that load images; 0 when the trainer does it itself."""
        workers = self._number("max_data_loader_n_workers", 0)
        return _UPSTREAM_WORKERS if workers is None else workers

    @property
    def sample_at_first(self) -> bool:
        """Whether sample images are made before the first step."""
        return self._switch("sample_at_first")

    @property
    def sample_every_n_steps(self) -> int | None:
        """Steps between two sets of sample images."""
        return self._number("sample_every_n_steps", -(2**31))

    @property
    def sample_every_n_epochs(self) -> int | None:
        """Epochs between two sets of sample images."""
        return self._number("sample_every_n_epochs", -(2**31))

    @property
    def blocks_to_swap(self) -> int | None:
        """Blocks of the model that wait in the main memory for their turn."""
        return self._number("blocks_to_swap", 0)

    @property
    def split_mode(self) -> bool:
        """Whether an older way of swapping is asked for, which upstream takes for some blocks to swap."""
        return self._switch("split_mode")

    @property
    def cpu_offload_checkpointing(self) -> bool:
        """Whether activations wait in the main memory, which excludes swapping blocks."""
        return self._switch("cpu_offload_checkpointing")

    @property
    def train_data_dir(self) -> Path | None:
        """The folder whose folders hold the images when there is no dataset_config, absolute."""
        return self._path("train_data_dir")

    @property
    def seed(self) -> int | None:
        """The seed, None when each run draws its own."""
        return self._number("seed", -(2**63))


def final_weights(flags: Flags) -> Path:
    """Return where the weights of a finished training are."""
    return flags.output_dir / f"{flags.output_name or 'last'}.{flags.save_model_as}"


def read_toml(path: Path, field: str = "") -> dict[str, Any]:
    """Read a TOML file as plain values. Raises InputError naming the file, and the line where it is not TOML."""
    try:
        return tomlkit.parse(path.read_bytes().decode("utf-8-sig")).unwrap()
    except OSError as error:
        raise InputError(path, f"cannot be read ({error.strerror})", field) from None
    except UnicodeDecodeError:
        raise InputError(path, "is not UTF-8 text", field) from None
    except TOMLKitError as error:
        raise InputError(path, f"is not TOML: {error}", field) from None


def read_json(path: Path, field: str = "") -> dict[str, Any]:
    """Read a JSON file that holds a table. Raises InputError naming the file."""
    try:
        values = json.loads(path.read_bytes())
    except OSError as error:
        raise InputError(path, f"cannot be read ({error.strerror})", field) from None
    except ValueError as error:
        raise InputError(path, f"is not JSON: {error}", field) from None
    if not isinstance(values, dict):
        raise InputError(path, "must hold a table", field)
    return values


def _flattened(tables: Mapping[str, Any]) -> dict[str, Any]:
    """Take the section names away, as upstream does: one level, a later section wins."""
    flat: dict[str, Any] = {}
    for name, value in tables.items():
        flat.update(value if isinstance(value, Mapping) else {name: value})
    return flat
