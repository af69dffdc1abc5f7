"""Laws of the sensor of the cards: it knows or it does not know, and it never waits for a driver that is dead."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from fluxguard.clock import FakeClock, SystemClock
from fluxguard.supervisor.sensing import gpu
from fluxguard.supervisor.sensing.gpu import Card, Gpus, Seen, used_by

FAKE = Path(__file__).parents[2] / "faults" / "fake_nvml"
GIB = 1 << 30


@dataclass
class Driver:
    """A fake driver, and sensors that ask it."""

    mood_file: Path
    made: list[Gpus] = field(default_factory=list)

    @property
    def env(self) -> dict[str, str]:
        """What the helper has to find it."""
        return {**os.environ, "PYTHONPATH": str(FAKE), "FAKE_NVML": str(self.mood_file)}

    def mood(self, mood: str) -> None:
        """Have it answer, hang, or fail from now on."""
        self.mood_file.write_text(mood)

    def sensor(self) -> Gpus:
        """Return a sensor of its cards."""
        self.made.append(Gpus(SystemClock(), present=lambda: True, env=self.env))
        return self.made[-1]


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[Driver]:
    """Return a fake driver; helpers that are left are ended."""
    one = Driver(tmp_path / "mood")
    yield one
    for sensor in one.made:
        sensor.close()


def until(holds: Callable[[], bool], seconds: float = 10.0) -> bool:
    """Wait for something, within bounds."""
    end = time.monotonic() + seconds
    while not holds() and time.monotonic() < end:
        time.sleep(0.02)
    return holds()


@pytest.mark.integration
def test_what_the_driver_tells_is_known_and_the_rest_is_not(driver: Driver) -> None:
    """Bytes, percent, watts; what one card does not support is unknown for that card alone."""
    seen = driver.sensor().answer(10)
    assert seen.cards is not None
    first, second = seen.cards
    assert (first.used, first.total, first.utilisation, first.watts) == (20 * GIB, 24 * GIB, 100, 90.5)
    assert (first.name, first.watt_limit, first.celsius, first.held) == ("NVIDIA Fake", 350, 61, {4242: 19 * GIB})
    assert (first.throttled, second.throttled) == ((), ("power cap", "heat (hardware)"))
    assert (second.utilisation, second.used, second.held) == (None, 21 * GIB, {4242: 0})


@pytest.mark.integration
def test_faults_of_the_driver_are_kept_in_words(driver: Driver) -> None:
    """Each once; they stay known when the driver does not answer any more."""
    sensor = driver.sensor()
    assert [words.split(" (")[0] for words in sensor.answer(10).xids] == ["Xid 79", "Xid 31"]
    assert len(sensor.answer(10).xids) == 2
    driver.mood("lost")
    assert len(sensor.answer(10).xids) == 2


@pytest.mark.integration
def test_a_dead_driver_blocks_nobody_and_its_helper_is_killed(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    """What does not come in time is unknown; the next helper is started later, and answers when the driver does."""
    monkeypatch.setattr(gpu, "_ANSWER", 0.3)
    monkeypatch.setattr(gpu, "_REST", 0.3)
    sensor = driver.sensor()
    assert sensor.answer(10).cards
    driver.mood("hang")
    pid = sensor.helper_pid
    assert pid is not None
    began = time.monotonic()
    sensor.look(ask=True)
    assert time.monotonic() - began < 0.2
    assert until(lambda: sensor.look().silent)
    assert sensor.look().cards is None
    assert until(lambda: not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    driver.mood("")
    assert until(lambda: sensor.look(ask=True).cards is not None)
    assert not sensor.look().silent


@pytest.mark.integration
def test_without_a_driver_the_helper_says_so_and_rests(driver: Driver) -> None:
    """It is not started again and again."""
    driver.mood("no driver")
    sensor = driver.sensor()
    assert sensor.answer(10).cards is None
    assert until(lambda: sensor.look().cards is None and sensor.helper_pid is None)
    sensor.look(ask=True)
    assert sensor.helper_pid is None


_SUPERVISOR = """
import sys, time
from fluxguard.clock import SystemClock
from fluxguard.supervisor.sensing.gpu import Gpus
sensor = Gpus(SystemClock(), present=lambda: True)
sensor.look(ask=True)
print(sensor.helper_pid, flush=True)
time.sleep(60)
"""


@pytest.mark.integration
@pytest.mark.parametrize("mood", ["", "hang"])
def test_the_helper_dies_with_its_supervisor(driver: Driver, mood: str) -> None:
    """Also while it hangs in the driver, and also when its supervisor is killed."""
    driver.mood(mood)
    supervisor = subprocess.Popen([sys.executable, "-c", _SUPERVISOR], env=driver.env, stdout=subprocess.PIPE)
    assert supervisor.stdout is not None
    with supervisor.stdout as said:
        helper = psutil.Process(int(said.readline()))
    supervisor.kill()
    supervisor.wait(10)
    assert until(lambda: not helper.is_running() or helper.status() == psutil.STATUS_ZOMBIE)


def test_without_a_card_there_is_no_helper() -> None:
    """Nothing is started where there is nothing to ask."""
    sensor = Gpus(FakeClock(), present=lambda: False)
    assert sensor.answer(5) == Seen()
    assert sensor.helper_pid is None


def test_a_helper_that_cannot_be_started_is_no_answer() -> None:
    """An interpreter that is gone harms nobody."""
    sensor = Gpus(FakeClock(), present=lambda: True, argv=("/no/such/program",))
    assert sensor.answer(5).cards is None


@pytest.mark.parametrize(
    ("cards", "used"),
    [
        ([Card(index=0, held={7: 1}), Card(index=1, held={8: 1})], [0]),
        ([Card(index=0, held={}), Card(index=1, held=None)], []),
        ([Card(index=0, held=None)], [0]),
        ([Card(index=0, held={99: 1})], [0]),
        ([], []),
    ],
    ids=["by process", "several and nobody says", "the only one", "the only one, numbers of the host", "none"],
)
def test_the_cards_of_a_training_are_those_it_holds_memory_on(cards: list[Card], used: list[int]) -> None:
    """The only card there is counts where nobody can say."""
    assert [card.index for card in used_by(cards, [7])] == used


@pytest.mark.integration
def test_a_helper_may_fail_for_weeks() -> None:
    """It is asked again a quarter of an hour later, however often it has failed."""
    sensor = Gpus(SystemClock(), present=lambda: True, argv=(sys.executable, "-c", ""), _failures=5000)
    assert sensor.answer(10).cards is None
    assert until(lambda: sensor.look() == Seen() and sensor.helper_pid is None)
    sensor.close()
