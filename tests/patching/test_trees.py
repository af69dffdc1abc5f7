"""Trees as users have them: odd names, links, rights, encodings, line breaks, git."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fluxguard.errors import InputError, PatchError, RuleMissed
from fluxguard.patching import (
    Rule,
    apply,
    check,
    diff,
    hardening,
    is_hardened,
    journal,
    plan,
    planning,
    revert,
    sharing,
)
from fluxguard.patching.places import IMPORT
from fluxguard.patching.vendored import IMPORT_INSIDE, vendored
from tests.patching.conftest import snapshot, waits


@pytest.fixture
def no_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """From here on, nothing is parsed."""

    def refuse(*arguments: object) -> None:
        pytest.fail("searched")

    monkeypatch.setattr(planning, "rewrite", refuse)


def test_a_checkout_may_lie_anywhere(checkout: Path) -> None:
    odd = checkout.with_name("mes éditions 训练")
    checkout.rename(odd)
    before = snapshot(odd)
    assert apply(odd).hardened
    revert(odd)
    assert snapshot(odd) == before


@pytest.mark.parametrize(
    "data",
    [
        b"# -*- coding: latin-1 -*-\nx = '\xe9', wait()\n",
        b"x = 1\r\nwait()\r\n",
        b"wait()",
        b"\xef\xbb\xbfwait()\n",
        b"x = 1\r\ny = 2\nwait()\r\n",
    ],
    ids=["latin-1", "crlf", "no last line break", "bom", "mixed"],
)
def test_bytes_around_the_sites_stay(checkout: Path, data: bytes) -> None:
    path = checkout / "library/odd.py"
    path.write_bytes(data)
    apply(checkout)
    changed = path.read_bytes()
    assert changed != data
    compile(changed, str(path), "exec")
    revert(checkout)
    assert path.read_bytes() == data


def test_a_file_in_an_unknown_encoding_is_skipped_and_named(checkout: Path) -> None:
    (checkout / "library/odd.py").write_bytes(b"x = '\xe9', wait()\n")
    assert "library/odd.py" in apply(checkout).skipped


def test_files_that_are_not_touched_keep_their_times_and_a_reverted_one_gets_its_own_back(checkout: Path) -> None:
    times = {path: path.stat().st_mtime_ns for path in checkout.rglob("*.py")}
    apply(checkout)
    touched = {path for path, time in times.items() if path.stat().st_mtime_ns != time}
    assert {path.name for path in touched} == {"flux_train_network.py", "util.py", "tool.py"}
    revert(checkout)
    assert {path: path.stat().st_mtime_ns for path in checkout.rglob("*.py")} == times


def test_a_file_for_reading_only_is_hardened_and_stays_so(checkout: Path) -> None:
    path = checkout / "flux_train_network.py"
    path.chmod(0o444)
    before = snapshot(checkout)
    assert apply(checkout).hardened
    assert path.stat().st_mode & 0o777 == 0o444
    revert(checkout)
    assert snapshot(checkout) == before


def test_a_link_out_of_the_checkout_is_named_and_not_followed(checkout: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "shared.py").write_text("wait()\n")
    (checkout / "library/shared.py").symlink_to(outside / "shared.py")
    (checkout / "networks").symlink_to(outside, target_is_directory=True)
    (checkout / "again.py").symlink_to(checkout / "train_network.py")
    report = apply(checkout)
    assert set(report.skipped) == {"library/shared.py", "networks", "library/broken.py"}
    assert (outside / "shared.py").read_text() == "wait()\n"
    copy = apply(checkout, to=tmp_path / "copy").checkout
    assert "fluxguard.wait()" in (copy / "networks/shared.py").read_text(), "a copy holds the files themselves"
    assert (outside / "shared.py").read_text() == "wait()\n"


def test_what_is_no_source_is_left_alone(checkout: Path) -> None:
    for name in ("outputs/run.py", "env/x.py", "my/venv/lib/x.py", "library/models/x.py", ".hidden/x.py"):
        (checkout / name).parent.mkdir(parents=True, exist_ok=True)
        (checkout / name).write_text("wait()\n")
    (checkout / "my/venv/pyvenv.cfg").touch()
    names = {change.path for change in plan(checkout).changes}
    assert names == {"flux_train_network.py", "library/util.py", "tools/tool.py", "library/models/x.py"}


@pytest.mark.parametrize("name", ["gen_img.py", "sdxl_gen_img.py", "flux_minimal_inference.py"])
def test_what_only_draws_pictures_is_left_alone(checkout: Path, name: str) -> None:
    (checkout / name).write_text("wait()\n")
    (checkout / "library" / name).write_text("wait()\n")
    assert {change.path for change in plan(checkout).changes} & {name, f"library/{name}"} == {f"library/{name}"}


def test_a_repository_that_changes_line_breaks_is_clean_again(checkout: Path) -> None:
    git = shutil.which("git")
    if git is None:
        pytest.skip("no git")

    def run(*words: str) -> str:
        env = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "HOME": str(checkout.parent)}
        command = [git, "-c", "user.name=x", "-c", "user.email=x@example.org", "-c", "core.safecrlf=false", *words]
        return subprocess.run(command, cwd=checkout, env=env, capture_output=True, text=True, check=True).stdout

    shutil.rmtree(checkout / ".git")
    run("init", "-q")
    run("config", "core.autocrlf", "true")
    run("add", "-A")
    run("commit", "-qm", "x")
    for name in run("ls-files", "*.py").split():
        (checkout / name).unlink()
    run("checkout", "-q", "--", ".")
    before = snapshot(checkout / "library")
    assert b"\r\n" in (checkout / "flux_train_network.py").read_bytes()
    apply(checkout)
    run("stash", "-q")  # git takes the hardened files away and brings them back, with its own line breaks
    run("stash", "pop", "-q")
    revert(checkout)
    assert run("status", "--porcelain") == ""
    assert snapshot(checkout / "library") == before


def test_other_line_breaks_are_no_edit_and_stay(checkout: Path) -> None:
    path = checkout / "flux_train_network.py"
    plain = path.read_bytes()
    apply(checkout)
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    assert check(checkout).edited == ()
    revert(checkout)
    assert path.read_bytes() == plain.replace(b"\n", b"\r\n")


def test_a_torn_file_is_restored(checkout: Path) -> None:
    before = snapshot(checkout)
    for torn in (b"", b"\0" * 100):
        apply(checkout)
        (checkout / "flux_train_network.py").write_bytes(torn)
        revert(checkout)
        assert snapshot(checkout) == before


def test_what_python_compiled_of_ours_goes_too(checkout: Path) -> None:
    before = snapshot(checkout)
    apply(checkout)
    for folder in ("fluxguard", "fluxguard/guard"):
        (checkout / folder / "__pycache__").mkdir()
        (checkout / folder / "__pycache__/saves.cpython-311.pyc").touch()
    revert(checkout)
    assert snapshot(checkout) == before


def test_a_lost_stamp_is_said(checkout: Path) -> None:
    apply(checkout)
    (checkout / ".fluxguard-stamp.json").unlink()
    shutil.rmtree(checkout / "fluxguard")
    with pytest.raises(PatchError, match="stamp is gone"):
        apply(checkout)
    assert not check(checkout).hardened


def test_lost_originals_are_said(checkout: Path) -> None:
    apply(checkout)
    shutil.rmtree(checkout / ".fluxguard-originals")
    with pytest.raises(PatchError, match="git checkout"):
        revert(checkout)


def test_a_tree_that_is_as_it_was_left_is_not_searched(checkout: Path, request: pytest.FixtureRequest) -> None:
    done = apply(checkout)
    request.getfixturevalue("no_search")
    assert check(checkout) == done
    assert apply(checkout) == done


@pytest.mark.parametrize("name", ["train_network.py", "flux_train_network.py", "fluxguard/__init__.py"])
def test_any_change_in_the_tree_is_searched(checkout: Path, name: str) -> None:
    apply(checkout)
    (checkout / name).write_text("wait()\n")
    assert not check(checkout).hardened


def test_chosen_rules_are_remembered(checkout: Path, rules: list[Rule]) -> None:
    before = snapshot(checkout)
    rules.append(waits("ends", find="pass", required=False))
    assert apply(checkout, only=["waits"]).left_out == ("ends",)
    assert [row.rule for row in check(checkout).rows] == ["waits"]
    assert check(checkout).left_out == ("ends",)
    assert is_hardened(checkout), "no required rule was left out"
    assert apply(checkout, skip=["waits"]).left_out == ("waits",)
    assert not is_hardened(checkout)
    assert b"fluxguard" not in (checkout / "library/util.py").read_bytes()
    assert b"fluxguard.pass" not in (checkout / "train_network.py").read_bytes(), "it would not compile"
    assert apply(checkout).left_out == ()
    revert(checkout)
    assert snapshot(checkout) == before


def test_an_unknown_rule_names_the_known_ones(checkout: Path) -> None:
    with pytest.raises(InputError, match=r"no rule 'wait'; known are waits"):
        apply(checkout, only=["wait"])


def test_a_site_that_cannot_be_changed_is_reported_and_misses_its_rule(checkout: Path) -> None:
    path = checkout / "library/util.py"
    path.write_text('x = wait(), """a\nb"""\n')
    with pytest.raises(RuleMissed, match=r"cannot protect all.*library/util\.py:1: waits"):
        apply(checkout)
    report = apply(checkout, partial=True)
    [failed] = report.failed
    assert (failed.file, failed.line, failed.rule) == ("library/util.py", 1, "waits")
    assert report.rows[0].unguarded == 1
    assert "waits" in report.missed
    assert not check(checkout).hardened


def test_the_diff_is_what_git_applies(checkout: Path, tmp_path: Path) -> None:
    text = diff(plan(checkout))
    apply(checkout)
    assert diff(plan(checkout)) == text
    assert text.startswith(b"--- a/flux_train_network.py\n+++ b/flux_train_network.py\n")
    if git := shutil.which("git"):
        revert(checkout)
        subprocess.run([git, "apply", "-"], cwd=checkout, input=text, check=True)
        assert b"fluxguard.wait()" in (checkout / "library/util.py").read_bytes()


def test_work_is_the_same_however_many_do_it(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = plan(checkout)
    monkeypatch.setattr(sharing, "_WORTH_IT", 0)
    monkeypatch.setattr(sharing, "_processes", lambda: 3 if hasattr(os, "fork") else 1)
    assert plan(checkout) == alone


SIGHT = "import sys, threading; before = set(sys.path); from library import fluxguard; import fluxguard as root; "


@pytest.mark.integration
def test_a_script_anywhere_finds_the_guard(checkout: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(hardening, "vendored", vendored)
    (checkout / "fluxguard").mkdir(exist_ok=True)
    (checkout / "fluxguard").rmdir()
    apply(checkout)
    assert f"{IMPORT}  #" in (checkout / "flux_train_network.py").read_text()
    assert f"{IMPORT_INSIDE}  #" in (checkout / "tools/tool.py").read_text()
    script = checkout / "tools/sight.py"
    script.write_text(f"{SIGHT}print(root is fluxguard, root.step.__module__, threading.active_count())")
    installed = tmp_path / "installed"
    installed.mkdir()
    (installed / "library").symlink_to(checkout / "library", target_is_directory=True)
    ran = subprocess.run(
        [sys.executable, "-S", script], cwd=tmp_path, env={"PYTHONPATH": str(installed)}, capture_output=True, text=True
    )
    assert ran.stdout == "True fluxguard.guard.pulse 1\n", ran.stderr
    assert ran.stderr == ""
    script.unlink()
    revert(checkout)
    assert not (checkout / "library/fluxguard.py").exists()
    assert not list((checkout / "library").rglob("fluxguard*"))


def test_what_was_edited_after_a_kill_is_not_overwritten(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of it is hardened; somebody pulls one file and edits another before we come back."""
    originals = {name: (checkout / name).read_bytes() for name in ("library/util.py", "tools/tool.py")}
    monkeypatch.setattr(journal, "recover", lambda root: None)

    def dies(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "unlink", dies)  # when all files are renamed
    with pytest.raises(KeyboardInterrupt):
        apply(checkout)
    monkeypatch.undo()
    assert (checkout / "library/util.py").read_bytes() != originals["library/util.py"]
    (checkout / "library/util.py").write_bytes(b"# pulled\n")
    journal.recover(checkout)
    assert (checkout / "library/util.py").read_bytes() == b"# pulled\n"
    assert (checkout / "library/util.py.before-fluxguard").read_bytes() == originals["library/util.py"]
    assert (checkout / "tools/tool.py").read_bytes() == originals["tools/tool.py"]


def test_a_revert_without_a_stamp_is_no_success(checkout: Path) -> None:
    apply(checkout)
    (checkout / ".fluxguard-stamp.json").unlink()
    with pytest.raises(PatchError, match="stamp is gone"):
        revert(checkout)


def test_a_guard_that_is_gone_is_not_hardened(checkout: Path) -> None:
    apply(checkout)
    shutil.rmtree(checkout / "fluxguard")
    found = check(checkout)
    assert not found.hardened
    assert "fluxguard/guard/saves.py" in found.lost
    assert apply(checkout).hardened
    assert check(checkout).hardened


def test_a_copy_into_the_checkout_itself_is_refused(checkout: Path) -> None:
    with pytest.raises(InputError, match="in the checkout itself"):
        apply(checkout, to=checkout / "copy")
