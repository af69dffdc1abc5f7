"""Laws of the examples: each runs and says what it is there for, and the page of the guard shows nothing else."""

from __future__ import annotations

import re
import textwrap
import time
from pathlib import Path

import pytest

import fluxguard
from fluxguard import errors
from fluxguard.limits import WaitLimits
from fluxguard.rundir import AGAIN, NEVER
from tests.conftest import POLL, ROOT, Spawn

EXAMPLES = ROOT / "docs" / "examples"
PAGE = (ROOT / "docs" / "guard.md").read_text("utf-8")
SAYS = {
    "block_swap.py": ["8 blocks, 4 pictures"],
    "cached_latents.py": ["cat.npz: is truncated or damaged", "set aside as cat.npz.broken", "65536 numbers"],
    "healed_worker.py": ["put right after", "the same to the last bit: True"],
    "notebook.py": ["the preview did not finish within 0.5 s", "a picture did not finish", "the page lives on"],
    "training.py": ["40 steps, loss 0."],
    "two_ranks.py": ["both ranks are here", "rank 1 did not come", "missing: 1"],
}
NAMES = ["fail_after", "exit_after", "result", "reads", "DataLoader", "barrier", "saved", "phase", "step", "limits"]
MOST_ADDED = 10
GONE = 2.0


def shown(language: str) -> list[str]:
    """Return the blocks of code on the page."""
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


def lines_of(path: Path) -> str:
    """Return a file without its indentation, as an excerpt of it is compared."""
    return "\n".join(line.strip() for line in path.read_text("utf-8").splitlines())


@pytest.mark.integration
@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", SAYS)
def test_an_example_runs_and_says_what_it_shows(spawn: Spawn, name: str) -> None:
    """In an empty folder, warnings as errors, leaving no process."""
    example = spawn(EXAMPLES / name, env={"PYTHONWARNINGS": "error::DeprecationWarning"})
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


@pytest.mark.parametrize("block", shown("python"), ids=lambda block: block.strip().splitlines()[0])
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


def test_links_of_the_page_lead_somewhere() -> None:
    """To files that are there."""
    for target in re.findall(r"\]\(([^)#]+)", PAGE):
        assert (ROOT / "docs" / target).exists(), target
