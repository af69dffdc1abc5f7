"""The kinds of faults of the campaign: how each is brought about, and which ends of the run are right."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import replace

from tests.campaign import breaking as do
from tests.campaign.field import Kind, root
from tests.campaign.judging import FINISHED, MOST, REFUSED, STOPPED, Right
from tests.campaign.play import Play

NO_PROGRESS = "no progress"
BY_SIGNAL = ("killed from outside",)


def finishes(*causes: str, incidents: int | tuple[int, int] = 1, heals: int = 0, identical: bool = True) -> Right:
    """Return what is right for a run that finishes, after so many incidents put down to these causes."""
    counts = (incidents, incidents) if isinstance(incidents, int) else incidents
    return Right(
        ends=frozenset({FINISHED}),
        causes=frozenset(causes),
        incidents=counts,
        healed=(heals, heals),
        attempts=(counts[0] + 1, counts[1] + 1),
        identical=identical,
    )


def stops(*causes: str, incidents: tuple[int, int] = (1, 2), identical: bool = True) -> Right:
    """Return what is right for a run that stops, each of its incidents put down to these causes."""
    return Right(ends=frozenset({STOPPED}), causes=frozenset(causes), incidents=incidents, identical=identical)


UNTOUCHED = finishes(incidents=0)
REFUSES = Right(ends=frozenset({REFUSED}), attempts=(0, 0), incidents=(0, 0))

SIGNALS = (
    Kind(
        name="trainer killed", right=finishes(*BY_SIGNAL), during=do.signalled(Play.trainer, signal.SIGKILL)
    ),
    Kind(
        name="trainer killed while loading", right=finishes(*BY_SIGNAL),
        during=do.signalled(Play.trainer, signal.SIGKILL, Play.while_loading),
    ),
    Kind(
        name="trainer killed in a save", right=finishes(*BY_SIGNAL),
        during=do.signalled(Play.trainer, signal.SIGKILL, Play.while_saving),
    ),
    Kind(
        name="trainer killed three times", right=finishes(*BY_SIGNAL, incidents=3),
        during=do.in_turn(
            do.signalled(Play.trainer, signal.SIGKILL, lambda play: play.at_step(4)),
            do.signalled(Play.trainer, signal.SIGKILL, lambda play: play.at_step(11)),
            do.signalled(Play.trainer, signal.SIGKILL, lambda play: play.at_step(18)),
        ),
    ),
    Kind(name="launcher killed", right=finishes(*BY_SIGNAL), during=do.signalled(Play.launcher, signal.SIGKILL)),
    Kind(name="trainer terminated", right=finishes(*BY_SIGNAL), during=do.signalled(Play.trainer, signal.SIGTERM)),
    Kind(name="launcher terminated", right=finishes(*BY_SIGNAL), during=do.signalled(Play.launcher, signal.SIGTERM)),
    Kind(name="trainer stopped", right=finishes("trainer stopped"), during=do.signalled(Play.trainer, signal.SIGSTOP)),
    Kind(name="trainer crashes", right=finishes("crashed"), during=do.signalled(Play.trainer, signal.SIGSEGV)),
    Kind(
        name="worker stopped", right=finishes(incidents=0, heals=1), during=do.signalled(Play.worker, signal.SIGSTOP)
    ),
    Kind(name="worker killed", right=finishes(incidents=0, heals=1), during=do.signalled(Play.worker, signal.SIGKILL)),
    Kind(
        name="worker leaks and dies", right=finishes(incidents=0, heals=1),
        during=do.in_turn(Play.at_step, do.asked("read.die")),
    ),
)  # fmt: skip

HANGS = (
    Kind(name="swap hangs", right=finishes("block swap"), during=do.in_turn(Play.at_step, do.asked("swap"))),
    Kind(name="step sleeps", right=finishes(NO_PROGRESS), before=do.asked("step.hang", at_step=True)),
    Kind(name="step spins", right=finishes(NO_PROGRESS), before=do.asked("step.spin", at_step=True)),
    Kind(
        name="step spins and holds the lock", right=finishes(NO_PROGRESS), before=do.asked("step.seize", at_step=True)
    ),
    Kind(
        name="step hangs always", right=stops(NO_PROGRESS, incidents=(2, 3)),
        before=do.asked("step.hang", "always", at_step=True),
    ),
    Kind(
        name="save hangs", right=finishes(NO_PROGRESS, "saving"),
        during=do.in_turn(Play.at_step, do.asked("saving.hang")),
    ),
    Kind(name="end hangs", right=finishes(NO_PROGRESS, incidents=(0, 1)), before=do.asked("end.hang")),
    Kind(
        name="load hangs", right=finishes(NO_PROGRESS), before=do.asked("load.hang"),
        limits={"phase": {"load": {"patience": 9.0, "ceiling": 15.0}}},
    ),
    Kind(
        name="download hangs", right=finishes(NO_PROGRESS, "download stuck"), before=do.asked("load.download"),
        limits={"phase": {"load": {"patience": 9.0, "ceiling": 15.0}}},
    ),
    Kind(
        name="error repeated for ever", right=finishes(NO_PROGRESS, "the same error"),
        before=do.asked("step.mutter", at_step=True),
    ),
)  # fmt: skip

CRASHES = (
    Kind(name="error once", right=finishes("error in the trainer"), before=do.asked("step.fail", at_step=True)),
    Kind(
        name="error always", right=stops("error in the trainer"), curable=True,
        before=do.asked("step.fail", "always", at_step=True),
    ),
    Kind(name="GPU memory full once", right=finishes("GPU memory full"), before=do.asked("step.oom", at_step=True)),
    Kind(
        name="GPU memory full always", right=stops("GPU memory full", incidents=(1, 8)), curable=True,
        before=do.asked("step.oom", "always", at_step=True),
    ),
    Kind(
        name="system memory full", right=stops("system memory full", incidents=(1, 1)), curable=True,
        before=do.asked("step.memory", at_step=True),
    ),
    Kind(
        name="killed for memory", right=stops("system memory full", incidents=(1, 1)), curable=True,
        before=do.starve, possible=lambda: do.memory_groups() is not None,
    ),
    Kind(
        name="loss not a number", right=stops("loss not finite", incidents=(1, 2)), curable=True,
        before=do.asked("step.nan", at_step=True),
    ),
    Kind(
        name="ends without weights", right=finishes("no verified weights"), before=do.asked("step.leave", at_step=True)
    ),
    Kind(name="wrong argument", right=stops("bad argument", incidents=(1, 1)), flags=("--no_such_flag", "1")),
    Kind(name="missing model", right=stops("missing file"), curable=True, before=do.asked("load.missing", "always")),
    Kind(
        name="missing package", right=stops("missing package"), curable=True,
        before=do.asked("load.package", "always"),
    ),
    Kind(name="gated model", right=stops("no access to the hub"), before=do.asked("load.gated", "always")),
    Kind(name="log flooded", right=UNTOUCHED, before=do.asked("step.flood", at_step=True)),
)  # fmt: skip

STATES = (
    *(
        Kind(name=f"newest state {how}", right=finishes(*BY_SIGNAL), during=do.with_state(damage))
        for how, damage in (
            ("truncated", do.truncate),
            ("flipped", do.flip),
            ("without its optimizer", do.remove_a_file),
            ("mixed with an older one", do.replace_by_older),
            ("without random states", do.forget_randoms),
            ("deleted", do.delete),
        )
    ),
)
CACHES = (
    *(
        Kind(
            name=f"cache file {how}",
            right=Right(
                ends=frozenset({FINISHED}), causes=frozenset({"cache file"}), incidents=(0, 1), identical=False
            ),
            during=do.with_cache(damage),
        )
        for how, damage in (("is a pipe", do.fifo), ("truncated", do.halve), ("flipped", do.flip))
    ),
    Kind(
        name="cache file truncated before the start",
        right=Right(ends=frozenset({FINISHED}), causes=frozenset({"cache file"}), incidents=(0, 1), identical=False),
        before=do.with_cache(do.halve, do.now),
    ),
)

DISKS = (
    Kind(
        name="disk full", right=stops("disk full", incidents=(1, 1)), curable=True, possible=root,
        before=do.small_disk, during=do.fill,
    ),
    Kind(name="quota", right=stops("disk quota", "disk full"), curable=True, before=do.asked("saving.quota")),
    Kind(name="output folder read-only", right=REFUSES, before=do.read_only, possible=root),
)  # fmt: skip

WATCHERS = (
    Kind(name="supervisor killed", right=UNTOUCHED, during=do.in_turn(Play.at_step, do.kill_supervisor)),
    Kind(
        name="supervisor killed while loading", right=UNTOUCHED,
        during=do.in_turn(Play.while_loading, do.kill_supervisor),
    ),
    Kind(
        name="supervisor and trainer killed", right=finishes(*BY_SIGNAL),
        during=do.in_turn(do.signalled(Play.trainer, signal.SIGKILL), do.kill_supervisor),
    ),
    Kind(name="keeper killed", right=UNTOUCHED, during=do.signalled(Play.keeper, signal.SIGKILL)),
    Kind(
        name="everything killed", right=finishes("killed", "ended", "lost"),
        during=do.in_turn(Play.at_step, do.kill_everything),
    ),
    Kind(name="heartbeat removed", right=UNTOUCHED, during=do.forget_beats),
    Kind(name="machine suspended", right=UNTOUCHED, during=do.suspend_all(15.0)),
)  # fmt: skip

SAMPLING = ("--sample_every_n_steps", "6", "--sample_prompts", "{folder}/prompts.txt")
SAMPLES = (
    Kind(
        name="sampling hangs",
        right=finishes("sampling", NO_PROGRESS),
        before=do.sampled("sampling.hang"),
        flags=SAMPLING,
    ),
    Kind(name="sampling fails", right=UNTOUCHED, before=do.sampled("sampling.fail"), flags=SAMPLING),
)

OURS = (*SIGNALS, *HANGS, *CRASHES, *STATES, *CACHES, *DISKS, *WATCHERS, *SAMPLES)


def _bare(name: str, right: Right | None = None) -> Kind:
    """Return a kind with a trainer that is not hardened."""
    kind = next(kind for kind in OURS if kind.name == name)
    right = replace(right or kind.right, identical=False)  # upstream restores less than all random states
    return replace(kind, name=f"{name}, not hardened", hardened=False, right=right)


NAN_TOLD_LATE = Right(
    ends=frozenset({FINISHED, STOPPED}),
    causes=frozenset({"loss not finite", "no verified weights", "weights not finite"}),
    incidents=(1, MOST),
)
"""Nobody stops it, but its weights and states are refused; from a state before it, it may well finish."""

BARE = (
    _bare("trainer killed"),
    _bare("launcher killed"),
    _bare("trainer stopped"),
    _bare("worker stopped", finishes("loader worker stopped")),
    _bare("worker killed", finishes("loader worker killed")),
    _bare("swap hangs", finishes("block swap", NO_PROGRESS)),
    _bare("step spins"),
    _bare("error once"),
    _bare("error always"),
    _bare("ends without weights"),
    _bare("loss not a number", NAN_TOLD_LATE),
    _bare("newest state truncated"),
    _bare("newest state without random states", finishes(*BY_SIGNAL, "broken state", incidents=(1, 3))),
    _bare("supervisor killed"),
    _bare("everything killed"),
    _bare("GPU memory full always"),
)

KINDS: Sequence[Kind] = (*OURS, *BARE)

QUICK = (
    "step spins", "newest state flipped", "trainer killed, not hardened", "ends without weights", "error always",
    "supervisor killed",
)  # fmt: skip
"""What the tests run each time, the longest first; a kill, a swap that hangs and a stopped worker are in the drill."""
