"""Whatever ends hardening, and whenever, the next call finds the tree as it was or as it was to be."""

from __future__ import annotations

import errno
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from itertools import count, cycle
from pathlib import Path

import pytest

from fluxguard.patching import Rule, apply, check, is_hardened, revert
from tests.patching.conftest import snapshot, waits

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(300),
    pytest.mark.skipif(not hasattr(os, "fork"), reason="kills copies of this process"),
    pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning"),  # a worker has a thread that listens
]
WRITES = ("os.rename", "os.link", "os.remove", "os.mkdir", "os.rmdir", "os.chmod", "os.chown", "os.utime")
NEEDS_SPACE = ("open", "os.link", "os.mkdir")
SURVIVED, FAILED, NOT_REACHED = 0, 3, 4
Trees = tuple[dict[str, tuple[int, bytes]], dict[str, tuple[int, bytes]]]
Action = Callable[[Path], object]
ACTIONS: dict[str, Action] = {"apply": apply, "check": check, "revert": revert}


def at_write(root: Path, act: Callable[[int, str], None]) -> None:
    """From now on, do `act` before each operation of this process that changes something below `root`."""
    numbers = count(1)

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        changes = event in WRITES or (
            event == "open" and isinstance(arguments[2], int) and bool(arguments[2] & (os.O_WRONLY | os.O_RDWR))
        )
        if changes and any(str(root) in str(argument) for argument in arguments[:2]):
            act(next(numbers), event)

    sys.addaudithook(hook)


def in_a_child(act: Callable[[], object]) -> int:
    """Do something in a copy of this process; return how that ended."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    code = FAILED
    with suppress(OSError):
        act()
        code = SURVIVED
    os._exit(code)


def killed_at(number: int, root: Path, action: Action) -> bool:
    """Kill an action at its `number`th write; return whether there was one."""

    def kill(at: int, event: str) -> None:
        if at == number:
            os.kill(os.getpid(), signal.SIGKILL)

    def act() -> None:
        at_write(root, kill)
        action(root)

    return in_a_child(act) == -signal.SIGKILL


def failed_at(number: int, root: Path, action: Action, error: int) -> int:
    """Let the `number`th write of an action fail, and on a full disk all after it that need space."""
    last = 0

    def fail(at: int, event: str) -> None:
        nonlocal last
        last = at
        if at == number or (at > number and error == errno.ENOSPC and event in NEEDS_SPACE):
            raise OSError(error, os.strerror(error))

    def act() -> None:
        at_write(root, fail)
        action(root)
        if last < number:
            os._exit(NOT_REACHED)

    return in_a_child(act)


@pytest.fixture
def trees(checkout: Path) -> Trees:
    """The tree before and after hardening."""
    plain = snapshot(checkout)
    apply(checkout)
    hardened = snapshot(checkout)
    revert(checkout)
    assert snapshot(checkout) == plain
    return plain, hardened


def test_a_kill_at_any_write_of_apply_is_repaired(checkout: Path, trees: Trees) -> None:
    plain, hardened = trees
    for number, (name, repair) in zip(count(1), cycle(ACTIONS.items()), strict=False):
        if not killed_at(number, checkout, apply):
            break
        repair(checkout)
        assert snapshot(checkout) in {"apply": [hardened], "revert": [plain], "check": [plain, hardened]}[name]
        revert(checkout)
        assert snapshot(checkout) == plain
    assert number > 40


def test_a_kill_at_any_write_of_revert_is_repaired(checkout: Path, trees: Trees) -> None:
    plain, hardened = trees
    apply(checkout)
    for number, (name, repair) in zip(count(1), cycle(ACTIONS.items()), strict=False):
        if not killed_at(number, checkout, revert):
            break
        repair(checkout)
        assert snapshot(checkout) in {"apply": [hardened], "revert": [plain], "check": [plain, hardened]}[name]
        apply(checkout)
        assert snapshot(checkout) == hardened
    assert number > 30


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EACCES])
@pytest.mark.parametrize("name", ["apply", "revert"])
def test_a_write_that_fails_leaves_the_tree_as_it_was(checkout: Path, trees: Trees, error: int, name: str) -> None:
    plain, hardened = trees
    before, after = (plain, hardened) if name == "apply" else (hardened, plain)
    back = revert if name == "apply" else apply
    back(checkout)
    failures = 0
    for number in count(1):
        ended = failed_at(number, checkout, ACTIONS[name], error)
        if ended == NOT_REACHED:
            break
        failures += ended == FAILED
        if ended == SURVIVED:  # it went another way, or only what was left to clear away could not be cleared
            check(checkout)
            assert snapshot(checkout) == after
            back(checkout)
        assert snapshot(checkout) == before, f"write {number}"
    assert failures > 20


def test_a_kill_of_another_set_of_rules_keeps_the_way_back(checkout: Path, rules: list[Rule]) -> None:
    plain = snapshot(checkout)
    rules.append(waits("ends", find="pass", required=False))
    apply(checkout, skip=["ends"])
    for number in count(1):
        if not killed_at(number, checkout, apply):
            break
        revert(checkout)
        assert snapshot(checkout) == plain
        apply(checkout, skip=["ends"])
    apply(checkout)
    assert is_hardened(checkout)
    revert(checkout)
    assert snapshot(checkout) == plain


def test_a_file_that_cannot_be_written_whole_leaves_the_tree_as_it_was(checkout: Path) -> None:
    import resource

    (checkout / "library/long.py").write_bytes(b"wait()\n# " + b"long " * 20000 + b"\n")
    before = snapshot(checkout)

    def act() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
        apply(checkout)

    assert in_a_child(act) == FAILED
    assert snapshot(checkout) == before


def test_two_at_once_do_it_once(checkout: Path, trees: Trees) -> None:
    plain, hardened = trees
    for action, wanted in ((apply, hardened), (revert, plain)) * 3:
        children = []
        for _ in range(3):
            if not (child := os.fork()):
                code = FAILED
                with suppress(Exception):
                    action(checkout)
                    code = SURVIVED
                os._exit(code)
            children.append(child)
        assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [SURVIVED] * 3
        assert snapshot(checkout) == wanted
