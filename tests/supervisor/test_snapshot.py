"""Laws of a snapshot: what is left of each limit, from files alone, and never more than there is."""

from __future__ import annotations

import os
import uuid
from pathlib import Path

import pytest

from fluxguard import heartbeat
from fluxguard.clock import FakeClock
from fluxguard.heartbeat import Heart
from fluxguard.limits import Limits
from fluxguard.rundir import RunDir, write_json, write_whole
from fluxguard.supervisor import remembering, resuming, timeline
from fluxguard.supervisor.learning import Chosen
from fluxguard.supervisor.ledger import Ledger
from fluxguard.supervisor.sensing.identity import Identity
from fluxguard.supervisor.showing import snapshot
from fluxguard.supervisor.showing.snapshot import Points, Snapshot
from fluxguard.supervisor.timeline import Point

MARK = str(uuid.uuid4())


class Story:
    """A run whose one attempt lives, told on a clock of its own; its keeper is this very process."""

    def __init__(self, folder: Path) -> None:
        self.run = RunDir(folder / "my-lora")
        self.run.create()
        self.clock = FakeClock()
        write_json(self.run.run, {"beats": str(folder)})
        write_json(self.run.job, remembering.to_job(Chosen(Limits())))
        self.ledger = Ledger(self.run.ledger, self.clock)
        self.ledger.add("job", hardened=True, weights=str(folder / "x.safetensors"))
        self.ledger.add("attempt", attempt=MARK, number=2, start_step=10, log_from=0)
        keeper = Identity.of(os.getpid())
        assert keeper is not None
        self.ledger.add("spawned", attempt=MARK, keeper=keeper.to_mapping())
        self.folder = folder
        self.log(0)

    def sample(self, step: int, phase: str = "step") -> None:
        """Write a sample into the timeline."""
        timeline.append(self.run, Point(at=self.clock.wall(), attempt=2, phase=phase, step=step, loss=0.5))

    def beat(self, rank: int = 0, phase: bytes = b"step", **values: object) -> None:
        """Write a heartbeat now, on the clock of the story."""
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr("fluxguard.heartbeat.time.monotonic", self.clock.monotonic)
            heart = Heart(heartbeat.path_for(self.folder, rank), rank=rank, attempt=uuid.UUID(MARK).bytes)
            heart.phase = phase
            for name, value in values.items():
                setattr(heart, name, value)
            heart.beat()

    def log(self, age: float) -> None:
        """Let the output be so old."""
        self.run.log.touch()
        os.utime(self.run.log, (self.clock.wall() - age,) * 2)

    def look(self) -> Snapshot:
        """Return what is to be seen now."""
        seen = snapshot.read(self.run, self.clock)
        assert seen is not None
        return seen


@pytest.fixture
def story(tmp_path: Path) -> Story:
    """A run that has just begun its second attempt."""
    return Story(tmp_path)


def left(seen: Snapshot) -> dict[str, float]:
    """Return the seconds that are left, by limit."""
    return {one.name: round(one.left) for one in seen.limits}


def test_there_is_no_snapshot_of_nothing(tmp_path: Path) -> None:
    """A folder without a run has none."""
    assert snapshot.read(RunDir(tmp_path), FakeClock()) is None


def test_without_a_heartbeat_progress_is_what_the_samples_show(story: Story) -> None:
    """A change after the last sample came after it, and no later limit is promised than that."""
    story.sample(0, "load")
    story.clock.sleep(100)
    story.log(100)
    assert left(story.look()) == {"patience": 500, "ceiling": 3500}
    story.log(5)  # output is a sign of life, and no progress
    assert left(story.look()) == {"patience": 595, "ceiling": 3500}


def test_a_heartbeat_says_where_the_training_is(story: Story) -> None:
    """Its phase, what is done in it, and the wait that is open with the guard's own limit."""
    story.beat(phase=b"latent cache", done=3, of=20, wait=b"read", deadline=story.clock.monotonic() + 30)
    story.clock.sleep(20)
    story.log(20)
    seen = story.look()
    assert (seen.status.phase, seen.done, seen.of) == ("latent cache", 3, 20)
    assert seen.phase_for == pytest.approx(20)
    assert left(seen) == {"read": 10, "patience": 580, "ceiling": 1780}


def test_the_newest_beat_of_any_rank_counts(story: Story) -> None:
    """What the others wait for is progress too; the phase is that of the lowest rank."""
    story.beat(phase=b"load")
    story.clock.sleep(50)
    story.beat(rank=1)
    story.clock.sleep(20)
    story.log(999)
    seen = story.look()
    assert seen.status.phase == "load"
    assert seen.phase_for == pytest.approx(70)
    assert left(seen) == {"patience": 580, "ceiling": 3580}


def test_a_beat_from_before_a_reboot_is_no_time(story: Story) -> None:
    """Nothing negative, nothing invented."""
    story.beat()
    story.clock.now = 5.0  # the clock of the beats began anew
    assert story.look().phase_for is None


def test_the_limit_that_comes_first_is_in_front(story: Story) -> None:
    """Whichever that is."""
    story.sample(0, "load")
    story.clock.sleep(3500)
    story.log(0)
    assert [one.name for one in story.look().limits] == ["ceiling", "patience"]


def test_a_slow_training_has_the_ceiling_of_its_own_steps(story: Story) -> None:
    """Ten times the slowest step that the samples show."""
    (story.run.log).write_text("steps:  1%|#| 12/400 [00:01<00:05, 5.10it/s, avr_loss=0.5]\n")
    for step in range(11, 13):
        story.sample(step)
        story.clock.sleep(100)
    story.sample(13)
    story.log(0)
    ceiling = next(one for one in story.look().limits if one.name == "ceiling")
    assert ceiling.limit == 1000


def test_a_run_that_is_over_has_no_limits(story: Story) -> None:
    """Nothing is waited for."""
    story.ledger.add("ended", attempt=MARK, step=12)
    story.ledger.add("stopped", reason="stopped on request", applied_steps=10)
    seen = story.look()
    assert (seen.status.state, seen.limits, seen.eta, seen.phase_for) == ("stopped", (), None, None)


def test_unreadable_limits_are_unknown(story: Story) -> None:
    """And nothing else is lost."""
    story.run.job.write_text("{")
    seen = story.look()
    assert seen.limits == ()
    assert seen.status.state == "running"


def test_samples_are_read_once_and_all_of_them(story: Story) -> None:
    """Also when the newest one is still being written, and when the file was thinned out or is gone."""
    points = Points(story.run)
    assert points.read() == []
    for step in range(3):
        story.sample(step)
    assert [one.step for one in points.read()] == [0, 1, 2]
    whole = story.run.timeline.read_bytes()
    with story.run.timeline.open("ab") as file:
        file.write(whole.splitlines(keepends=True)[1][:30])
    assert [one.step for one in points.read()] == [0, 1, 2]
    with story.run.timeline.open("ab") as file:
        file.write(whole.splitlines(keepends=True)[1][30:])
    assert [one.step for one in points.read()] == [0, 1, 2, 1]
    write_whole(story.run.timeline, whole.splitlines(keepends=True)[2])
    assert [one.step for one in points.read()] == [2]
    story.run.timeline.unlink()
    assert [one.step for one in points.read()] == [2]


def test_runs_are_found_in_the_folders_of_a_folder(story: Story, tmp_path: Path) -> None:
    """Those that have a ledger."""
    RunDir(tmp_path / "empty").create()
    assert [run.output_dir.name for run in snapshot.runs_in(tmp_path)] == ["my-lora"]
    assert snapshot.runs_in(story.run.output_dir) == []
    assert snapshot.runs_in(tmp_path / "nowhere") == []


def test_the_runs_that_are_shown_are_those_that_are_taken_up_again(story: Story, tmp_path: Path) -> None:
    """At any depth."""
    deep = tmp_path / "a" / "b"
    deep.mkdir(parents=True)
    story.run.output_dir.rename(deep / "deep")
    assert [run.output_dir for run in snapshot.runs_in(tmp_path)] == [deep / "deep"]
    assert [one.run.output_dir for one in resuming.find(tmp_path)] == [deep / "deep"]
