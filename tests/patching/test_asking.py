"""The command `fluxguard apply-patches`, as a user meets it: answers, exit codes, and FluxGym around a checkout."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from fluxguard import cli
from fluxguard.patching import Rule, rules
from fluxguard.patching.stamp import read
from tests.patching.conftest import snapshot, waits

Ask = Callable[..., tuple[int, str, str]]
PAGE = """\
import gradio
from gradio_logsview import LogsView, LogsViewRunner

def train(run):
    yield from run.go(1)
"""


@pytest.fixture
def ask(monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]) -> Ask:
    """Run the command line here; return its code and what it said."""

    def run(*words: str | Path) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["fluxguard", "apply-patches", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        sys.stdout.flush()
        out, err = capfdbinary.readouterr()
        return int(ended.value.code or 0), out.decode(), err.decode()

    return run


@pytest.fixture
def fluxgym(checkout: Path, rules_in_force: list[Rule], tmp_path: Path) -> Path:
    """A FluxGym around the checkout, and a rule for its page."""
    page = replace(waits("page", find="run.go($A)"), checkout="fluxgym")
    edit = replace(page.edits[0], needs="run.go(", text="fluxguard.go(run, $A)")
    rules_in_force.append(replace(page, edits=(edit,)))
    root = tmp_path / "fluxgym"
    root.mkdir()
    checkout.rename(root / "sd-scripts")
    (root / "app.py").write_text(PAGE)
    (root / "other.py").write_text("wait()\n")
    return root


@pytest.fixture
def rules_in_force(rules: list[Rule], monkeypatch: pytest.MonkeyPatch) -> list[Rule]:
    """The rules, for whoever asks for them."""
    monkeypatch.setattr("fluxguard.patching.rules.load_rules", lambda: tuple(rules))
    return rules


def test_applying_checking_and_reverting(ask: Ask, checkout: Path) -> None:
    before = snapshot(checkout)
    code, out, _ = ask(checkout, "--check")
    assert code == 1
    assert "waits" in out
    code, out, _ = ask(checkout)
    assert (code, out.splitlines()[-1]) == (0, f"hardened: {checkout}")
    assert max(map(len, out.splitlines()[:-1])) <= 80, "but for the path"
    assert ask(checkout, "--check")[0] == 0
    assert ask(checkout, "--revert")[:2] == (0, f"restored 3 files in {checkout}\n")
    assert snapshot(checkout) == before


def test_an_edit_is_said_and_kept(ask: Ask, checkout: Path) -> None:
    ask(checkout)
    path = checkout / "library/util.py"
    path.write_bytes(path.read_bytes() + b"# mine\r\n")
    code, out, _ = ask(checkout, "--revert")
    assert code == 1
    assert "library/util.py (2 other files were restored)" in out
    code, _, err = ask(checkout)
    assert code == 1
    assert "edited since it was hardened" in err


def test_a_diff_changes_nothing(ask: Ask, checkout: Path) -> None:
    before = snapshot(checkout)
    code, out, _ = ask(checkout, "--diff")
    assert code == 0
    assert out.startswith("--- a/flux_train_network.py\n")
    assert "+    fluxguard.wait()  # fluxguard: waits\n" in out
    assert snapshot(checkout) == before
    ask(checkout)
    assert ask(checkout, "--diff") == (0, out, "")


def test_json_is_all_that_is_said(ask: Ask, checkout: Path) -> None:
    code, out, err = ask(checkout, "--json")
    said = json.loads(out)
    assert (code, err) == (0, "")
    assert said["checkout"] == str(checkout)
    assert said["rules"][0]["rule"] == "waits"
    assert set(said["rules"][0]) == {
        "rule", "title", "severity", "required", "sites", "unguarded", "files", "missed",
    }  # fmt: skip
    assert {"skipped", "failed", "edited", "changed", "left_out", "hardened", "fluxgym"} < set(said)
    assert json.loads(ask(checkout, "--check", "--json")[1])["rules"] == said["rules"]


def test_a_missed_rule_is_a_bad_answer(ask: Ask, checkout: Path, rules: list[Rule]) -> None:
    rules.append(waits("missing", find="nowhere()"))
    code, _, err = ask(checkout)
    assert (code, err.count("\n")) == (1, 1)
    assert "missing" in err
    code, out, _ = ask(checkout, "--partial")
    assert code == 0
    assert "not protected: missing" in out
    assert ask(checkout, "--check")[0] == 1
    assert ask(checkout, "--skip", "missing")[0] == 0
    code, out, _ = ask(checkout, "--check")
    assert code == 0
    assert "left out: missing" in out


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["--check", "--revert"], ["--check", "contradicts --revert"]),
        (["--to", "x", "--diff"], ["contradicts --diff"]),
        (["--revert", "--partial"], ["contradicts --partial"]),
        (["--revert", "--only", "waits"], ["contradicts --only"]),
        (["--diff", "--json"], ["contradicts --json"]),
        (["--only", "waits", "--skip", "waits"], ["contradicts --skip"]),
        (["--only", "wait"], ["'wait'", "known are waits"]),
        (["--skip", "wait"], ["'wait'", "known are waits"]),
        (["--fluxgym"], ["is no FluxGym"]),
    ],
)
def test_what_cannot_be_meant_is_one_line_and_exit_code_2(
    ask: Ask, checkout: Path, words: list[str], parts: list[str]
) -> None:
    before = snapshot(checkout)
    code, _, err = ask(checkout, *words)
    assert (code, err.count("\n")) == (2, 1)
    for part in parts:
        assert part in err
    assert snapshot(checkout) == before


def test_no_folder_and_no_checkout_are_bad_input(ask: Ask, tmp_path: Path) -> None:
    for folder, said in ((tmp_path / "none", "is no folder"), (tmp_path, "not an sd-scripts checkout")):
        code, _, err = ask(folder)
        assert (code, err.count("\n")) == (2, 1)
        assert said in err


def test_a_fluxgym_is_offered_its_page(ask: Ask, fluxgym: Path) -> None:
    before = snapshot(fluxgym)
    code, out, _ = ask(fluxgym)
    assert code == 0
    assert out.splitlines()[-1] == "FluxGym's own page (app.py) is as it was; --fluxgym hardens it too"
    assert read(fluxgym) is None
    assert b"fluxguard.wait()" in (fluxgym / "sd-scripts/flux_train_network.py").read_bytes()
    assert "own page" not in ask(fluxgym, "--no-fluxgym")[1]
    code, out, _ = ask(fluxgym, "--revert")
    assert code == 0
    assert snapshot(fluxgym) == before


def test_the_page_is_hardened_where_it_lies_and_knows_who_did_it(ask: Ask, fluxgym: Path) -> None:
    before = snapshot(fluxgym)
    assert ask(fluxgym, "--fluxgym")[0] == 0
    page = (fluxgym / "app.py").read_text()
    assert "yield from fluxguard.go(run, 1)  # fluxguard: page" in page
    assert page.startswith("import fluxguard  # fluxguard: import\n")
    stamp = read(fluxgym)
    assert stamp is not None
    assert stamp.python == sys.executable
    assert set(stamp.files) == {"app.py"}
    assert (fluxgym / "fluxguard/__init__.py").is_file()
    assert not (fluxgym / "library").exists()
    assert (fluxgym / "other.py").read_text() == "wait()\n"
    code, out, _ = ask(fluxgym, "--check", "--json")
    assert code == 0
    assert json.loads(out)["fluxgym"]["changed"] == ["app.py"]
    assert "+++ b/app.py" in ask(fluxgym, "--diff")[1]
    assert ask(fluxgym)[0] == 0, "what is hardened stays so"
    assert ask(fluxgym, "--revert")[0] == 0
    assert snapshot(fluxgym) == before


def test_a_fluxgym_without_its_trainer_is_bad_input(ask: Ask, fluxgym: Path, tmp_path: Path) -> None:
    (fluxgym / "sd-scripts").rename(tmp_path / "away")
    code, _, err = ask(fluxgym)
    assert (code, err.count("\n")) == (2, 1)


def test_where_a_rule_belongs_is_one_of_two() -> None:
    assert {rule.checkout for rule in rules.load_rules()} <= {"sd-scripts", "fluxgym"}
