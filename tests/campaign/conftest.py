"""What the tests of the campaign share: an undisturbed training, its caches, and the hardened miniature."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable

import pytest

from fluxguard.drill.workshop import Workshop
from fluxguard.launch import trainsh
from fluxguard.launch.trainer import script_index
from tests.campaign.field import LONGEST, Field
from tests.conftest import Warm
from tests.warm import TAG
from tests.workers import once


@pytest.fixture(scope="session")
def plainly(warm: Warm) -> Callable[[Workshop], None]:
    """Give what trains as drill.train does, but without the launcher, and with torch imported before."""

    def train(made: Workshop) -> None:
        script = trainsh.parse(made.train_sh, os.environ)
        index = script_index(script.argv)
        assert index is not None
        env = {**os.environ, **script.env, "OMP_NUM_THREADS": "1", TAG: uuid.uuid4().hex}
        log = made.output_dir / "train.log"
        log.touch()
        process = warm().start(script.argv[index:], env, script.cwd or made.output_dir, log)
        try:
            assert process.wait(LONGEST) == 0, log.read_text(errors="replace")
        finally:
            process.kill()

    return train


@pytest.fixture(scope="session")
def field(tmp_path_factory: pytest.TempPathFactory, plainly: Callable[[Workshop], None]) -> Field:
    """Where the runs happen, with the undisturbed training that they are compared with."""
    pytest.importorskip("accelerate")
    return Field(once(tmp_path_factory, "campaign", lambda folder: Field(folder).make_template(plainly)))
