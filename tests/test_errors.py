"""Laws of the errors."""

from __future__ import annotations

import copy
import inspect
import multiprocessing
import pickle
import re
import threading
from collections.abc import Iterator

import pytest

from fluxguard import errors
from fluxguard.errors import (
    CacheBroken,
    CheckoutChanged,
    DeadlineExceeded,
    FluxguardError,
    InputError,
    LimitsError,
    PatchError,
    RankFailed,
    RanksDisagree,
    RanksMissing,
    RuleMissed,
    RunOwned,
    SetupFailed,
    StateUnusable,
    SubprocessFailed,
    UnknownCheckout,
    WorkerDied,
    WorkerStuck,
)

EVERY: tuple[FluxguardError, ...] = (
    FluxguardError("something"),
    DeadlineExceeded("a wait", 3.0, "look at it"),
    DeadlineExceeded("a swap", 3.0, limit="block_swap"),
    WorkerStuck(3.0, [12], [[1, 2]]),
    WorkerDied("it was killed", [12]),
    RanksMissing("barrier (rank 1 did not come)", 3.0, [1]),
    RanksMissing("barrier (rank 1 did not come)", 3.0, [1], {1: "(pid 12) is in phase 'sampling'"}),
    RanksDisagree("the ranks are at different places", ["rank 0 is at #1 'a'", "rank 1 is at #1 'b'"]),
    RankFailed(0, "OSError", "the disk is full", "save"),
    SubprocessFailed("fid", -9, "no memory"),
    InputError("my.toml", "is no file", "name"),
    LimitsError("my.toml", "is not a limit", "wait.x"),
    SetupFailed("rank 1 on node-b", "is missing", "MASTER_PORT", 1),
    RunOwned("out", 12),
    RunOwned("out", None),
    StateUnusable("out/state", "has no manifest"),
    CacheBroken("a.npz", "is empty"),
    PatchError("nothing was changed"),
    UnknownCheckout("folder", "train_network.py"),
    RuleMissed(["waits"], ["library/util.py:1: waits"]),
    CheckoutChanged(["library/util.py"], ["a.py"]),
)
KINDS = sorted({type(error) for error in EVERY}, key=lambda kind: kind.__name__)


def public() -> Iterator[type[FluxguardError]]:
    for name, kind in vars(errors).items():
        if inspect.isclass(kind) and issubclass(kind, FluxguardError) and not name.startswith("_"):
            yield kind


def test_every_error_is_held_to_these_laws() -> None:
    """None is left out."""
    assert set(public()) == set(KINDS)


def test_the_drawn_tree_is_the_real_one() -> None:
    """Each error stands below its base, with what else it is in brackets."""
    drawn: dict[str, tuple[str, ...]] = {}
    above: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        if not (found := re.match(r"( *)([A-Z]\w+)(?: \((\w+)\))?(?:  |$)", line)):
            continue
        depth = len(found[1]) // 2
        above[depth:] = [found[2]]
        bases = (above[depth - 1] if depth else None, found[3])
        drawn[found[2]] = tuple(base for base in bases if base)
    assert drawn == {kind.__name__: tuple(base.__name__ for base in kind.__bases__) for kind in KINDS}


@pytest.mark.parametrize("kind", KINDS)
def test_every_error_says_when_it_is_raised(kind: type[FluxguardError]) -> None:
    """In the first words of its docstring."""
    assert (kind.__doc__ or "").startswith("Raised when ")


@pytest.mark.parametrize(
    ("kind", "builtin"),
    [
        (DeadlineExceeded, TimeoutError),
        (WorkerDied, RuntimeError),
        (RanksDisagree, RuntimeError),
        (RankFailed, RuntimeError),
        (InputError, ValueError),
        (UnknownCheckout, ValueError),
        (StateUnusable, OSError),
        (CacheBroken, OSError),
        (PatchError, RuntimeError),
    ],
)
def test_every_error_is_what_a_caller_would_expect(kind: type[FluxguardError], builtin: type[Exception]) -> None:
    """Whoever knows nothing of us catches it as the builtin."""
    assert issubclass(kind, builtin)


@pytest.mark.parametrize("error", EVERY, ids=lambda error: type(error).__name__)
def test_an_error_survives_the_way_between_processes(error: FluxguardError) -> None:
    """What it says and what it knows, on every protocol, and as a copy."""
    ways = [pickle.loads(pickle.dumps(error, protocol)) for protocol in range(pickle.HIGHEST_PROTOCOL + 1)]
    for again in (*ways, copy.copy(error), copy.deepcopy(error)):
        assert type(again) is type(error)
        assert str(again) == str(error)
        assert again.args == error.args
        assert vars(again) == vars(error)


def test_an_error_goes_through_a_queue_of_multiprocessing() -> None:
    """Which pickles in a thread of its own, and says nothing when that fails."""
    connection, other = multiprocessing.Pipe()
    with connection, other:
        for error in EVERY:
            connection.send(error)
            assert str(other.recv()) == str(error)


@pytest.mark.parametrize("kind", KINDS)
def test_torch_can_make_the_error_again_from_its_message(kind: type[FluxguardError]) -> None:
    """torch makes an exception of a worker again from one string."""
    text = "Caught it in DataLoader worker process 0.\nTraceback: image.npz is empty"
    assert str(kind(text)) == text
    assert str(pickle.loads(pickle.dumps(kind(text)))) == text


def test_a_passed_deadline_says_what_how_long_where_and_what_to_do() -> None:
    """Also where whoever raises it gives no advice."""
    said: list[str] = []
    thread = threading.Thread(target=lambda: said.append(str(DeadlineExceeded("a wait", 2.5))), name="reader")
    thread.start()
    thread.join()
    what, advice = said[0].split("; ")
    assert what == "a wait did not finish within 2.5 s on thread reader"
    assert "allow more" in advice
    assert "limits.use(block_swap=SECONDS)" in str(DeadlineExceeded("a swap", 2, limit="block_swap"))
    assert str(DeadlineExceeded("a wait", 2, "look at the disk")).endswith("; look at the disk")


@pytest.mark.parametrize("error", [WorkerStuck(3, [1]), RanksMissing("barrier", 3, [1])], ids=["worker", "ranks"])
def test_the_advice_names_a_limit_that_exists(error: DeadlineExceeded) -> None:
    """It can be typed as it stands."""
    from fluxguard.limits import WaitLimits

    found = re.search(r"limits\.use\((\w+)=", str(error))
    assert found
    assert hasattr(WaitLimits(), found[1])
