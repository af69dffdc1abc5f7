"""Block swap: while one block computes, the next comes to the device on another thread, and may not take for ever."""

from concurrent.futures import ThreadPoolExecutor

import torch

import fluxguard

device = "cuda" if torch.cuda.is_available() else "cpu"
blocks = [torch.nn.Linear(64, 64) for _ in range(8)]


def forward(hidden, pool):
    coming = pool.submit(blocks[0].to, device)
    for following in [*blocks[1:], None]:
        block = fluxguard.result(coming, "block swap")
        if following is not None:
            coming = pool.submit(following.to, device)
        hidden = block(hidden).relu()
        block.to("cpu")
    return hidden


if __name__ == "__main__":
    fluxguard.train_begins()
    fluxguard.limits.use(block_swap=10)
    with ThreadPoolExecutor(1) as pool:
        print(f"{len(blocks)} blocks, {forward(torch.ones(4, 64, device=device), pool).shape[0]} pictures")
