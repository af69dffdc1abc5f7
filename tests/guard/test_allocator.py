"""Laws of what is told about the GPU's memory; there is no GPU here, so torch is a stand-in."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from fluxguard.guard import allocator
from fluxguard.heartbeat import Heart


class Cuda:
    """Counts who asks; anything that is not here would start CUDA or wait for it."""

    def __init__(self) -> None:
        self.asked = 0
        self.initialized = True

    def is_initialized(self) -> bool:
        return self.initialized

    def memory_stats_as_nested_dict(self) -> dict[str, int]:
        self.asked += 1
        return {"num_alloc_retries": 7, "num_ooms": 2}


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Cuda:
    cuda = Cuda()
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    monkeypatch.setattr(allocator, "_looked", allocator._Looked())
    monkeypatch.setattr(allocator, "time", SimpleNamespace(monotonic=lambda: 100.0))
    return cuda


def test_retries_reach_the_heartbeat(heart: Heart, cuda: Cuda) -> None:
    """Both counts, with the next beat."""
    allocator.memory()
    assert (heart.retries, heart.ooms) == (7, 2)


def test_a_gpu_that_was_not_started_is_left_alone(heart: Heart, cuda: Cuda) -> None:
    """CUDA is never started by looking."""
    cuda.initialized = False
    allocator.memory()
    assert (heart.retries, cuda.asked) == (0, 0)


def test_it_looks_once_a_second(heart: Heart, cuda: Cuda, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fast steps pay for no more than that."""
    for now in (100.0, 100.1, 100.9, 101.1):
        monkeypatch.setattr(allocator, "time", SimpleNamespace(monotonic=lambda now=now: now))
        allocator.memory()
    assert cuda.asked == 2


def test_without_torch_nothing_happens(heart: Heart, monkeypatch: pytest.MonkeyPatch) -> None:
    """The guard imports nothing for this."""
    monkeypatch.setattr(allocator, "_looked", allocator._Looked())
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    allocator.memory()
    assert (heart.retries, "torch" in sys.modules) == (0, False)
