"""A tiny rectified-flow transformer of the FLUX kind, and a tiny autoencoder: real ones, only small."""

import logging
import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from library import custom_offloading_utils
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class FluxParams:
    """The sizes of the model; FLUX.1 itself has 19 and 38 blocks of 3072."""

    in_channels: int = 64
    vec_in_dim: int = 32
    context_in_dim: int = 32
    hidden_size: int = 64
    num_heads: int = 4
    depth: int = 3
    depth_single_blocks: int = 6


def timestep_embedding(t: Tensor, dim: int, max_period: int = 10000) -> Tensor:
    """Turn times in 0..1 into vectors of sines and cosines."""
    freqs = torch.exp(-math.log(max_period) * torch.arange(dim // 2, device=t.device) / (dim // 2))
    angles = 1000.0 * t[:, None].float() * freqs[None]
    return torch.cat([torch.cos(angles), torch.sin(angles)], dim=-1)


def rope(ids: Tensor, head_dim: int) -> tuple[Tensor, Tensor]:
    """Give the cosines and sines that rotate each head by the token's row and column."""
    per_axis = head_dim // 4
    freqs = 1.0 / 100.0 ** (torch.arange(per_axis, device=ids.device) / per_axis)
    angles = torch.cat([ids[..., 1:2] * freqs, ids[..., 2:3] * freqs], dim=-1)[:, None]
    return torch.cos(angles), torch.sin(angles)


def apply_rope(x: Tensor, pe: tuple[Tensor, Tensor]) -> Tensor:
    cos, sin = pe
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1).to(x.dtype)


def attention(qkv: Tensor, num_heads: int, pe: tuple[Tensor, Tensor]) -> Tensor:
    """Attend over all tokens of (batch, tokens, 3 * hidden)."""
    q, k, v = qkv.unflatten(-1, (3, num_heads, -1)).permute(2, 0, 3, 1, 4)
    x = F.scaled_dot_product_attention(apply_rope(q, pe), apply_rope(k, pe), v)
    return x.transpose(1, 2).flatten(2)


class Modulation(nn.Module):
    """Turns the conditioning vector into shift, scale and gate."""

    def __init__(self, dim: int, multiplier: int) -> None:
        super().__init__()
        self.multiplier = multiplier
        self.lin = nn.Linear(dim, multiplier * dim)

    def forward(self, vec: Tensor) -> tuple[Tensor, ...]:
        return self.lin(F.silu(vec))[:, None].chunk(self.multiplier, dim=-1)


class SelfAttention(nn.Module):
    """Holds the two projections; the attention itself joins both streams."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.qkv = nn.Linear(dim, dim * 3)
        self.proj = nn.Linear(dim, dim)


class CheckpointedBlock(nn.Module):
    """Recomputes its forward pass in the backward pass if asked to."""

    gradient_checkpointing = False

    def forward(self, *tensors, **kwargs):
        if self.training and self.gradient_checkpointing:
            return checkpoint(self._forward, *tensors, use_reentrant=False, **kwargs)
        return self._forward(*tensors, **kwargs)


class DoubleStreamBlock(CheckpointedBlock):
    """Treats picture and text with separate weights and joins them in the attention."""

    def __init__(self, dim: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.norm = nn.LayerNorm(dim, elementwise_affine=False)
        for stream in ("img", "txt"):
            self.add_module(f"{stream}_mod", Modulation(dim, 6))
            self.add_module(f"{stream}_attn", SelfAttention(dim))
            mlp = nn.Sequential(nn.Linear(dim, dim * 2), nn.GELU(approximate="tanh"), nn.Linear(dim * 2, dim))
            self.add_module(f"{stream}_mlp", mlp)

    def _forward(self, img: Tensor, txt: Tensor, vec: Tensor, pe) -> tuple[Tensor, Tensor]:
        img_mod, txt_mod = self.img_mod(vec), self.txt_mod(vec)
        img_qkv = self.img_attn.qkv((1 + img_mod[1]) * self.norm(img) + img_mod[0])
        txt_qkv = self.txt_attn.qkv((1 + txt_mod[1]) * self.norm(txt) + txt_mod[0])
        attn = attention(torch.cat((txt_qkv, img_qkv), dim=1), self.num_heads, pe)
        txt_attn, img_attn = attn[:, : txt.shape[1]], attn[:, txt.shape[1] :]

        img = img + img_mod[2] * self.img_attn.proj(img_attn)
        img = img + img_mod[5] * self.img_mlp((1 + img_mod[4]) * self.norm(img) + img_mod[3])
        txt = txt + txt_mod[2] * self.txt_attn.proj(txt_attn)
        txt = txt + txt_mod[5] * self.txt_mlp((1 + txt_mod[4]) * self.norm(txt) + txt_mod[3])
        return img, txt


class SingleStreamBlock(CheckpointedBlock):
    """Treats both streams as one, attention and MLP side by side."""

    def __init__(self, dim: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.hidden_size = dim
        self.linear1 = nn.Linear(dim, dim * 5)
        self.linear2 = nn.Linear(dim * 3, dim)
        self.norm = nn.LayerNorm(dim, elementwise_affine=False)
        self.modulation = Modulation(dim, 3)

    def _forward(self, x: Tensor, vec: Tensor, pe) -> Tensor:
        shift, scale, gate = self.modulation(vec)
        h = self.linear1((1 + scale) * self.norm(x) + shift)
        qkv, mlp = h.split([3 * self.hidden_size, 2 * self.hidden_size], dim=-1)
        attn = attention(qkv, self.num_heads, pe)
        return x + gate * self.linear2(torch.cat((attn, F.gelu(mlp, approximate="tanh")), dim=2))


class Flux(nn.Module):
    """Predicts the velocity from noise to picture for packed latents."""

    def __init__(self, params: FluxParams) -> None:
        super().__init__()
        self.params = params
        hidden = params.hidden_size
        self.img_in = nn.Linear(params.in_channels, hidden)
        self.txt_in = nn.Linear(params.context_in_dim, hidden)
        self.time_in = nn.Linear(32, hidden)
        self.guidance_in = nn.Linear(32, hidden)
        self.vector_in = nn.Linear(params.vec_in_dim, hidden)
        self.double_blocks = nn.ModuleList(DoubleStreamBlock(hidden, params.num_heads) for _ in range(params.depth))
        self.single_blocks = nn.ModuleList(
            SingleStreamBlock(hidden, params.num_heads) for _ in range(params.depth_single_blocks)
        )
        self.final_layer = nn.Linear(hidden, params.in_channels)
        self.blocks_to_swap: int | None = None
        self.offloader_double: custom_offloading_utils.ModelOffloader | None = None
        self.offloader_single: custom_offloading_utils.ModelOffloader | None = None

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    @property
    def dtype(self) -> torch.dtype:
        return next(self.parameters()).dtype

    def enable_gradient_checkpointing(self, cpu_offload: bool = False) -> None:
        for block in (*self.double_blocks, *self.single_blocks):
            block.gradient_checkpointing = True
        logger.info("FLUX: Gradient checkpointing enabled. CPU offload: %s", cpu_offload)

    def enable_block_swap(self, num_blocks: int, device: torch.device) -> None:
        """Swap as many blocks as asked for, or as this small model can spare."""
        doubles, singles = len(self.double_blocks) - 2, len(self.single_blocks) - 2
        spare = max(n for n in range(num_blocks + 1) if n // 2 <= doubles and (n - n // 2) * 2 <= singles)
        if spare < num_blocks:
            logger.warning("FLUX: this model has few blocks: %d instead of %d are swapped.", spare, num_blocks)
        self.blocks_to_swap = num_blocks = spare
        double_blocks_to_swap = num_blocks // 2
        single_blocks_to_swap = (num_blocks - double_blocks_to_swap) * 2

        self.offloader_double = custom_offloading_utils.ModelOffloader(
            self.double_blocks, double_blocks_to_swap, device
        )
        self.offloader_single = custom_offloading_utils.ModelOffloader(
            self.single_blocks, single_blocks_to_swap, device
        )
        logger.info(
            "FLUX: Block swap enabled. Swapping %d blocks, double blocks: %d, single blocks: %d.",
            *(num_blocks, double_blocks_to_swap, single_blocks_to_swap),
        )

    def move_to_device_except_swap_blocks(self, device: torch.device) -> None:
        if self.blocks_to_swap:
            save_double_blocks = self.double_blocks
            save_single_blocks = self.single_blocks
            self.double_blocks = None
            self.single_blocks = None

        self.to(device)

        if self.blocks_to_swap:
            self.double_blocks = save_double_blocks
            self.single_blocks = save_single_blocks

    def prepare_block_swap_before_forward(self) -> None:
        if self.blocks_to_swap is None or self.blocks_to_swap == 0:
            return
        self.offloader_double.prepare_block_devices_before_forward(self.double_blocks)
        self.offloader_single.prepare_block_devices_before_forward(self.single_blocks)

    def forward(
        self,
        img: Tensor,
        img_ids: Tensor,
        txt: Tensor,
        txt_ids: Tensor,
        timesteps: Tensor,
        y: Tensor,
        guidance: Tensor,
        txt_attention_mask: Tensor | None = None,
    ) -> Tensor:
        img = self.img_in(img)
        vec = self.time_in(timestep_embedding(timesteps, 32)) + self.guidance_in(timestep_embedding(guidance, 32))
        vec = vec + self.vector_in(y)
        txt = self.txt_in(txt)
        if txt_attention_mask is not None:
            txt = txt * txt_attention_mask[..., None].to(txt.dtype)
        pe = rope(torch.cat((txt_ids, img_ids), dim=1), self.params.hidden_size // self.params.num_heads)

        if not self.blocks_to_swap:
            for block in self.double_blocks:
                img, txt = block(img=img, txt=txt, vec=vec, pe=pe)
            img = torch.cat((txt, img), 1)
            for block in self.single_blocks:
                img = block(img, vec=vec, pe=pe)
        else:
            for block_idx, block in enumerate(self.double_blocks):
                self.offloader_double.wait_for_block(block_idx)
                img, txt = block(img=img, txt=txt, vec=vec, pe=pe)
                self.offloader_double.submit_move_blocks(self.double_blocks, block_idx)
            img = torch.cat((txt, img), 1)
            for block_idx, block in enumerate(self.single_blocks):
                self.offloader_single.wait_for_block(block_idx)
                img = block(img, vec=vec, pe=pe)
                self.offloader_single.submit_move_blocks(self.single_blocks, block_idx)

        return self.final_layer(img[:, txt.shape[1] :, ...])


class AutoEncoder(nn.Module):
    """Turns pictures into latents of 16 channels and an eighth of the size, and back."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Conv2d(3, 16, kernel_size=8, stride=8)
        self.decoder = nn.ConvTranspose2d(16, 3, kernel_size=8, stride=8)

    @property
    def device(self) -> torch.device:
        return self.encoder.weight.device

    @property
    def dtype(self) -> torch.dtype:
        return self.encoder.weight.dtype

    def encode(self, x: Tensor) -> Tensor:
        return 3.0 * self.encoder(x)

    def decode(self, z: Tensor) -> Tensor:
        return torch.tanh(self.decoder(z))
