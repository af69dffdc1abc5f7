"""Block swap: a few blocks of the model wait in a second buffer, and one thread carries their weights over."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch
from library.faults import stuck_if_asked
from torch import nn


def swap_weight_devices_no_cuda(device: torch.device, layer_to_cpu: nn.Module, layer_to_cuda: nn.Module) -> None:
    """Let the incoming layer take over the outgoing layer's buffers; its weights move to fresh memory."""
    modules_to_cpu = dict(layer_to_cpu.named_modules())
    for name, module_to_cuda in layer_to_cuda.named_modules():
        if not isinstance(module_to_cuda, nn.Linear) or name not in modules_to_cpu:
            continue
        module_to_cpu = modules_to_cpu[name]
        cuda_data_view = module_to_cpu.weight.data
        # the order keeps both layers right at every moment, as this runs beside the forward pass
        module_to_cpu.weight.data = cuda_data_view.clone()
        cuda_data_view.copy_(module_to_cuda.weight.data)
        module_to_cuda.weight.data = cuda_data_view


class Offloader:
    """Carries weights on a thread of its own and keeps one future for each block under way."""

    def __init__(self, num_blocks: int, blocks_to_swap: int, device: torch.device, debug: bool = False):
        self.num_blocks = num_blocks
        self.blocks_to_swap = blocks_to_swap
        self.device = device
        self.debug = debug

        self.thread_pool = ThreadPoolExecutor(max_workers=1)
        self.futures = {}

    def swap_weight_devices(self, block_to_cpu: nn.Module, block_to_cuda: nn.Module):
        swap_weight_devices_no_cuda(self.device, block_to_cpu, block_to_cuda)

    def _submit_move_blocks(self, blocks, block_idx_to_cpu, block_idx_to_cuda):
        def move_blocks(bidx_to_cpu, block_to_cpu, bidx_to_cuda, block_to_cuda):
            stuck_if_asked("swap")
            self.swap_weight_devices(block_to_cpu, block_to_cuda)
            return bidx_to_cpu, bidx_to_cuda

        block_to_cpu = blocks[block_idx_to_cpu]
        block_to_cuda = blocks[block_idx_to_cuda]

        self.futures[block_idx_to_cuda] = self.thread_pool.submit(
            move_blocks, block_idx_to_cpu, block_to_cpu, block_idx_to_cuda, block_to_cuda
        )

    def _wait_blocks_move(self, block_idx):
        if block_idx not in self.futures:
            return

        future = self.futures.pop(block_idx)
        _, bidx_to_cuda = future.result()

        assert block_idx == bidx_to_cuda, f"Block index mismatch: {block_idx} != {bidx_to_cuda}"


class ModelOffloader(Offloader):
    """Swaps the first blocks out behind the forward pass, and back in behind the backward pass."""

    def __init__(self, blocks, blocks_to_swap: int, device: torch.device, debug: bool = False):
        super().__init__(len(blocks), blocks_to_swap, device, debug)
        self.remove_handles = []
        for i, block in enumerate(blocks):
            hook = self.create_backward_hook(blocks, i)
            if hook is not None:
                self.remove_handles.append(block.register_full_backward_hook(hook))

    def create_backward_hook(self, blocks, block_index: int) -> Callable[..., None] | None:
        """Make the hook that undoes, block by block from the end, what the forward pass swapped."""
        num_blocks_propagated = self.num_blocks - block_index - 1
        swapping = 0 < num_blocks_propagated <= self.blocks_to_swap
        waiting = 0 < block_index <= self.blocks_to_swap
        if not swapping and not waiting:
            return None

        block_idx_to_cpu = self.num_blocks - num_blocks_propagated
        block_idx_to_cuda = self.blocks_to_swap - num_blocks_propagated
        block_idx_to_wait = block_index - 1

        def backward_hook(module, grad_input, grad_output):
            if swapping:
                self._submit_move_blocks(blocks, block_idx_to_cpu, block_idx_to_cuda)
            if waiting:
                self._wait_blocks_move(block_idx_to_wait)

        return backward_hook

    def prepare_block_devices_before_forward(self, blocks):
        if not self.blocks_to_swap:
            return
        for block_idx in list(self.futures.keys()):
            self._wait_blocks_move(block_idx)
        for block in blocks:
            block.to(self.device)

    def wait_for_block(self, block_idx: int):
        if not self.blocks_to_swap:
            return
        self._wait_blocks_move(block_idx)

    def submit_move_blocks(self, blocks, block_idx: int):
        if not self.blocks_to_swap or block_idx >= self.blocks_to_swap:
            return
        block_idx_to_cpu = block_idx
        block_idx_to_cuda = self.num_blocks - self.blocks_to_swap + block_idx
        self._submit_move_blocks(blocks, block_idx_to_cpu, block_idx_to_cuda)
