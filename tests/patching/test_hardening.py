"""A checkout is hardened whole or not at all, and everything can be taken back byte for byte."""

from __future__ import annotations

import codecs
import re
from pathlib import Path

import pytest

from fluxguard.errors import CheckoutChanged, InputError, PatchError, RuleMissed, UnknownCheckout
from fluxguard.patching import Rule, apply, check, hardened_copy, is_hardened, plan, revert
from fluxguard.patching.vendored import guard
from tests.patching.conftest import TRAINER, snapshot, waits


def test_a_plan_touches_nothing(checkout: Path) -> None:
    before = snapshot(checkout)
    planned = plan(checkout)
    assert [change.path for change in planned.changes] == ["flux_train_network.py", "library/util.py", "tools/tool.py"]
    assert planned.changes[1].after == (
        codecs.BOM_UTF8
        + "# é\r\nfrom library import fluxguard  # fluxguard: import\r\n".encode()
        + b"x = fluxguard.wait()  # fluxguard: waits\r\n"
    )
    assert snapshot(checkout) == before


def test_files_that_do_not_parse_are_skipped_and_named(checkout: Path) -> None:
    report = apply(checkout)
    assert list(report.skipped) == ["library/broken.py"]
    assert (checkout / "library/broken.py").read_bytes() == b"x = = wait()\n"


def test_hardening_brings_its_guard_and_says_what_it_did(checkout: Path) -> None:
    report = apply(checkout)
    assert report.hardened
    assert (report.rows[0].sites, report.rows[0].unguarded, len(report.rows[0].files)) == (3, 0, 3)
    assert is_hardened(checkout)
    assert check(checkout).hardened
    assert (checkout / "fluxguard/guard/saves.py").read_text() == "# guard\n"


def test_the_guard_that_is_brought_imports_nothing_that_stays_behind() -> None:
    brought = guard()
    modules = {name.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for name in brought}
    for name, data in brought.items():
        for imported in re.findall(r"^ *(?:from|import) fluxguard\.([\w.]+)", data.decode(), re.MULTILINE):
            assert imported in modules, f"{name} imports {imported}"


def test_an_unhardened_checkout_shows_its_open_sites(checkout: Path) -> None:
    report = check(checkout)
    assert not report.hardened
    assert (report.rows[0].sites, report.rows[0].unguarded) == (0, 3)
    assert not is_hardened(checkout)


def test_reverting_restores_every_byte(checkout: Path) -> None:
    before = snapshot(checkout)
    apply(checkout)
    assert snapshot(checkout) != before
    assert set(revert(checkout)) == {"flux_train_network.py", "library/util.py", "tools/tool.py"}
    assert snapshot(checkout) == before
    assert revert(checkout) == ()


def test_hardening_twice_is_the_same_as_once(checkout: Path) -> None:
    apply(checkout)
    once = snapshot(checkout)
    apply(checkout)
    assert snapshot(checkout) == once


def test_a_new_rule_hardens_a_hardened_checkout_further(checkout: Path, rules: list[Rule]) -> None:
    before = snapshot(checkout)
    apply(checkout)
    rules.append(waits("ends", find="exit()", required=False))
    (checkout / "train_network.py").write_text("exit()\n")
    before["train_network.py"] = (before["train_network.py"][0], b"exit()\n")
    assert check(checkout).rows[1].unguarded == 1
    assert apply(checkout).rows[1].sites == 1
    assert b"fluxguard.exit()" in (checkout / "train_network.py").read_bytes()
    revert(checkout)
    assert snapshot(checkout) == before


def test_a_missed_rule_changes_nothing(checkout: Path, rules: list[Rule]) -> None:
    rules.append(waits("missing", find="nowhere()"))
    before = snapshot(checkout)
    with pytest.raises(RuleMissed, match="missing"):
        apply(checkout)
    assert snapshot(checkout) == before
    report = apply(checkout, partial=True)
    assert report.missed == ("missing",)
    assert not report.hardened


def test_a_rule_may_promise_nothing_where_its_weakness_does_not_exist(checkout: Path, rules: list[Rule]) -> None:
    rules.append(waits("elsewhere", find="nowhere()", unless_without="swap_blocks"))
    assert plan(checkout).missed == ()
    (checkout / "library/util.py").write_text("swap_blocks = 1\nwait()\n")
    assert plan(checkout).missed == ("elsewhere",)


def test_a_site_off_the_path_of_flux_proves_nothing(checkout: Path) -> None:
    path = checkout / "flux_train_network.py"
    path.write_text(TRAINER.replace("wait()", "pass"))
    assert plan(checkout).missed == ()
    path.write_text("import os\n")
    assert "library/util.py" in plan(checkout).sites
    assert plan(checkout).missed == ("waits",)


def test_a_rule_without_required_misses_nothing(checkout: Path, rules: list[Rule]) -> None:
    rules.append(waits("extra", find="nowhere()", required=False))
    assert apply(checkout).hardened


def test_only_a_checkout_with_flux_promises_sites(checkout: Path, rules: list[Rule]) -> None:
    rules.append(waits("missing", find="nowhere()"))
    (checkout / "flux_train_network.py").unlink()
    assert apply(checkout).missed == ()


def test_an_edited_file_stays_and_the_others_are_restored(checkout: Path) -> None:
    before = snapshot(checkout)
    apply(checkout)
    path = checkout / "library/util.py"
    left = path.read_bytes()
    path.write_bytes(left + b"# mine\r\n")
    with pytest.raises(CheckoutChanged, match=r"library/util\.py"):
        apply(checkout)
    assert not is_hardened(checkout)
    assert check(checkout).edited == ("library/util.py",)
    for _ in range(2):
        with pytest.raises(CheckoutChanged, match=r"library/util\.py"):
            revert(checkout)
        after = snapshot(checkout)
        assert path.read_bytes() == left + b"# mine\r\n"
        assert {name for name in before if after.get(name) != before[name]} == {"library/util.py"}
        assert "fluxguard/__init__.py" in after, "what the edited file calls stays"
        assert after[".fluxguard-originals/library/util.py"] == before["library/util.py"]
    path.write_bytes(left)
    assert revert(checkout) == ("library/util.py",)
    assert snapshot(checkout) == before


def test_a_file_that_git_replaced_is_hardened_anew(checkout: Path) -> None:
    apply(checkout)
    pulled = b"# newer\ny = wait()\n"
    (checkout / "library/util.py").write_bytes(pulled)
    assert check(checkout).rows[0].unguarded == 1
    apply(checkout)
    assert b"y = fluxguard.wait()" in (checkout / "library/util.py").read_bytes()
    revert(checkout)
    assert (checkout / "library/util.py").read_bytes() == pulled


def test_a_hardened_copy_leaves_the_checkout_as_it_was(checkout: Path, tmp_path: Path) -> None:
    before = snapshot(checkout)
    report = apply(checkout, to=tmp_path / "copy")
    assert report.checkout == tmp_path / "copy"
    assert snapshot(checkout) == before
    copied = snapshot(report.checkout)
    assert {"LICENSE.md", "tools/tool.py"} <= set(copied)
    assert not {"model.safetensors", "venv/lib.py", ".git/HEAD"} & set(copied)
    assert is_hardened(report.checkout)


def test_a_linked_folder_stays_a_link_in_a_copy(checkout: Path, tmp_path: Path) -> None:
    (checkout / "loop").symlink_to(checkout, target_is_directory=True)
    copy = apply(checkout, to=tmp_path / "copy").checkout
    assert (copy / "loop").is_symlink()
    assert (copy / "loop").resolve() == checkout


def test_a_copy_of_a_hardened_checkout_is_reverted_to_the_original(checkout: Path, tmp_path: Path) -> None:
    apply(checkout)
    apply(checkout, to=tmp_path / "copy")
    revert(tmp_path / "copy")
    assert (tmp_path / "copy/flux_train_network.py").read_text() == TRAINER


def test_a_copy_that_fails_leaves_nothing(checkout: Path, tmp_path: Path, rules: list[Rule]) -> None:
    rules.append(waits("missing", find="nowhere()"))
    with pytest.raises(RuleMissed):
        apply(checkout, to=tmp_path / "copy")
    assert [path.name for path in tmp_path.iterdir()] == ["sd-scripts"]


def test_a_copy_never_overwrites(checkout: Path, tmp_path: Path) -> None:
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy" / "mine").touch()
    with pytest.raises(InputError, match="not empty"):
        apply(checkout, to=tmp_path / "copy")


def test_the_copy_for_a_run_is_made_once_and_named_by_what_is_in_it(checkout: Path) -> None:
    first = hardened_copy(checkout).checkout
    assert first.parent == checkout.parent
    assert hardened_copy(checkout).checkout == first
    (checkout / "library/util.py").write_text("wait()\nz = 1\n")
    assert hardened_copy(checkout).checkout != first


def test_another_folder_is_no_checkout(tmp_path: Path) -> None:
    with pytest.raises(UnknownCheckout, match=r"flux_train_network\.py or train_network\.py"):
        apply(tmp_path)


def test_a_foreign_folder_of_our_name_is_not_overwritten(checkout: Path) -> None:
    (checkout / "fluxguard").mkdir()
    (checkout / "fluxguard/mine.py").touch()
    with pytest.raises(PatchError, match="is not ours"):
        apply(checkout)
