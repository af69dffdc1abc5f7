"""The miniature of sd-scripts takes FluxGym's command line and behaves as the trainer it stands in for."""

import argparse
import json
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.conftest import POLL, Spawn, Spawned

DEMO = Path(__file__).parents[2] / "fluxguard" / "demo"
pytestmark = pytest.mark.integration  # importing torch takes longer than all unit tests may
LONG, STUCK = 60.0, 2.0
OWN_NAMES = ("library", "networks", "train_network", "flux_train_network")

# What FluxGym writes for every preset
FLUXGYM = shlex.split("""
--pretrained_model_name_or_path /models/unet/flux1-dev.sft --clip_l /models/clip/clip_l.safetensors
--t5xxl /models/clip/t5xxl_fp16.safetensors --ae /models/vae/ae.sft --cache_latents_to_disk
--save_model_as safetensors --sdpa --persistent_data_loader_workers --max_data_loader_n_workers 2 --seed 42
--gradient_checkpointing --mixed_precision bf16 --save_precision bf16 --network_module networks.lora_flux
--network_dim 4 --learning_rate 8e-4 --cache_text_encoder_outputs --cache_text_encoder_outputs_to_disk --fp8_base
--highvram --max_train_epochs 4 --save_every_n_epochs 1 --output_name mini --timestep_sampling shift
--discrete_flow_shift 3.1582 --model_prediction_type raw --guidance_scale 1 --loss_type l2
""")
ADAFACTOR = shlex.split("""
--optimizer_type adafactor --optimizer_args relative_step=False scale_parameter=False warmup_init=False
--lr_scheduler constant_with_warmup --max_grad_norm 0.0
""")
PRESETS = {
    "20G": ["--optimizer_type", "adamw8bit"],
    "16G": ADAFACTOR,
    "12G": [*ADAFACTOR, "--split_mode", "--network_args", "train_blocks=single"],
}


@pytest.fixture(scope="module")
def miniature() -> Iterator[SimpleNamespace]:
    """The miniature's modules, imported from its own folder; the names are taken back afterwards."""
    pytest.importorskip("torch")
    pytest.importorskip("accelerate")
    sys.path.insert(0, str(DEMO))
    try:
        import flux_train_network
        from library import buckets, deeds, flux_train_utils, prompts, train_util

        yield SimpleNamespace(
            parser=flux_train_network.setup_parser(),
            buckets=buckets,
            deeds=deeds,
            flux_train_utils=flux_train_utils,
            prompts=prompts,
            train_util=train_util,
        )
    finally:
        sys.path.remove(str(DEMO))
        for name in [n for n in sys.modules if n.split(".")[0] in OWN_NAMES]:
            del sys.modules[name]


@pytest.mark.parametrize("preset", PRESETS)
def test_every_flag_of_fluxgym_is_known(miniature, preset):
    args = miniature.parser.parse_args([*FLUXGYM, *PRESETS[preset]])
    assert args.max_train_epochs == 4
    assert args.split_mode is (preset == "12G")


def test_an_unknown_flag_ends_with_two(miniature, capsys):
    with pytest.raises(SystemExit) as ended:
        miniature.parser.parse_args(["--no_such_flag"])
    assert ended.value.code == 2
    assert "unrecognized arguments" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("output_name", "expected"),
    [
        ("mini", ("mini-000002.safetensors", "mini-step00000040.safetensors", "mini.safetensors")),
        (None, ("epoch-000002.safetensors", "at-step00000040.safetensors", "last.safetensors")),
    ],
)
def test_checkpoints_are_named_as_upstream_names_them(miniature, output_name, expected):
    util, args = miniature.train_util, argparse.Namespace(output_name=output_name)
    names = (
        util.get_epoch_ckpt_name(args, ".safetensors", 2),
        util.get_step_ckpt_name(args, ".safetensors", 40),
        util.get_last_ckpt_name(args, ".safetensors"),
    )
    assert names == expected


def test_old_steps_are_counted_back_from_a_distance_not_a_count(miniature):
    args = argparse.Namespace(save_last_n_steps=20, save_every_n_steps=10)
    assert [miniature.train_util.get_remove_step_no(args, step) for step in (20, 40, 50)] == [None, 10, 20]


def test_the_average_loss_forgets_the_epoch_before(miniature):
    recorder = miniature.train_util.LossRecorder()
    assert recorder.moving_average == 0
    for step, loss in enumerate((1.0, 3.0)):
        recorder.add(epoch=0, step=step, loss=loss)
    assert recorder.moving_average == 2.0
    recorder.add(epoch=1, step=0, loss=5.0)
    assert recorder.moving_average == 4.0


@pytest.mark.parametrize(
    ("picture", "reso"), [((500, 500), (128, 128)), ((300, 1200), (64, 256)), ((1600, 900), (160, 96))]
)
def test_a_picture_goes_to_the_bucket_of_its_shape(miniature, picture, reso):
    manager = miniature.buckets.BucketManager(False, (128, 128), 64, 256, 32)
    manager.make_buckets()
    chosen, resized, _ = manager.select_bucket(*picture)
    assert chosen == reso
    assert resized[0] >= reso[0]
    assert resized[1] >= reso[1]


def test_without_buckets_every_picture_is_square(miniature):
    manager = miniature.buckets.BucketManager(False, (128, 128), 64, 256, 32)
    assert manager.select_bucket(1600, 900)[0] == (128, 128)


def test_options_behind_a_prompt_are_read(miniature):
    prompt = miniature.prompts.line_to_prompt_dict("a red circle --w 64 --d 7 --n blurred")
    assert prompt == {"prompt": "a red circle", "width": 64, "seed": 7, "negative_prompt": "blurred"}


@pytest.mark.parametrize(
    ("given", "epoch", "steps", "due"),
    [
        ({}, None, 0, False),
        ({"sample_at_first": True}, 0, 0, True),
        ({"sample_every_n_steps": 5}, None, 10, True),
        ({"sample_every_n_steps": 5}, 1, 10, False),
        ({"sample_every_n_epochs": 2, "sample_every_n_steps": 5}, None, 10, False),
        ({"sample_every_n_epochs": 2}, 2, 24, True),
    ],
)
def test_samples_are_due_by_steps_or_by_epochs(miniature, given, epoch, steps, due):
    never = {"sample_at_first": False, "sample_every_n_steps": None, "sample_every_n_epochs": None}
    assert miniature.flux_train_utils.sample_is_due(argparse.Namespace(**never | given), epoch, steps) is due


@pytest.mark.parametrize(
    ("words", "steps"),
    [("", [1]), ("3", [3]), ("3 2.5s", [3]), ("always", [1, 2, 3, 4]), ("3 always", [3])],
)
def test_a_fault_comes_at_its_step_once_or_always(miniature, tmp_path, words, steps):
    asked = tmp_path / "step.slow"
    asked.write_text(words)
    met = {step: miniature.deeds.due(str(asked), step) for step in (1, 2, 3, 4)}
    assert [step for step, found in met.items() if found is not None] == steps
    assert asked.exists() is ("always" in words)
    assert ("2.5s" in words) is any("2.5s" in found for found in met.values() if found)


def test_only_what_was_asked_for_is_done(miniature, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("MINIATURE_FAULTS", str(tmp_path))
    for asked in ("step.fail", "load.fail", "swap"):
        (tmp_path / asked).touch()
    miniature.deeds.met("saving")
    assert not capsys.readouterr().err
    with pytest.raises(RuntimeError, match="asked to fail"):
        miniature.deeds.met("step", 7)
    assert "on purpose: step.fail at step 7" in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["load.fail", "swap"]


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the first training is: it draws the pictures and fills the caches that all the others share."""
    return tmp_path_factory.mktemp("miniature") / "first"


@pytest.fixture
def start(spawn: Spawn, first: Path) -> Callable[..., Spawned]:
    """Start the miniature itself, without the launcher."""
    pytest.importorskip("accelerate")
    program = DEMO / "flux_train_network.py"

    def began(output: Path, *extra: str, **env: str) -> Spawned:
        flags = (*FLUXGYM, *ADAFACTOR, "--output_dir", str(output), *extra)
        return spawn(program, *flags, env={"PYTHONPATH": "", **env}, torch=True)

    if not first.exists():
        trained = began(first, "--max_train_epochs", "1")
        assert trained.ends(LONG) == 0, trained.output
    pictures = ("--train_data_dir", str(first / "dataset"), "--caption_extension", ".txt")
    return lambda output, *extra, **env: began(output, *pictures, *extra, **env)


@pytest.fixture
def train(start: Callable[..., Spawned]) -> Callable[..., str]:
    """Run the miniature to its end and return all that it said."""

    def ended(output: Path, *extra: str) -> str:
        trained = start(output, *extra)
        assert trained.ends(LONG) == 0, trained.output[-3000:]
        return trained.output

    return ended


def weights(path: Path) -> dict[str, bytes]:
    """The tensors of a file as bytes, without its header, which holds times."""
    blob = path.read_bytes()
    size = int.from_bytes(blob[:8], "little")
    header = json.loads(blob[8 : 8 + size])
    header.pop("__metadata__")
    places = {name: entry["data_offsets"] for name, entry in header.items()}
    assert max(end for _, end in places.values()) == len(blob) - 8 - size
    return {name: blob[8 + size + start : 8 + size + end] for name, (start, end) in places.items()}


@pytest.mark.timeout(240)
def test_a_training_ends_with_all_its_files_and_repeats_itself(train, tmp_path):
    from safetensors.torch import load_file

    flags = ("--max_train_epochs", "2", "--save_state")
    said = train(tmp_path / "one", *flags)
    train(tmp_path / "two", *flags, "--blocks_to_swap", "2")

    assert re.search(r"^  num batches per epoch: 12$", said, re.MULTILINE)
    assert re.search(r"^  total optimization steps: 24$", said, re.MULTILINE)
    assert "24/24" in said
    assert {p.name for p in (tmp_path / "one").iterdir()} == {
        "mini-000001.safetensors",
        "mini-000001-state",
        "mini.safetensors",
        "mini-state",
    }
    state = json.loads((tmp_path / "one" / "mini-state" / "train_state.json").read_text())
    assert state == {"current_epoch": 2, "current_step": 24}

    final = load_file(tmp_path / "one" / "mini.safetensors")
    assert "lora_unet_double_blocks_0_img_attn_qkv.lora_down.weight" in final
    assert all(tensor.isfinite().all() for tensor in final.values())
    assert any(tensor.abs().sum() > 0 for name, tensor in final.items() if "lora_up" in name)
    assert weights(tmp_path / "one" / "mini.safetensors") == weights(tmp_path / "two" / "mini.safetensors")


@pytest.mark.timeout(240)
def test_a_second_resume_trains_too_many_steps_as_upstream_does(train, tmp_path):
    train(tmp_path, "--max_train_epochs", "3", "--save_state")
    resumed = ("--max_train_epochs", "3", "--save_state", "--resume")
    said = train(tmp_path, *resumed, str(tmp_path / "mini-000002-state"))
    assert "epoch 3/3" in said
    assert "epoch 2/3" not in said
    state = json.loads((tmp_path / "mini-state" / "train_state.json").read_text())
    assert state == {"current_epoch": 3, "current_step": 12}  # true step 36: the fault that fluxguard repairs
    said = train(tmp_path, *resumed, str(tmp_path / "mini-state"))
    assert "epoch 2/3" in said


@pytest.mark.timeout(60)
def test_an_import_starts_nothing_and_says_nothing():
    pytest.importorskip("accelerate")
    code = "import threading, sys, train_network; sys.exit(threading.active_count() - 1)"
    ended = subprocess.run([sys.executable, "-c", code], cwd=DEMO, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")


@pytest.mark.timeout(120)
@pytest.mark.parametrize(("fault", "extra"), [("swap", ("--blocks_to_swap", "2")), ("read", ())])
def test_a_run_hangs_when_a_test_asks_for_it(start, tmp_path, fault, extra):
    (tmp_path / fault).touch()
    trainer = start(tmp_path / "run", *extra, MINIATURE_FAULTS=str(tmp_path))
    trainer.until(f"stuck on purpose: {fault}", LONG)
    until = time.monotonic() + STUCK
    while time.monotonic() < until:
        assert trainer.process.poll() is None
        time.sleep(POLL)
    assert not (tmp_path / fault).exists()
