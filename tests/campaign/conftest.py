"""What the tests of the campaign share: an undisturbed training, its caches, and the hardened miniature."""

from __future__ import annotations

import pytest

from tests.campaign.field import Field
from tests.workers import once


@pytest.fixture(scope="session")
def field(tmp_path_factory: pytest.TempPathFactory) -> Field:
    """Where the runs happen, with the undisturbed training that they are compared with."""
    pytest.importorskip("accelerate")
    return Field(once(tmp_path_factory, "campaign", lambda folder: Field(folder).make_template()))
