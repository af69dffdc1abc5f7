"""A whole training for any number of ranks: python, torchrun or accelerate launch, killed and resumed, bit for bit."""

import argparse
import logging
import random
import time
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import nn
from torch.utils.data import Subset, TensorDataset
from torchmetrics.classification import BinaryAccuracy

import fluxguard
from fluxguard import distributed


def options():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output-dir", type=Path, default=Path("output"))
    parser.add_argument("--weights", type=Path, default=Path("start.safetensors"), help="to begin with, if it is there")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=8, help="samples of one rank in a batch")
    parser.add_argument("--step-size", type=int, default=32, help="samples of all ranks in an optimizer step")
    parser.add_argument("--save-every", type=int, default=4, help="optimizer steps")
    parser.add_argument("--patience", type=int, default=2, help="epochs without a better loss")
    parser.add_argument("--bf16", action="store_true", help="compute in bfloat16, weights stay in float32")
    parser.add_argument("--compression", choices=["bf16", "fp16", "powersgd"], help="of gradients on their way")
    parser.add_argument("--seed", type=int, default=7)
    return parser.parse_args()


def build():
    return nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 2))


def data():
    inputs = torch.randn(320, 8, generator=torch.Generator().manual_seed(0))
    everything = TensorDataset(inputs, (inputs[:, :4].sum(1) > inputs[:, 4:].sum(1)).long())
    return Subset(everything, range(256)), Subset(everything, range(256, 320))


class Training:
    def __init__(self, world, args):
        self.world, self.args = world, args
        self.device = torch.device("cpu") if world.device is None else torch.device("cuda", world.device)
        train, self.validation = data()
        self.seed = distributed.seed(args.seed)
        model = distributed.load_or_init(args.weights, build).to(self.device)
        self.model = distributed.wrap(model, compression=args.compression)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.sampler = distributed.Sampler(train, batch_size=args.batch_size, step_size=args.step_size, seed=args.seed)
        # Without a generator each loop over it draws from the stream of the dropout; one that is resumed, once more.
        self.loader = fluxguard.DataLoader(
            train, batch_size=args.batch_size, sampler=self.sampler, generator=torch.Generator()
        )
        self.accuracy = BinaryAccuracy().to(self.device)
        self.total = args.epochs * self.sampler.steps
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, self.total)
        self.parts = {
            "model": self.model, "optimizer": self.optimizer, "scheduler": self.scheduler, "sampler": self.sampler,
        }  # fmt: skip
        self.at = distributed.load_state(distributed.newest_state(args.output_dir / "states"), **self.parts)
        self.step, self.saved_at = self.at.step, time.monotonic()
        self.applied = list(self.at.values.get("applied", []))
        self.losses = list(self.at.values.get("losses", []))
        logging.info("rank %d of %d begins at step %d", world.rank, world.size, self.step)

    def loss(self, batch, model=None):
        inputs, labels = (part.to(self.device) for part in batch)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.args.bf16):
            scores = (model or self.model)(inputs)
            return nn.functional.cross_entropy(scores, labels), scores.argmax(1)

    def train(self, epoch):
        self.model.train()
        self.sampler.set_epoch(epoch)
        self.loader.generator.manual_seed(self.seed + epoch)
        for batch, part in enumerate(self.loader, self.sampler.begun + 1):
            part[0] += random.gauss(0, 0.01) + 0.01 * torch.randn_like(part[0])
            if batch % self.sampler.accumulation:
                with self.model.no_sync():
                    (self.loss(part)[0] / self.sampler.accumulation).backward()
                continue
            loss, _ = self.loss(part)
            (loss / self.sampler.accumulation).backward()
            self.apply(epoch, batch, loss.item())

    def apply(self, epoch, batch, loss):
        self.optimizer.step()
        self.scheduler.step()
        self.optimizer.zero_grad()
        self.step += 1
        self.applied.append(self.step)
        fluxguard.step(self.step, self.total, epoch + 1, loss)
        logging.info("rank %d applied step %d", self.world.rank, self.step)
        if distributed.decide(self.due, "save", epoch=epoch, step=self.step):
            self.save(epoch, batch)

    def due(self):
        """Rank 0 alone decides, by its own clock; all hear the same."""
        return self.step % self.args.save_every == 0 or time.monotonic() > self.saved_at + 600

    def save(self, epoch, batch):
        values = {"applied": self.applied, "losses": self.losses}
        states = self.args.output_dir / "states"
        distributed.save_state(states, step=self.step, epoch=epoch, batch=batch, values=values, **self.parts)
        self.saved_at = time.monotonic()

    @torch.no_grad()
    def validate(self, epoch):
        self.model.eval()
        each_once = range(self.world.rank, len(self.validation), self.world.size)
        mine = Subset(self.validation, each_once)
        self.accuracy.reset()
        total = 0.0
        for inputs, labels in fluxguard.DataLoader(mine, batch_size=self.args.batch_size):
            loss, scores = self.loss((inputs, labels), self.model.module)
            total += loss.item() * len(labels)
            self.accuracy.update(scores, labels.to(self.device))
        accuracy = distributed.compute(self.accuracy, "validation accuracy", epoch=epoch, uneven=True)
        logging.info("rank %d: epoch %d, accuracy %.3f", self.world.rank, epoch, accuracy)
        return distributed.mean(total / max(1, len(mine)), len(mine), what="validation loss", epoch=epoch)

    def stops(self):
        return len(self.losses) - 1 - self.losses.index(min(self.losses)) >= self.args.patience

    def run(self):
        for epoch in range(self.at.epoch, self.args.epochs):
            self.train(epoch)
            self.losses = [*self.losses[:epoch], self.validate(epoch)]
            if distributed.decide(self.stops, "early stopping", epoch=epoch, step=self.step):
                break
        with distributed.on_main("final weights") as main:
            if main:
                with fluxguard.phase("saving"), fluxguard.saved(self.args.output_dir / "final.safetensors") as path:
                    save_file({name: tensor.cpu() for name, tensor in self.model.state_dict().items()}, path)
        sums = sum(tensor.double().sum().item() for tensor in self.model.parameters())
        logging.info(
            "rank %d finished: weights %r, loss %.4f, steps %s", self.world.rank, sums, self.losses[-1], self.applied
        )


def main():
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    with distributed.setup() as world:
        Training(world, options()).run()


if __name__ == "__main__":
    main()
