"""Laws of the end with exit code 0: finished only with weights that verify, and else with the reason that is known."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest

from fluxguard.supervisor import finish
from fluxguard.supervisor.attempt import Attempt
from fluxguard.supervisor.causes import BY_NAME
from fluxguard.supervisor.causes.diagnosis import Diagnosis, Evidence, diagnose, named
from fluxguard.supervisor.checkpoints.states import Plan
from fluxguard.supervisor.detecting.detectors import Symptom
from fluxguard.supervisor.detecting.observation import Exit
from fluxguard.supervisor.finish import Finish
from fluxguard.supervisor.trainee import Trainee

ATTEMPT = Attempt(uuid="a", number=1, start_step=0, log_from=0, at=1.0, keeper=None, weights_before=[])


def trainee(weights: Path) -> Trainee:
    """Return one whose final weights lie there."""
    return Trainee(
        argv=("python",), resumed=lambda *_: (), masked=lambda words: words, secrets=frozenset(), cwd=weights.parent,
        env={}, weights=weights, hardened=False, accumulation=1, own_cadence=True,
    )  # fmt: skip


def write(path: Path, number: float) -> None:
    """Write weights of one number."""
    header = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + struct.pack("<f", number))


def judged(weights: Path, applied: int = 40) -> Finish | Diagnosis:
    return finish.judge(trainee(weights), Plan(planned_steps=40), ATTEMPT, applied)


def test_each_way_not_to_finish_is_a_row_of_the_table(tmp_path: Path) -> None:
    """So the page that explains causes knows it; the words name the file and the numbers."""
    weights = tmp_path / "lora.safetensors"
    missing = judged(weights)
    write(weights, float("nan"))
    useless = judged(weights)
    write(weights, 1.0)
    short = judged(weights, applied=39)
    assert isinstance(judged(weights), Finish)
    assert [isinstance(one, Diagnosis) and one.cause for one in (missing, useless, short)] == [
        "no verified weights",
        "weights not finite",
        "wrong number of steps",
    ]
    for one in (missing, useless, short):
        assert isinstance(one, Diagnosis)
        row = BY_NAME[one.cause]
        assert (one.advice, one.origin, one.again) == (row.advice, row.origin, row.again)
    assert isinstance(missing, Diagnosis)
    assert "lora.safetensors was not written" in missing.words
    assert isinstance(useless, Diagnosis)
    assert "lora.safetensors" in useless.words
    assert isinstance(short, Diagnosis)
    assert "39 of 40 planned steps" in short.words


@pytest.mark.parametrize(
    ("lines", "cause"),
    [
        (["ERROR    No data found. Please verify"], "no images found"),
        (["steps: 100%|##| 40/40 [00:01<00:00, 40it/s]"], "no verified weights"),
        ([], "no verified weights"),
    ],
)
def test_what_the_trainer_said_explains_missing_weights(lines: list[str], cause: str) -> None:
    """Some ends of upstream have exit code 0 and a reason; where nothing is said, the weights are the reason."""
    ended = Symptom(kind="ended", phase="load", since=1.0)
    evidence = Evidence(exit=Exit(code=0), lines=lines)
    found = finish.better(named("no verified weights", "x was not written"), lambda: diagnose(ended, evidence))
    assert found.cause == cause


@pytest.mark.parametrize("known", ["weights not finite", "wrong number of steps", "machine restarted"])
def test_what_is_known_for_sure_is_not_explained_away(known: str) -> None:
    """The output is not asked."""
    sure = named(known, "x")

    def never() -> Diagnosis:
        raise AssertionError

    assert finish.better(sure, never) is sure
