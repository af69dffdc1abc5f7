"""A train script means what bash makes of it, or it is refused with a line number and a way around."""

from __future__ import annotations

import contextlib
import random
from pathlib import Path

import pytest

from fluxguard.errors import InputError
from fluxguard.launch.script import INSTEAD, Script
from fluxguard.launch.trainsh import parse, parse_text, render
from tests.launch.texts import NAME, OPTIMIZERS, OUT, ROOT, fluxgym

ENV = {"HOME": "/home/me", "V": "v w", "EMPTY": "", "WIDE": " l  m ", "STAR": "*", "PATH": "/bin"}


def argv(text: str) -> list[str]:
    return list(parse_text(text, "train.sh", ENV).argv)


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("sample", [False, True])
@pytest.mark.parametrize("vram", OPTIMIZERS)
def test_every_script_of_fluxgym_is_read_as_bash_reads_it(vram: str, sample: bool, newline: str) -> None:
    words = argv(fluxgym(vram, sample=sample, newline=newline))
    assert words[:2] == ["accelerate", "launch"]
    assert words[6] == "sd-scripts/flux_train_network.py"
    assert words[words.index("--ae") + 1] == f"{ROOT}/models/vae/ae.sft"
    assert words[words.index("--output_dir") + 1 :][:3] == [OUT, "--output_name", NAME]
    assert (f"--sample_prompts={OUT}/sample_prompts.txt" in words) is sample
    assert ("--sample_every_n_steps=200" in words) is sample
    assert ("--split_mode" in words) is (vram == "12G")
    assert words[-2:] == ["--loss_type", "l2"]
    assert "\\" not in "".join(words)
    if vram != "20G":
        at = words.index("--optimizer_args")
        assert words[at + 1 : at + 4] == ["relative_step=False", "scale_parameter=False", "warmup_init=False"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a b", ["a", "b"]),
        ("#!/bin/bash\n\n# why\na b # c\n\n", ["a", "b"]),
        ("a b#c '#d'", ["a", "b#c", "#d"]),
        ("a \\\n  b \\\n", ["a", "b"]),
        ("a b \\", ["a", "b"]),
        ("a b\\\nc", ["a", "bc"]),
        ("a b \\--c", ["a", "b", "--c"]),
        ('a \'b  $V\' "c $V" "\\$V \\q \\""', ["a", "b  $V", "c v w", '$V \\q "']),
        ("a b\\ c \\$V '' \"\"", ["a", "b c", "$V", "", ""]),
        ('a $V ${V}x "$V"', ["a", "v", "w", "v", "wx", "v w"]),
        ("a p$WIDE'q' $EMPTY \"$EMPTY\"", ["a", "p", "l", "m", "q", ""]),
        ("a ~ ~/b x=~/c '~' --d=~/e f~", ["a", "/home/me", "/home/me/b", "x=/home/me/c", "~", "--d=~/e", "f~"]),
        ("a '1\n2' \"3\\\n4\"", ["a", "1\n2", "34"]),
        ('a "b*" \'?\' "$STAR" "$" %1 ^ !', ["a", "b*", "?", "*", "$", "%1", "^", "!"]),
        ("exec a b", ["a", "b"]),
        ("exec env A=b a c", ["a", "c"]),
        ("set -euo pipefail\nset +x\na", ["a"]),
        ("P=/x/python\n$P -m b", ["/x/python", "-m", "b"]),
        ("export X=1 Y=2\na $X$Y", ["a", "12"]),
        ("source /v/bin/activate\na $VIRTUAL_ENV", ["a", "/v"]),
    ],
)
def test_words_are_what_bash_would_pass(text: str, words: list[str]) -> None:
    assert argv(text) == words


@pytest.mark.parametrize(
    ("text", "exports"),
    [
        ("export A=b\nx", {"A": "b"}),
        ("export A='b c' B=$V\nx", {"A": "b c", "B": "v w"}),
        ("A=b\nx", {}),
        ("A=b\nexport A\nA=c\nx", {"A": "c"}),
        ("V=new\nx", {"V": "new"}),  # an inherited variable stays exported
        ("A=1 B=$A x", {"A": "1", "B": "1"}),
        ("env A=1 'B=2 3' x", {"A": "1", "B": "2 3"}),
        ("export A=~/b:~/c\nx", {"A": "/home/me/b:/home/me/c"}),
        ("export NEVER\nx", {}),
        ("export A=1\nexport A=2$A\nx", {"A": "21"}),
    ],
)
def test_only_what_is_exported_reaches_the_trainer(text: str, exports: dict[str, str]) -> None:
    assert parse_text(text, "train.sh", ENV).env == exports


@pytest.mark.parametrize(
    ("text", "cwd", "activate"),
    [
        ("x", None, None),
        ("cd '/a b'\ncd c\nx", "/a b/c", None),
        ("cd -- d\nx", "d", None),
        ("source env/bin/activate\ncd /a\nx", "/a", "env"),
        ("cd /a\n. env/bin/activate\nx", "/a", "/a/env"),
        (". '/v 1/Scripts/activate'\nx", None, "/v 1"),
    ],
)
def test_folder_and_environment_are_taken_from_their_lines(text: str, cwd: str | None, activate: str | None) -> None:
    script = parse_text(text, "train.sh", ENV)
    assert script.cwd == (None if cwd is None else Path(cwd))
    assert script.activate == (None if activate is None else Path(activate))


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (1, "a | tee log"),
        (1, "a > log"),
        (1, "a 2>&1"),
        (1, "a < in"),
        (1, "a &"),
        (1, "a && b"),
        (1, "a; b"),
        (1, "a `b`"),
        (1, "a $(b)"),
        (1, 'a "$(b)"'),
        (1, 'a "`b`"'),
        (1, "(a)"),
        (1, "f() { a; }"),
        (1, "a *.png"),
        (1, "a b?"),
        (1, "a [bc]"),
        (1, "a {b,c}"),
        (1, "a $STAR"),
        (1, "a ${V:-b}"),
        (1, 'a "$@"'),
        (1, "a $1"),
        (1, "a $'b'"),
        (1, "a $"),
        (1, "a ~you/b"),
        (1, "a $VA\\\nB"),
        (1, "a 'b\n"),
        (1, 'a "b\n'),
        (2, "a\nb"),
        (2, "a\nexport A=b"),
        (3, "a \\\n# why\n--b"),
        (1, "a \\ \n--b"),
        (2, "\na \\\t\n--b"),
        (1, "if true"),
        (1, "for i in 1 2"),
        (1, "while true"),
        (1, "! a"),
        (2, "\necho start\na"),
        (1, "eval a"),
        (1, "cd"),
        (1, "cd -"),
        (1, "cd a b"),
        (1, "A=1 cd a"),
        (1, "source run.sh"),
        (1, ". bin"),
        (2, "source a/bin/activate\nsource b/bin/activate"),
        (1, "set -- a"),
        (1, "set -a"),
        (1, "export -n A"),
        (1, "export A+=b"),
        (1, "A+=b"),
        (1, "env -i a"),
        (1, "env"),
        (1, "exec -a b c"),
        (1, "$EMPTY"),
        (1, "\x7fELF\x02\x01"),
        (2, "a\n\x00"),
        (1, "a\rb"),
    ],
)
def test_whatever_else_is_refused_with_its_line_and_a_way_around(line: int, text: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_text(text, "train.sh", ENV)
    assert caught.value.source == f"train.sh:{line}"
    assert INSTEAD in caught.value.reason


def test_a_variable_that_is_not_set_is_named() -> None:
    with pytest.raises(InputError, match=r"train\.sh:2: \$NOWHERE is not set"):
        parse_text('# why\na "$NOWHERE"', "train.sh", ENV)


def test_a_damaged_script_is_read_or_refused_and_nothing_else() -> None:
    chance = random.Random(1)
    whole = fluxgym("12G", sample=True)
    for _ in range(40):
        at = chance.randrange(len(whole))
        damage = "".join(chance.choices("\\\"'$`~{}#=\n\r \t&;a", k=chance.randrange(4)))
        text = whole[:at] + damage + whole[at + chance.randrange(3) :]
        with contextlib.suppress(InputError):
            script = parse_text(text, "train.sh", ENV)
            assert parse_text(render(script), "train.sh", {}) == script


@pytest.mark.parametrize("text", ["", "\n", "# nothing", "export A=b", "cd /a"])
def test_a_script_without_a_command_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="holds no command"):
        parse_text(text, "train.sh", ENV)


@pytest.mark.parametrize("content", [None, b"\xff\xfe\x00a", b"\x7fELF\x02\x01\x01\x00" * 9, b"a \xe4"])
def test_a_file_that_is_no_script_is_an_input_error(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "train.sh"
    if content is not None:
        path.write_bytes(content)
    for place in (path, tmp_path):
        with pytest.raises(InputError):
            parse(place, ENV)


def test_a_file_is_read_with_a_byte_order_mark_too(tmp_path: Path) -> None:
    (tmp_path / "train.sh").write_bytes(b"\xef\xbb\xbfa 'b \xc3\xa4'\r\n")
    assert parse(tmp_path / "train.sh", ENV).argv == ("a", "b \u00e4")


@pytest.mark.parametrize(
    "script",
    [
        Script(argv=("a",)),
        Script(argv=("a", "", " ", "it's", '"', "$V", "`x`", "*", "~", "#", "a\nb", "\\", "\u00e4", "--x=$(y)", "A=b")),
        Script(argv=("/p q/python", "-m", "x"), cwd=Path("/a b"), env={"A": "it's $V", "B": "", "C": "1\n2"}),
        Script(argv=("a",), cwd=Path("-odd"), activate=Path("it's/env")),
        parse_text(fluxgym("12G", sample=True), "train.sh", ENV),
    ],
)
def test_what_is_written_is_read_back_equal(script: Script) -> None:
    assert parse_text(render(script), "train.sh", {}) == script


@pytest.mark.parametrize(
    "script",
    [
        Script(argv=()),
        Script(argv=("cd", "a")),
        Script(argv=("exec", "a")),
        Script(argv=("A=b", "a")),
        Script(argv=("a", "b\x00")),
        Script(argv=("a", "b\r\nc")),
        Script(argv=("a",), env={"not a name": "b"}),
        Script(argv=("a",), cwd=Path("-")),
    ],
)
def test_what_no_script_can_say_is_not_written(script: Script) -> None:
    with pytest.raises(InputError):
        render(script)
