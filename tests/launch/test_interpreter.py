"""The trainer runs on its own Python, in an environment without a trace of ours."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fluxguard.errors import InputError
from fluxguard.launch import interpreter
from fluxguard.launch.interpreter import choose, environment, recorded, references


def python_at(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    path.chmod(0o755)
    return path


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    folder = tmp_path / "gym" / "sd-scripts"
    folder.mkdir(parents=True)
    return folder


def path_of(*folders: Path) -> list[str]:
    return ["", *map(str, folders)]


@pytest.mark.parametrize("where", ["bin/python", "Scripts/python.exe"])
@pytest.mark.parametrize("venv", ["env", "venv", ".venv", "../env", "../venv", "../.venv"])
def test_a_venv_in_the_checkout_or_its_parent_comes_before_the_path(checkout: Path, venv: str, where: str) -> None:
    other = python_at(checkout / "path" / "python")
    expected = python_at(checkout / venv / where)
    found = choose(checkout, None, None, path_of(other.parent), None)
    assert found.samefile(expected)
    assert found.name == expected.name


def test_what_is_named_comes_before_what_is_found(checkout: Path) -> None:
    in_checkout = python_at(checkout / "env/bin/python")
    activated = python_at(checkout / "other/bin/python")
    named = python_at(checkout / "path/python3.9")
    entries = path_of(named.parent)
    assert choose(checkout, None, None, entries, None) == in_checkout
    assert choose(checkout, None, checkout / "other", entries, None) == activated
    for python in (str(named), "python3.9", str(named.parent.parent / "other")):
        expected = activated if python.endswith("other") else named
        assert choose(checkout, python, checkout / "env", entries, None) == expected


def test_our_own_environment_is_never_found_only_named(checkout: Path) -> None:
    ours = python_at(checkout / ".venv/bin/python")
    theirs = python_at(checkout / "usr/bin/python3")
    entries = path_of(ours.parent, theirs.parent)
    assert choose(checkout, None, None, entries, checkout / ".venv") == theirs
    assert choose(checkout, str(ours), None, entries, checkout / ".venv") == ours


def test_a_linked_interpreter_stays_the_link(checkout: Path) -> None:
    real = python_at(checkout / "usr/python3.11")
    link = checkout / "env/bin/python"
    link.parent.mkdir(parents=True)
    link.symlink_to(real)
    assert choose(checkout, None, None, [], None) == link


@pytest.mark.parametrize(
    ("python", "activate", "message"),
    [
        (None, None, "--python: must be given"),
        ("python9", None, "--python: python9 is no program"),
        ("no/where/python", None, "--python: no/where/python is no program"),
        (None, "gone", "is activated by the train script"),
    ],
)
def test_no_interpreter_is_an_error_that_says_where_it_was_looked_for(
    checkout: Path, python: str | None, activate: str | None, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        choose(checkout, python, checkout / activate if activate else None, path_of(checkout), None)


def joined(*entries: object) -> str:
    return os.pathsep.join(map(str, entries))


def test_nothing_of_ours_reaches_the_trainer(tmp_path: Path) -> None:
    ours = tmp_path / "ours"
    package = Path(interpreter.__file__).resolve().parents[2]
    own = {
        "PATH": joined(ours / "bin", "/usr/bin"),
        "PYTHONPATH": joined(package, "/their/code", ours / "lib", package / "fluxguard"),
        "VIRTUAL_ENV": str(ours),
        "VIRTUAL_ENV_PROMPT": "ours",
        "PYTHONHOME": str(ours),
        "FLUXGUARD_RUN": "/old",
        "HOME": "/home/me",
    }
    env = environment(own, {"PATH": joined("/script", own["PATH"]), "X": "1"}, ours, {"FLUXGUARD_ATTEMPT": "a"})
    assert env == {
        "PATH": joined("/script", "/usr/bin"),
        "PYTHONPATH": "/their/code",
        "HOME": "/home/me",
        "X": "1",
        "PYTHONUNBUFFERED": "1",
        "PYTHONIOENCODING": "utf-8",
        "FLUXGUARD_ATTEMPT": "a",
    }


def test_an_environment_that_is_not_ours_stays(tmp_path: Path) -> None:
    own = {
        "PATH": joined("/their/bin", "/bin"),
        "VIRTUAL_ENV": "/their",
        "PYTHONHOME": "/their",
        "PYTHONPATH": "/their",
    }
    for prefix in (None, tmp_path):
        assert {name: environment(own, {}, prefix, {})[name] for name in own} == own


def test_the_folder_of_the_interpreter_is_on_the_path() -> None:
    env = environment({"PATH": "/bin"}, {}, None, {}, Path("/v/bin/python"))
    assert env["PATH"] == joined("/v/bin", "/bin")
    assert environment({"PATH": "/bin"}, {}, None, {}, Path("/bin/python"))["PATH"] == "/bin"


ENV = {
    "PATH": "/bin",
    "LC_ALL": "C",
    "CUDA_VISIBLE_DEVICES": "0",
    "TOKENIZERS_PARALLELISM": "false",
    "NVIDIA_API_KEY": "s3cret",
    "HF_TOKEN": "s3cret",
    "WANDB_API_KEY": "s3cret",
    "ACCELERATE_SECRET": "s3cret",
    "db_password": "s3cret",
    "SOMETHING": "private",
}


def test_a_secret_is_recorded_by_its_name_only() -> None:
    assert recorded(ENV) == {
        name: ENV[name] for name in ("CUDA_VISIBLE_DEVICES", "LC_ALL", "PATH", "TOKENIZERS_PARALLELISM")
    }
    assert references(ENV) == ("ACCELERATE_SECRET", "HF_TOKEN", "NVIDIA_API_KEY", "WANDB_API_KEY", "db_password")


@pytest.mark.parametrize(
    ("head", "found"),
    [
        ("#!{0}/python3\nimport re\n", "python3"),
        ('#!"{0}/python3"\n', "python3"),
        ("#!/bin/sh\n'''exec' {0}/python3 \"$0\" \"$@\"\n' '''\n", "python3"),
        ('#!/bin/sh\n\'\'\'exec\' "{0}/python3" "$0" "$@"\n', "python3"),
        ("#!/usr/bin/env python3\n", None),
        ("#!/bin/sh\necho\n", None),
        ("#!{0}/gone/python3\n", None),
        ("", None),
        ("\x7fELF", None),
    ],
)
def test_a_script_names_its_python_in_its_first_lines(tmp_path: Path, head: str, found: str | None) -> None:
    python_at(tmp_path / "python3")
    script = tmp_path / "torchrun"
    script.write_text(head.format(tmp_path))
    assert interpreter.of_script(script) == (tmp_path / found if found else None)
    assert interpreter.of_script(tmp_path / "none") is None
