"""Reinforcement learning on any number of ranks, with environments in processes of their own that may fall silent."""

import argparse
import contextlib
import json
import logging
import multiprocessing
import os
import random
import threading
import time
from multiprocessing import connection
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import nn

import fluxguard
from fluxguard import distributed

DISCOUNT = 0.9
ENOUGH = -0.25  # the reward of a step
GONE = 2.0  # seconds for a killed process to end


def options():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--policy", type=Path, default=Path("policy.safetensors"), help="to begin with, if it is there")
    parser.add_argument("--environments", type=int, default=4, help="of one rank")
    parser.add_argument("--steps", type=int, default=32, help="of one environment in an update")
    parser.add_argument("--updates", type=int, default=60, help="fewer when the policy is good enough")
    parser.add_argument("--limit", type=float, default=10, help="seconds for an environment to answer")
    parser.add_argument("--stuck", default="", metavar="RANK:NUMBER", help="an environment that stops answering")
    return parser.parse_args()


class Reach:
    """A point on a line that is pushed to its target; an observation is where it is, how fast, and the target."""

    def __init__(self, seed, answers):
        self.random, self.answers = random.Random(seed), answers
        self.begin()

    def begin(self):
        self.place, self.speed, self.target, self.left = 0.0, 0.0, self.random.uniform(-1, 1), 16
        return self.place, self.speed, self.target

    def step(self, action):
        self.answers -= 1
        while not self.answers:
            time.sleep(1)  # what a simulator does that hangs
        self.speed = 0.5 * self.speed + 0.2 * (action - 1)
        self.place, self.left = self.place + self.speed, self.left - 1
        reward, ended = -abs(self.place - self.target), self.left == 0
        return self.begin() if ended else (self.place, self.speed, self.target), reward, ended


def serve(pipe, ends):
    """Be an environment, as long as its trainer lives."""
    for end in ends:
        end.close()
    threading.Thread(target=lambda: (multiprocessing.parent_process().join(), os._exit(1)), daemon=True).start()
    environment = Reach(*pipe.recv())
    pipe.send((environment.begin(), 0.0, False))
    while True:
        pipe.send(environment.step(pipe.recv()))


class Environments:
    """The environments of one rank. Each goes on as soon as it has an action, whatever the others do."""

    def __init__(self, count, limit):
        # They are forked before a thread is there; where there is no fork they import this file.
        context = multiprocessing.get_context("fork" if hasattr(os, "fork") else "spawn")
        self.limit, self.pipes, self.processes, self.asked, self.rank = limit, [], [], {}, 0
        for _ in range(count):
            ours, theirs = context.Pipe()
            self.pipes.append(ours)
            self.processes.append(context.Process(target=serve, args=(theirs, self.pipes)))
            self.processes[-1].start()
            theirs.close()

    def ask(self, number, what):
        with contextlib.suppress(OSError):  # of one that has ended, as its answer will show
            self.pipes[number].send(what)
        self.asked[number] = time.monotonic()

    def answers(self):
        """Return what has been answered, by environment, as soon as there is one answer; name one that is silent."""
        last = min(self.asked.values()) + self.limit
        ready = connection.wait([self.pipes[one] for one in self.asked], max(0.0, last - time.monotonic()))
        for number, since in self.asked.items():
            waited = time.monotonic() - since
            if self.pipes[number] not in ready and waited >= self.limit:
                raise TimeoutError(f"environment {number} of rank {self.rank} has not answered for {waited:.1f} s")
        return {number: self.answer(number) for number in list(self.asked) if self.pipes[number] in ready}

    def answer(self, number):
        del self.asked[number]
        try:
            return self.pipes[number].recv()
        except (EOFError, OSError):
            raise ChildProcessError(f"environment {number} of rank {self.rank} has ended") from None

    def close(self):
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.join(GONE)


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, 64), nn.Tanh())
        self.actor, self.critic = nn.Linear(64, 3), nn.Linear(64, 1)

    def forward(self, observations):
        seen = self.body(observations)
        return self.actor(seen).log_softmax(-1), self.critic(seen).squeeze(-1)


class Training:
    def __init__(self, world, environments, args):
        self.world, self.environments, self.args = world, environments, args
        self.device = torch.device("cpu") if world.device is None else torch.device("cuda", world.device)
        seed = distributed.seed(7)  # another one on each rank, so that no two environments are alike
        self.policy = distributed.wrap(distributed.load_or_init(args.policy, Policy).to(self.device))
        self.optimizer = torch.optim.Adam(self.policy.parameters(), lr=0.01)
        logging.info("rank %d of %d draws from seed %d", world.rank, world.size, seed)
        environments.rank, self.seen = world.rank, {}
        for number in range(args.environments):
            answers = 100 if args.stuck == f"{world.rank}:{number}" else -1
            environments.ask(number, (f"{seed}/{number}", answers))
        with distributed.together("first observations"):
            while environments.asked:
                self.seen |= {number: observation for number, (observation, *_) in environments.answers().items()}

    @torch.no_grad()
    def act(self, number):
        observation = torch.tensor(self.seen[number], device=self.device)
        action = self.policy.module(observation)[0].exp().multinomial(1).item()
        self.environments.ask(number, action)
        return self.seen[number], action

    def collect(self):
        """Return the (observation, action, reward, ended) of each step, by environment."""
        taken = {number: [self.act(number)] for number in self.seen}
        while self.environments.asked:
            for number, (observation, reward, ended) in self.environments.answers().items():
                self.seen[number] = observation
                taken[number][-1] += (reward, ended)
                if len(taken[number]) < self.args.steps:
                    taken[number].append(self.act(number))
        return taken

    def improve(self, taken):
        rows = []
        for number, steps in taken.items():
            with torch.no_grad():
                value = self.policy.module(torch.tensor(self.seen[number], device=self.device))[1].item()
            for observation, action, reward, ended in reversed(steps):
                value = reward + (0 if ended else DISCOUNT * value)
                rows.append((*observation, action, value))
        observations, actions, returns = torch.tensor(rows, device=self.device).split((3, 1, 1), 1)
        logs, values = self.policy(observations)
        better = returns.squeeze(1) - values
        entropy = -(logs.exp() * logs).sum(1)
        loss = better.square() - better.detach() * logs.gather(1, actions.long()).squeeze(1) - 0.01 * entropy
        self.optimizer.zero_grad()
        loss.mean().backward()
        self.optimizer.step()
        return loss.mean().item()

    def run(self):
        rewards = []
        for update in range(1, self.args.updates + 1):
            with distributed.together("rollout", epoch=update):
                taken = self.collect()
            loss = self.improve(taken)
            mine = [reward for steps in taken.values() for _, _, reward, _ in steps]
            rewards.append(distributed.mean(sum(mine) / len(mine), len(mine), what="reward", epoch=update))
            fluxguard.step(update, self.args.updates, update, loss)
            if distributed.decide(lambda: rewards[-1] >= ENOUGH, "enough", epoch=update):
                break
        with distributed.on_main("policy and statistics") as main:
            if main:
                with fluxguard.saved(self.args.policy) as path:
                    save_file(self.policy.state_dict(), path)
                self.args.policy.with_suffix(".json").write_text(json.dumps(rewards))
                logging.info("%d updates, reward of a step %.2f, then %.2f", len(rewards), rewards[0], rewards[-1])


def main():
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    args = options()
    environments = Environments(args.environments, args.limit)
    try:
        with distributed.setup() as world:
            try:
                Training(world, environments, args).run()
            except Exception as error:
                logging.error("rank %d ends: %s", world.rank, error)
                raise
    finally:
        environments.close()


if __name__ == "__main__":
    main()
