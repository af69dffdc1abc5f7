"""A train.bat means what cmd makes of it, or it is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from fluxguard.errors import InputError
from fluxguard.launch.script import INSTEAD
from fluxguard.launch.trainsh import parse
from tests.launch.texts import OPTIMIZERS, OUT, fluxgym

ENV = {"Root": r"C:\flux gym"}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "train.bat"


@pytest.mark.parametrize("sample", [False, True])
@pytest.mark.parametrize("vram", OPTIMIZERS)
def test_every_batch_file_of_fluxgym_says_what_its_shell_script_says(path: Path, vram: str, sample: bool) -> None:
    path.write_text(fluxgym(vram, sample=sample, mark="^", newline="\r\n"))
    batch = parse(path, {})
    path.with_suffix(".sh").write_text(fluxgym(vram, sample=sample))
    assert batch == parse(path.with_suffix(".sh"), {})
    assert OUT in batch.argv


def test_settings_are_read_and_remarks_are_not(path: Path) -> None:
    path.write_text(
        '@echo off\r\nrem call nothing\r\n:: nothing\r\nset A=1 2\r\nset "B=%A%3"\r\ncd /d "%ROOT%"\r\n'
        'call C:\\v\\Scripts\\activate.bat\r\n@python ^\r\n  x.py --a "%b%" --c "d\\e" f\\"g\r\npause\r\n'
    )
    script = parse(path, ENV)
    assert script.argv == ("python", "x.py", "--a", "1 23", "--c", "d\\e", 'f"g')
    assert script.env == {"A": "1 2", "B": "1 23"}
    assert str(script.cwd) == r"C:\flux gym"
    assert script.activate is not None
    assert str(script.activate).endswith("v")


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (1, "a | b"),
        (1, "a > b"),
        (1, "a & b"),
        (1, "a ^ \n--b"),
        (2, "a\nb"),
        (1, "if x==y a"),
        (1, "for %%i in (1) do a"),
        (1, ":again"),
        (1, "goto again"),
        (1, "set /a x=1"),
        (1, "call other.bat"),
        (1, "a %NOWHERE%"),
        (1, "a %1"),
        (1, 'a "b'),
        (1, "a\x00"),
    ],
)
def test_whatever_else_is_refused_with_its_line(path: Path, line: int, text: str) -> None:
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        parse(path, ENV)
    assert caught.value.source == f"{path}:{line}"
    assert INSTEAD in caught.value.reason


def test_a_batch_file_without_a_command_is_refused(path: Path) -> None:
    path.write_text("@echo off\r\n")
    with pytest.raises(InputError, match="holds no command"):
        parse(path, ENV)
