"""A block swap waited for in a backward hook, where no signal handler of Python's runs."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import torch

import fluxguard


class Block(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        print("waiting", time.monotonic(), flush=True)
        fluxguard.result(future, "block swap")
        return grad * 2


if __name__ == "__main__":
    fluxguard.train_begins()
    future = ThreadPoolExecutor(1).submit(threading.Event().wait)
    x = torch.ones(3, requires_grad=True)
    Block.apply(x).sum().backward()
