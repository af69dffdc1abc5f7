"""Where the runs of a campaign happen: folders made from one template, each run in its own, and what is found of it."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from random import Random
from typing import Any

from fluxguard import manifest
from fluxguard.drill import drill, workshop
from fluxguard.errors import StateUnusable
from fluxguard.rundir import RunDir
from fluxguard.supervisor import ledger
from fluxguard.supervisor.checkpoints import weights
from fluxguard.supervisor.showing import status
from tests.campaign.judging import STOPPED, Facts, Right, Ruling, end, judge
from tests.campaign.play import LOOK, Missed, Play

EPOCHS = 2
STEPS = EPOCHS * workshop.IMAGES
LONGEST = 240.0
FAREWELL = 3.0
"""A keeper goes a moment after its supervisor."""
NAME = "run"

LIMITS: dict[str, Any] = {
    "wait": {"block_swap": 4.0, "batch": 4.0, "first_batch": 40.0, "read": 4.0, "sample": 6.0, "ending": 6.0},
    "phase": {
        **{name: {"patience": 25.0, "ceiling": 60.0} for name in ("load", "latent cache", "text cache", "prepare")},
        "first step": {"patience": 20.0, "ceiling": 30.0},
        "step": {"patience": 8.0, "ceiling": 14.0},
        "sampling": {"patience": 12.0, "ceiling": 20.0},
        "saving": {"patience": 8.0, "ceiling": 12.0},
        "ending": {"patience": 8.0, "ceiling": 12.0},
    },
    "watch": {"grace": 2.0, "settle": 0.3, "backoff": 0.5, "backoff_ceiling": 2.0, "memory": 5.0, "reap": 10.0},
    "max_restarts": 3,
    "max_bad_losses": 4,
}
"""A healthy step of the miniature takes a tenth of a second, ten times that where the machine is busy."""
PATIENCE = float(os.environ.get("CAMPAIGN_PATIENCE", "1"))
"""By which all of these are multiplied, for a machine that is busier still."""


def nothing(play: Play) -> None:
    """Do nothing."""


@dataclass(frozen=True, kw_only=True)
class Kind:
    """One kind of fault."""

    name: str
    right: Right
    before: Callable[[Play], None] = nothing
    """Done before the supervisor starts."""
    during: Callable[[Play], None] = nothing
    """Done beside it; may raise Missed."""
    hardened: bool = True
    flags: tuple[str, ...] = ()
    limits: dict[str, Any] = field(default_factory=dict)
    """Limits of its own, over those of the campaign."""
    curable: bool = False
    """Whether a run that it stops finishes once the fault is taken away and it is started again."""
    possible: Callable[[], bool] = lambda: True


class Field:
    """Runs kinds of faults, each in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()

    @property
    def template(self) -> Path:
        """The folder that holds images, caches, and the hardened miniature."""
        return self.folder / "template"

    def make_template(self, train: Callable[[workshop.Workshop], None] = drill.train) -> None:
        """Make the template; all runs need it."""
        made = self.template
        made.mkdir(parents=True, exist_ok=True)
        # Making the caches draws random numbers, so the weights to compare with come from a second training.
        train(workshop.prepare(made, hardened=False, name="caches", epochs=1))
        train(workshop.prepare(made, hardened=False, name=NAME, epochs=EPOCHS))
        (made / NAME).rename(made / "undisturbed")
        workshop.prepare(made, epochs=EPOCHS)

    @cached_property
    def undisturbed(self) -> dict[str, object]:
        """Return the final weights of a training that nobody disturbed."""
        return drill.tensors(self.template / "undisturbed" / f"{NAME}.safetensors")

    def run(self, kind: Kind, seed: int) -> Ruling:
        """Run one kind of fault and judge how it ends. A folder of a run that ended right is removed."""
        began = time.monotonic()
        play = self._prepared(kind, seed)
        try:
            kind.before(play)
            facts = self._played(play, kind.during)
            if kind.curable and end(facts) == STOPPED:
                facts = replace(facts, again=self._again(play, facts))
            broken = judge(facts, kind.right)
        finally:
            play.end()
        if not broken:
            for folder in (play.run.beats(), play.folder):
                shutil.rmtree(folder, ignore_errors=True)
        seconds = round(time.monotonic() - began, 1)
        return Ruling(kind=kind.name, seed=seed, moment=play.moment, facts=facts, broken=broken, seconds=seconds)

    def _prepared(self, kind: Kind, seed: int) -> Play:
        folder = self.folder / f"{kind.name.replace(' ', '-').replace(',', '')}-{seed}"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        for name in ("images", "sd-scripts"):
            shutil.copytree(self.template / name, folder / name, symlinks=True)
        flags = tuple(word.format(folder=folder) for word in kind.flags)
        made = workshop.prepare(folder, hardened=kind.hardened, name=NAME, epochs=EPOCHS, flags=flags)
        made.limits.write_text(json.dumps(limits_of(kind), indent=2))
        chance = Random(f"{kind.name} {seed}")
        return Play(workshop=made, chance=chance, steps=STEPS, hardened=kind.hardened, longest=LONGEST * PATIENCE)

    def _played(self, play: Play, during: Callable[[Play], None]) -> Facts:
        met = True
        with play.counted():
            play.supervise()
            try:
                during(play)
            except Missed:
                met = False
            with contextlib.suppress(subprocess.TimeoutExpired):
                play.supervisor.wait(max(1.0, play.began + play.longest - time.monotonic()))
        return self.found(play, met=met)

    def _again(self, play: Play, before: Facts) -> Facts:
        play.undo.close()
        for asked in play.workshop.faults.iterdir():
            asked.unlink()
        play.began, play.together = time.monotonic(), 0
        facts = self._played(play, nothing)
        return replace(facts, events=facts.events[len(before.events) :])

    def found(self, play: Play, *, met: bool = True) -> Facts:
        """Return what is to be found of a run."""
        run, code = play.run, play.supervisor.poll()
        events, seen = ledger.read(run.ledger), status.read(run)
        final = play.workshop.output_dir / f"{NAME}.safetensors"
        until = time.monotonic() + FAREWELL
        while (left := play.left()) and time.monotonic() < until:
            time.sleep(LOOK)
        facts = Facts(
            code=code, said=play.said.read_text(errors="replace"), expected=STEPS, events=events, met=met,
            left=tuple(f"{p.pid} {' '.join(p.cmdline()[-60:])}"[:200] for p in left), together=play.together,
        )  # fmt: skip
        if seen is None:
            return facts
        return replace(
            facts,
            state=seen.state,
            reason=seen.reason,
            planned=seen.planned_steps,
            applied=seen.applied_steps,
            verified=weights.verify(final, newer_than=0).verified,
            counted=counted(run.states / f"step-{STEPS:08d}"),
            identical=drill.tensors(final) == self.undisturbed if final.is_file() else None,
            named=named(run, seen.applied_steps) if seen.state == STOPPED else "",
        )


def limits_of(kind: Kind) -> dict[str, Any]:
    """Return the limits of a kind: twice as long in all phases for a trainer that is not hardened."""
    found: dict[str, Any] = {**LIMITS, "phase": {**LIMITS["phase"], **kind.limits.get("phase", {})}}
    found |= {name: value for name, value in kind.limits.items() if name != "phase"}
    times = PATIENCE * (1 if kind.hardened else 2)
    found["phase"] = {p: {n: times * s for n, s in limit.items()} for p, limit in found["phase"].items()}
    found["wait"] = {name: PATIENCE * seconds for name, seconds in found["wait"].items()}
    return found


def counted(state: Path) -> frozenset[int] | None:
    """Return how often the optimizer was applied to each of the weights, by its own count; None without a state."""
    import torch

    path = state / "optimizer.bin"
    if not path.is_file():
        return None
    saved = torch.load(path, weights_only=False)
    return frozenset(int(of_one["step"]) for of_one in saved["state"].values())


def named(run: RunDir, step: int) -> str:
    """Return why the state that a stopped run names does not go on; empty when it does, or none is named."""
    if not step:
        return ""
    try:
        found = manifest.verify(run.states / f"step-{step:08d}")
    except (StateUnusable, OSError) as error:
        return str(error)
    return "" if found.true_step == step else f"it holds step {found.true_step} instead of {step}"


def root() -> bool:
    """Return whether file systems can be mounted here."""
    return hasattr(os, "geteuid") and os.geteuid() == 0 and shutil.which("mount") is not None
