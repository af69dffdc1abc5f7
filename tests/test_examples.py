"""Laws of the examples: each runs and says what it is there for, and the page of the guard shows nothing else."""

from __future__ import annotations

import re
import textwrap
import time
from pathlib import Path

import pytest

import fluxguard
from fluxguard import distributed, errors
from fluxguard.limits import WaitLimits
from fluxguard.rundir import AGAIN, NEVER
from tests.conftest import POLL, ROOT, Spawn

EXAMPLES = ROOT / "docs" / "examples"
PAGE, OF_RANKS = ((ROOT / "docs" / name).read_text("utf-8") for name in ("guard.md", "distributed.md"))
SAYS = {
    "block_swap.py": ["8 blocks, 4 pictures"],
    "cached_latents.py": ["cat.npz: is truncated or damaged", "set aside as cat.npz.broken", "65536 numbers"],
    "fid_ways.py": [
        "deadlock: ",
        "guarded: the ranks have come to different places: rank 0 is at #1 metric 'fid', rank 1 is at #1 barrier",
        *(f"{way}: 0.0050 after" for way in ("all_ranks_compute", "group_remade", "no_sync", "in_subprocess")),
        "epoch 1: fid 0.0027, best 0.0027",
        "epoch 2: fid 0.0069, best 0.0027",
    ],
    "healed_worker.py": ["put right after", "the same to the last bit: True"],
    "late_rank.py": [
        "rank 0 validates, with 8",
        "barrier 'exported' (#6; rank 1 did not come)",
        "has no heartbeat, its last collective was #5 on_main 'validate'",
        "missing: 1",
    ],
    "notebook.py": ["the preview did not finish within 0.5 s", "a picture did not finish", "the page lives on"],
    "train_ddp.py": ["rank 0 of 1 begins at step 0", "applied step 32", "finished: weights"],
    "training.py": ["40 steps, loss 0."],
    "two_ranks.py": ["both ranks are here", "rank 1 did not come", "missing: 1"],
    "vecenv_ddp.py": ["rank 0 of 1 draws from seed", "updates, reward of a step -1.", "then -0.2"],
}
NAMES = ["fail_after", "exit_after", "result", "reads", "DataLoader", "barrier", "saved", "phase", "step", "limits"]
MOST_ADDED = 10
GONE = 2.0


def shown(language: str, page: str = PAGE) -> list[str]:
    """Return the blocks of code on a page."""
    return re.findall(rf"^```{language}\n(.*?)^```", page, re.DOTALL | re.MULTILINE)


def lines_of(path: Path) -> str:
    """Return a file without its indentation, as an excerpt of it is compared."""
    return "\n".join(line.strip() for line in path.read_text("utf-8").splitlines())


@pytest.mark.integration
@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", SAYS)
def test_an_example_runs_and_says_what_it_shows(spawn: Spawn, name: str) -> None:
    """In an empty folder, warnings as errors, leaving no process."""
    program = EXAMPLES / name
    torch = "\nimport torch" in program.read_text("utf-8")
    example = spawn(program, env={"PYTHONWARNINGS": "error::DeprecationWarning"}, torch=torch)
    assert example.ends() == 0, example.output
    until = time.monotonic() + GONE  # multiprocessing's own helper process ends a moment after its parent
    while example.living() and time.monotonic() < until:
        time.sleep(POLL)
    assert not example.living()
    for words in SAYS[name]:
        assert words in example.output


def test_every_example_is_run() -> None:
    """One that no test runs is one that no longer runs."""
    assert {path.name for path in EXAMPLES.glob("*.py")} == set(SAYS)


def test_the_guard_takes_few_lines_of_a_training() -> None:
    """The import among them."""
    lines = (EXAMPLES / "training.py").read_text("utf-8").splitlines()
    assert len([line for line in lines if "fluxguard" in line]) <= MOST_ADDED


@pytest.mark.parametrize(
    "block", [*shown("python"), *shown("python", OF_RANKS)], ids=lambda block: block.strip().splitlines()[0]
)
def test_what_the_page_shows_is_in_an_example(block: str) -> None:
    """Line by line, in one piece."""
    wanted = "\n".join(line.strip() for line in textwrap.dedent(block).splitlines())
    assert any(wanted in lines_of(path) for path in EXAMPLES.glob("*.py"))


def test_the_page_knows_every_public_name_and_limit() -> None:
    """Those of the guard that any loop can use, and every wait that `limits.use` sets."""
    for name in NAMES:
        assert name in fluxguard.__all__
        assert f"`{name}" in PAGE or f"`@{name}" in PAGE, name
    for name in WaitLimits.__dataclass_fields__:
        assert name in PAGE, name


def test_the_page_draws_the_errors_as_they_are() -> None:
    """The tree is an excerpt of the one in fluxguard.errors, and the exit codes are the guard's."""
    (tree,) = shown("text")
    assert errors.__doc__ is not None
    for line in tree.splitlines():
        assert line in errors.__doc__.splitlines()
    assert f"| {AGAIN} |" in PAGE
    assert f"| {NEVER} |" in PAGE


def test_the_page_of_ranks_knows_every_public_name() -> None:
    """Whatever `distributed` offers a loop is explained there."""
    for name in set(distributed.__all__) - {"World", "current"}:
        assert re.search(rf"\b{name}\b", OF_RANKS), name


def test_links_of_the_pages_lead_somewhere() -> None:
    """To files that are there."""
    for target in re.findall(r"\]\((?!https:)([^)#]+)", PAGE + OF_RANKS):
        assert (ROOT / "docs" / target).exists(), target
