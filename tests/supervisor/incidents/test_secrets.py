"""The law of secrets: planted everywhere, they are in nothing that fluxguard writes, shows or packs."""

from __future__ import annotations

import io
import json
import os
import secrets
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fluxguard.launch import masking
from fluxguard.rundir import RunDir, write_json
from fluxguard.supervisor.causes.diagnosis import Evidence
from fluxguard.supervisor.incidents import archive, markdown, page, scrubbing
from fluxguard.supervisor.incidents import incident as incidents
from fluxguard.supervisor.incidents.scene import Scene
from tests.conftest import FAULTS, ROOT
from tests.supervisor.incidents.made import incident

_LONGEST = 60.0
_LIMITS = {
    "phase": {name: {"patience": 1.5, "ceiling": 4.0} for name in ("load", "first step", "step")},
    "watch": {"grace": 0.5, "settle": 0.1, "backoff": 0.1, "evidence": 3.0},
    "max_restarts": 1,
}
KEY_LINES = ("MIIEvQIBADANBgkqhkiG9w0BAQEFAASC", "BKcwggSjAgEAAoIBAQC7VJTUt9Us8cKj")
PEM = "\n".join(("-----BEGIN PRIVATE KEY-----", *KEY_LINES, "-----END PRIVATE KEY-----"))

VALUES = st.text("abcdefghijklmnopqrstuvwxyzABCDEF0123456789+/=_-.!'\"\\$& ", min_size=10, max_size=40).filter(
    lambda text: text.strip(" .\\") == text and len(set(text)) > 4
)


def held(folder: Path, planted: set[str], *, but: tuple[str, ...] = ()) -> list[str]:
    """Return the files under a folder that hold one of these values, in any spelling."""
    spelt = {spelling.encode() for value in planted for spelling in (value, json.dumps(value)[1:-1], repr(value)[1:-1])}
    files = [path for path in folder.rglob("*") if path.is_file() and path.name not in but]
    return [f"{path.name}: {one!r}" for path in files for one in spelt if one in path.read_bytes()]


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(secret=VALUES)
def test_a_known_secret_is_in_no_file_of_an_incident(tmp_path: Path, secret: str) -> None:
    """Whatever part of it held the secret, and whatever it looks like."""
    run = RunDir(tmp_path / secrets.token_hex(4))
    run.create()
    known = masking.secrets_of(["x", "--wandb_api_key", secret])
    assert known == {secret}
    said = f"using {secret} now"
    run.stacks(0).write_text(said)
    write_json(run.last_words(0), {"attempt": "a", "what": said, "rank": 0})
    run.healed(0).write_text(json.dumps({"version": 1, "why": said}) + "\n" + json.dumps({"why": "no"}) + "\n")
    dump = tmp_path / f"{run.output_dir.name}-trace_0"
    dump.write_bytes(b"\x80\x04" + secret.encode() + b".")
    evidence = Evidence(lines=[said], stacks={7: f'token: "{secret}"'}, last_words={"rank": 0, "what": said})
    made = incident(
        words=said, advice=said, proof=(said,), lines=(said,), notes=(said,), figures={"x": said}, decision=said,
        flags=(f"--x {secret}",), symptom={"what": said}, ending={"rungs": [said]}, missing={"x": said}, place=said,
    )  # fmt: skip
    scrubbing.scrub(run, known)
    path = incidents.write(run, made, evidence, Scene(files={"processes.txt": said}), [dump], known)
    assert held(run.root, {secret}) == []
    assert path.with_name(f"flight-recorder-{dump.name}").stat().st_size == dump.stat().st_size
    shown = incidents.read(path.with_name("report.json"))
    assert shown is not None
    assert secret not in markdown.of(shown) + page.render(shown)
    assert run.healed(0).read_text().splitlines()[1] == '{"why": "no"}'


@pytest.fixture
def planted(tmp_path: Path) -> dict[str, Any]:
    """A run folder, its train script and settings, and the secrets in them; none of these looks like one."""
    words = {
        name: f"planted-{name}-{secrets.token_hex(6)}" for name in ("flag", "equals", "file", "env", "proxy", "script")
    }
    output_dir, config = tmp_path / "out", tmp_path / "config.toml"
    output_dir.mkdir()
    config.write_text(f"seed = 1\nwandb_api_key = '{words['file']}'\n")
    dataset = tmp_path / "dataset.toml"
    dataset.write_text(
        f"# from https://me:{words['proxy']}@host/data\n[general]\n[[datasets]]\n"
        f"[[datasets.subsets]]\nimage_dir = '{tmp_path}'\n"
    )
    (tmp_path / "a.png").write_bytes(b"no picture")
    script = output_dir / "train.sh"
    script.write_text(
        f"export REPLICATE_API_TOKEN={words['script']}\n"
        f"{sys.executable} {FAULTS / 'blab' / 'flux_train_network.py'} --output_dir {output_dir} --output_name x "
        f"--huggingface_token {words['flag']} --hf_api_key={words['equals']} --config_file {config} "
        f"--dataset_config {dataset} --max_train_steps 10 --save_state --save_every_n_steps 5\n"
    )
    (tmp_path / "limits.json").write_text(json.dumps(_LIMITS))
    env = {
        **{name: value for name, value in os.environ.items() if not name.startswith("FLUXGUARD_")},
        "MY_SERVICE_KEY": words["env"],
        "HTTPS_PROXY": f"http://me:{words['proxy']}@proxy:3128",
        "KEY_FILE_TEXT": PEM,
        "KEY_FILE_PATH": str(tmp_path / "key"),
        "PYTHONPATH": str(ROOT),
    }
    return {
        "run": RunDir(output_dir),
        "script": script,
        "env": env,
        "values": {*words.values(), *KEY_LINES},
        "at": tmp_path,
    }


def call(planted: dict[str, Any], *words: str) -> str:
    """Run our command line; return all it says."""
    done = subprocess.run(
        [sys.executable, "-m", "fluxguard", *words],
        env=planted["env"], cwd=planted["at"], capture_output=True, text=True, timeout=_LONGEST,
    )  # fmt: skip
    assert done.returncode in (0, 1), done.stderr
    return done.stdout + done.stderr


@pytest.mark.integration
@pytest.mark.timeout(180)
def test_no_secret_of_a_real_run_is_written_shown_or_packed(planted: dict[str, Any]) -> None:
    """In its command, its settings, its environment, its output, its stacks, and in what it leaves itself."""
    run, values = planted["run"], planted["values"]
    said = call(
        planted, "supervise", str(planted["script"]), "--no-harden", "--limits", str(planted["at"] / "limits.json")
    )
    assert incidents.numbers(run) == [1, 2], said
    assert all(value in run.log.read_text() for value in values), "the trainer told nothing"
    assert run.log.stat().st_mode & 0o077 == 0
    assert held(run.root, values, but=("train.log",)) == []
    assert not list(run.root.glob("spawn.*"))
    stacks = (incidents.folder_for(run, 1) / "stacks.txt").read_text()
    assert "flux_train_network.py" in stacks
    shown = call(planted, "incident", str(run.output_dir), "all") + call(planted, "incident", str(run.output_dir))
    shown += call(planted, "incident", str(run.output_dir), "1", "--json", "--html", "page.html")
    shown += call(planted, "report", str(run.output_dir), "--to", "report.zip") + call(
        planted, "status", str(run.output_dir), "--json"
    )
    assert [value for value in values if value in said + shown] == []
    assert held(planted["at"], values, but=("train.log", "train.sh", "config.toml", "dataset.toml", "report.zip")) == []
    packed = zipfile.ZipFile(io.BytesIO((planted["at"] / "report.zip").read_bytes()))
    texts = {name: packed.read(name).decode() for name in packed.namelist()}
    assert {"log-tail.txt", "command/train.sh", "command/config_file.toml", "command/dataset_config.toml"} <= set(texts)
    assert [(name, value) for name, text in texts.items() for value in values if value in text] == []


@pytest.mark.integration
@pytest.mark.timeout(180)
def test_the_log_is_left_out_where_its_secrets_are_not_known(planted: dict[str, Any]) -> None:
    """Another terminal does not have the environment of the run: what it cannot find it must not pack."""
    call(planted, "supervise", str(planted["script"]), "--no-harden", "--limits", str(planted["at"] / "limits.json"))
    env = {
        name: value
        for name, value in planted["env"].items()
        if name not in ("MY_SERVICE_KEY", "HTTPS_PROXY", "KEY_FILE_TEXT")
    }
    packed = archive.pack(planted["run"], env)
    assert "MY_SERVICE_KEY" in packed.left_out["log-tail.txt"]
    texts = zipfile.ZipFile(io.BytesIO(packed.data))
    joined = "\n".join(texts.read(name).decode() for name in texts.namelist())
    assert [value for value in planted["values"] if value in joined] == []
