"""Killed and resumed in a process of its own, a training with a real accelerator ends as the undisturbed one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

TRAINER = """
import random, sys
import numpy, torch
from pathlib import Path
from accelerate import Accelerator
import fluxguard
from fluxguard.guard import resume

class Data:
    epoch = 0
    order = list(range(7))
    def __len__(self): return 7
    def __getitem__(self, index):
        return torch.tensor([float(self.order[index]), random.random() if flips else 0.5, 1.0])
    def set_current_epoch(self, epoch):
        while self.epoch < epoch:
            self.epoch += 1
            random.seed(self.epoch)
            random.shuffle(self.order)

def collate(examples):
    info = torch.utils.data.get_worker_info()
    (info.dataset if info else data).set_current_epoch(now.value)
    return examples[0]

workers, lasting, gas, kill_at, flips = map(int, sys.argv[1:6])
state = sys.argv[6]
import multiprocessing
now = multiprocessing.Value("i", 0)
data = Data()
data.order = list(range(7))
torch.manual_seed(1); random.seed(1); numpy.random.seed(1)
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=gas)
model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = fluxguard.DataLoader(data, batch_size=1, shuffle=True, collate_fn=collate, num_workers=workers,
                              persistent_workers=bool(lasting))
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
if Path(state).exists():
    fluxguard.load_state(accelerator, state)
first, _, step = fluxguard.resume_point(0, 0, 0, len(loader), gas)
for epoch in range(first, 4):
    now.value = epoch + 1
    for _, batch in fluxguard.batches(loader, epoch):
        with accelerator.accumulate(model):
            noise = torch.rand(3) + numpy.random.rand()
            accelerator.backward((model(batch + noise) ** 2).mean())
            optimizer.step()
            optimizer.zero_grad()
        if accelerator.sync_gradients:
            step += 1
            if step == kill_at:
                fluxguard.save_state(accelerator, state)
                import os; os._exit(9)
print(step, [parameter.flatten().tolist() for parameter in model.parameters()])
"""


@pytest.mark.integration
@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    ("workers", "lasting", "accumulation", "kill_at", "flips"),
    [(2, 1, 1, 17, 1), (2, 1, 1, 14, 0), (2, 0, 1, 17, 1), (0, 0, 1, 10, 1), (2, 1, 2, 10, 1), (0, 0, 2, 8, 1)],
    ids=["living", "living, at an epoch's end", "new", "none", "accumulated", "accumulated, at an epoch's end"],
)
def test_a_killed_and_resumed_training_is_equal_to_the_undisturbed_one(
    spawn: Any, tmp_path: Path, workers: int, lasting: int, accumulation: int, kill_at: int, flips: int
) -> None:
    pytest.importorskip("accelerate")
    script = tmp_path / "trainer.py"
    script.write_text(TRAINER)

    def train(kill: int, state: str) -> str:
        trainer = spawn(script, workers, lasting, accumulation, kill, flips, tmp_path / state, torch=True)
        assert trainer.ends() == (9 if kill else 0), trainer.output
        return trainer.output.strip().splitlines()[-1] if not kill else ""

    undisturbed = train(0, "none")
    train(kill_at, "state")
    assert train(0, "state") == undisturbed
