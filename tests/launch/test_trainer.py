"""A command runs one known trainer, whose flags mean what argparse makes of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from fluxguard.errors import InputError
from fluxguard.launch.flags import Flags, final_weights
from fluxguard.launch.trainer import KNOWN, find


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "sd scripts"
    folder.mkdir()
    for name in (*KNOWN, "anima_train_network.py", "flux_train.py"):
        (folder / name).touch()
    return tmp_path


@pytest.mark.parametrize("name", [*KNOWN, "anima_train_network.py"])
@pytest.mark.parametrize(
    ("head", "launcher", "processes"),
    [
        ("accelerate launch --mixed_precision bf16", "accelerate", 1),
        ("accelerate launch --num_processes 3", "accelerate", 3),
        ("accelerate launch --num-processes=2 --multi-gpu", "accelerate", 2),
        ("accelerate launch --multi_gpu", "accelerate", None),
        ("accelerate launch --multi_gpu --gpu_ids 0,1,3", "accelerate", 3),
        ("accelerate launch --config_file unknown.yaml", "accelerate", 1),
        ("accelerate-launch", "accelerate", 1),
        ("/v/bin/python3.11 -m accelerate.commands.launch --num_processes 2", "accelerate", 2),
        ("torchrun --nproc_per_node 2 --nnodes 2", "torchrun", 4),
        ("torchrun --nproc-per-node gpu", "torchrun", None),
        ("python -m torch.distributed.run --nproc_per_node=2", "torchrun", 2),
        (r"C:\v\Scripts\python.exe", "python", 1),
        ("py -3.10", "python", 1),
        ("deepspeed", "deepspeed", 1),
        ("", "script", 1),
    ],
)
def test_the_trainer_and_what_starts_it_are_found(
    root: Path, name: str, head: str, launcher: str, processes: int | None
) -> None:
    words = head.split()
    trainer = find([*words, f"sd scripts/{name}", "--seed", "1"], root)
    assert trainer.index == len(words)
    assert trainer.script == (root / "sd scripts" / name).resolve()
    assert trainer.checkout == (root / "sd scripts").resolve()
    assert trainer.args == ("--seed", "1")
    assert (trainer.launcher, trainer.processes) == (launcher, processes)


@pytest.mark.parametrize("argv", [[], ["python", "sd scripts/flux_train.py"], ["python", "-c", "x"]])
def test_a_command_without_a_known_trainer_is_refused(root: Path, argv: list[str]) -> None:
    with pytest.raises(InputError, match=r"COMMAND: runs no known trainer \(looked for flux_train_network.py"):
        find(argv, root)


@pytest.mark.parametrize("script", ["train_network.py", "/no/where/train_network.py", "sd scripts/x_train_network.py"])
def test_a_trainer_that_is_not_there_is_refused(root: Path, script: str) -> None:
    with pytest.raises(InputError, match="is no file"):
        find(["python", script], root)


def flags(*args: str) -> Flags:
    return Flags(args, Path("/here"))


@pytest.mark.parametrize(
    ("args", "name", "value"),
    [
        ((), "output_name", None),
        ((), "gradient_accumulation_steps", 1),
        ((), "max_train_steps", 1600),
        ((), "max_train_epochs", None),
        ((), "save_state", False),
        ((), "save_model_as", "safetensors"),
        ((), "seed", None),
        (("--output_dir", "out"), "output_dir", Path("/here/out")),
        (("--output_dir=/out",), "output_dir", Path("/out")),
        (("--output_name", "a", "--output_name=b c"), "output_name", "b c"),
        (("--max_train_epochs", "4", "--max_train_epochs", "2"), "max_train_epochs", 2),
        (("--max_train_ep", "4"), "max_train_epochs", 4),  # argparse takes unique beginnings
        (("--max_train", "4"), "max_train_epochs", None),
        (("--seed", "-1"), "seed", -1),
        (("--save_state_on_train_end",), "save_state", False),
        (("--save_state", "--persistent_data_loader_workers"), "persistent_data_loader_workers", True),
        (("--optimizer_args", "a=1", "save_state=2", "--sdpa"), "save_state", False),
        (("--training_comment", "--save_state is off"), "save_state", False),
        (("--resume", "s"), "resume", Path("/here/s")),
        (("--initial_step", "5"), "initial_step", 5),
        (("--initial_epoch=3",), "initial_epoch", 3),
        (("--skip_until_initial_step",), "skip_until_initial_step", True),
        (("--save_every_n_steps", "7"), "save_every_n_steps", 7),
        (("--save_every_n_epochs", "7"), "save_every_n_epochs", 7),
        (("--dataset_config", "d.toml"), "dataset_config", Path("/here/d.toml")),
    ],
)
def test_flags_mean_what_argparse_makes_of_them(args: tuple[str, ...], name: str, value: object) -> None:
    assert getattr(flags(*args), name) == value


@pytest.mark.parametrize(
    ("args", "name"),
    [
        (("--max_train_epochs", "four"), "max_train_epochs"),
        (("--max_train_epochs", "4.5"), "max_train_epochs"),
        (("--max_train_epochs", "0"), "max_train_epochs"),
        (("--max_train_steps=-3",), "max_train_steps"),
        (("--gradient_accumulation_steps", "0"), "gradient_accumulation_steps"),
        (("--seed", "\u0663"), "seed"),
        (("--seed", "--sdpa"), "seed"),
        (("--output_dir",), "output_dir"),
        ((), "output_dir"),
    ],
)
def test_a_bad_value_is_an_error_that_names_the_flag(args: tuple[str, ...], name: str) -> None:
    with pytest.raises(InputError) as caught:
        getattr(flags(*args), name)
    assert caught.value.field == f"--{name}"


def test_the_command_line_wins_over_the_file_and_a_later_section_over_an_earlier(root: Path) -> None:
    (root / "c.toml").write_text(
        "seed = 1\n[a]\noutput_name = 'x'\nsave_state = true\nmax_train_epochs = 3\n[b]\nmax_train_epochs = 5\n"
    )
    argv = ["python", "sd scripts/train_network.py", "--config_file", "c", "--seed", "9"]
    said = Flags.of(find(argv, root))
    assert (said.seed, said.output_name, said.save_state, said.max_train_epochs) == (9, "x", True, 5)
    assert said.configured("save_state")
    assert not said.configured("seed")


@pytest.mark.parametrize("content", [None, "a = \n", "a = 1\na = 2\n"])
def test_a_file_of_flags_that_cannot_be_read_is_named(root: Path, content: str | None) -> None:
    if content is not None:
        (root / "c.toml").write_text(content)
    trainer = find(["python", "sd scripts/train_network.py", "--config_file=c.toml"], root)
    with pytest.raises(InputError, match=r"c\.toml: --config_file: "):
        Flags.of(trainer)


def test_a_bad_number_in_the_file_names_the_file(root: Path) -> None:
    (root / "c.toml").write_text("max_train_epochs = 2.5\n")
    trainer = find(["python", "sd scripts/train_network.py", "--config_file=c.toml"], root)
    with pytest.raises(InputError, match=r"c\.toml: --max_train_epochs: must be a whole number"):
        _ = Flags.of(trainer).max_train_epochs


@pytest.mark.parametrize(
    ("args", "weights"),
    [
        (("--output_dir", "/o"), "/o/last.safetensors"),
        (("--output_dir", "o", "--output_name", "a.b"), "/here/o/a.b.safetensors"),
        (("--output_dir", "/o", "--save_model_as", "ckpt"), "/o/last.ckpt"),
    ],
)
def test_the_final_weights_are_where_the_trainer_puts_them(args: tuple[str, ...], weights: str) -> None:
    assert final_weights(flags(*args)) == Path(weights)
