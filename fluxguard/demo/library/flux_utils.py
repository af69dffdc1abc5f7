"""The models by their paths, the text encoders, and the packing of latents into tokens."""

import logging
import os
from collections.abc import Callable

import torch
import torch.nn.functional as F
from library import flux_models
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

logger = logging.getLogger(__name__)

MODEL_VERSION_FLUX_V1 = "flux1"
VOCABULARY = 512
TEXT_DIM = 32


class TextLayer(nn.Module):
    """One attention and one MLP, named as transformers names them, because the LoRA keys come from the names."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.self_attn = nn.ModuleDict(
            {name: nn.Linear(dim, dim) for name in ("q_proj", "k_proj", "v_proj", "out_proj")}
        )
        self.mlp = nn.ModuleDict({"fc1": nn.Linear(dim, dim * 2), "fc2": nn.Linear(dim * 2, dim)})
        self.norm = nn.LayerNorm(dim, elementwise_affine=False)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (self.self_attn[name](self.norm(x)) for name in ("q_proj", "k_proj", "v_proj"))
        x = x + self.self_attn["out_proj"](F.scaled_dot_product_attention(q, k, v))
        return x + self.mlp["fc2"](F.gelu(self.mlp["fc1"](self.norm(x))))


class TextModel(nn.Module):
    """Embeds hashed words and passes them through a few layers."""

    def __init__(self, layers: int, dim: int = TEXT_DIM) -> None:
        super().__init__()
        self.embeddings = nn.Embedding(VOCABULARY, dim)
        self.layers = nn.ModuleList(TextLayer(dim) for _ in range(layers))

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embeddings(tokens)
        for layer in self.layers:
            x = layer(x)
        return x


class TextEncoder(nn.Module):
    """What both text encoders have in common: where they are and of which type."""

    supports_gradient_checkpointing = False

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.text_model = TextModel(layers)

    @property
    def device(self) -> torch.device:
        return self.text_model.embeddings.weight.device

    @property
    def dtype(self) -> torch.dtype:
        return self.text_model.embeddings.weight.dtype


class CLIPTextModel(TextEncoder):
    """Gives one vector for a caption."""

    def forward(self, tokens: Tensor) -> dict[str, Tensor]:
        return {"pooler_output": self.text_model(tokens).mean(dim=1)}


class T5EncoderModel(TextEncoder):
    """Gives one vector for each word of a caption."""

    def forward(self, tokens: Tensor, attention_mask: Tensor | None = None) -> tuple[Tensor, None]:
        out = self.text_model(tokens)
        return (out if attention_mask is None else out * attention_mask[..., None].to(out.dtype)), None


def load_model(path: str | None, make: Callable[[], nn.Module], dtype: torch.dtype | None, seed: int) -> nn.Module:
    """Load the file if it holds this model; otherwise make the weights from a fixed seed. Nothing is downloaded."""
    with torch.random.fork_rng(devices=[]):  # the weights must not depend on, nor change, the state of the run
        torch.manual_seed(seed)
        model = make()
    if path and os.path.exists(path):
        try:
            model.load_state_dict(load_file(path))
            logger.info("loaded %s from %s", type(model).__name__, path)
        except (SafetensorError, RuntimeError):
            logger.info(
                "%s holds no %s of this size: its weights are made from seed %d", path, type(model).__name__, seed
            )
    else:
        logger.info("no file %s: the weights of %s are made from seed %d", path, type(model).__name__, seed)
    return model.to(dtype).requires_grad_(False)


def load_flow_model(path: str | None, dtype: torch.dtype | None, device: str = "cpu") -> tuple[bool, nn.Module]:
    model = load_model(path, lambda: flux_models.Flux(flux_models.FluxParams()), dtype, seed=1)
    return "schnell" in os.path.basename(path or ""), model.to(device)


def load_clip_l(path: str | None, dtype: torch.dtype | None, device: str = "cpu") -> nn.Module:
    return load_model(path, lambda: CLIPTextModel(2), dtype, seed=2).to(device)


def load_t5xxl(path: str | None, dtype: torch.dtype | None, device: str = "cpu") -> nn.Module:
    return load_model(path, lambda: T5EncoderModel(1), dtype, seed=3).to(device)


def load_ae(path: str | None, dtype: torch.dtype | None, device: str = "cpu") -> nn.Module:
    return load_model(path, flux_models.AutoEncoder, dtype, seed=4).to(device)


def pack_latents(x: Tensor) -> Tensor:
    """Make one token of each 2 x 2 latents: (b, c, 2h, 2w) to (b, h * w, 4c)."""
    return F.pixel_unshuffle(x, 2).flatten(2).transpose(1, 2)


def unpack_latents(x: Tensor, packed_latent_height: int, packed_latent_width: int) -> Tensor:
    """Undo the packing: (b, h * w, 4c) to (b, c, 2h, 2w)."""
    return F.pixel_shuffle(x.transpose(1, 2).unflatten(2, (packed_latent_height, packed_latent_width)), 2)


def prepare_img_ids(batch_size: int, packed_latent_height: int, packed_latent_width: int) -> Tensor:
    """Number the tokens by row and column: (b, h * w, 3)."""
    rows, columns = torch.meshgrid(torch.arange(packed_latent_height), torch.arange(packed_latent_width), indexing="ij")
    img_ids = torch.stack([torch.zeros_like(rows), rows, columns], dim=-1).reshape(1, -1, 3)
    return img_ids.float().repeat(batch_size, 1, 1)
