"""LoRA for the miniature of FLUX, with kohya's key names."""

import logging
import math
import os
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import nn

logger = logging.getLogger(__name__)


class LoRAModule(nn.Module):
    """Adds a product of two small matrices to a frozen linear layer."""

    def __init__(self, lora_name: str, org_module: nn.Linear, multiplier: float, lora_dim: int, alpha: float) -> None:
        super().__init__()
        self.lora_name = lora_name
        self.lora_dim = lora_dim
        self.multiplier = multiplier
        self.lora_down = nn.Linear(org_module.in_features, lora_dim, bias=False)
        self.lora_up = nn.Linear(lora_dim, org_module.out_features, bias=False)
        nn.init.kaiming_uniform_(self.lora_down.weight, a=math.sqrt(5))
        nn.init.zeros_(self.lora_up.weight)
        self.scale = alpha / lora_dim
        self.register_buffer("alpha", torch.tensor(float(alpha)))
        self.org_module = org_module

    def apply_to(self) -> None:
        self.org_forward = self.org_module.forward
        self.org_module.forward = self.forward
        del self.org_module

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.org_forward(x) + self.lora_up(self.lora_down(x)) * self.multiplier * self.scale


class LoRANetwork(nn.Module):
    """All LoRA modules of one training."""

    FLUX_TARGET_REPLACE_MODULE_DOUBLE = ("DoubleStreamBlock",)
    FLUX_TARGET_REPLACE_MODULE_SINGLE = ("SingleStreamBlock",)
    TEXT_ENCODER_TARGET_REPLACE_MODULE = ("TextLayer",)
    LORA_PREFIX_FLUX = "lora_unet"
    LORA_PREFIX_TEXT_ENCODER_CLIP = "lora_te1"

    def __init__(
        self, text_encoders, unet, multiplier: float, lora_dim: int, alpha: float, train_blocks: str = "all"
    ) -> None:
        super().__init__()
        self.multiplier = multiplier
        self.lora_dim = lora_dim
        self.alpha = alpha
        self.train_t5xxl = False

        targets: tuple[str, ...] = ()
        if train_blocks in ("all", "double"):
            targets += self.FLUX_TARGET_REPLACE_MODULE_DOUBLE
        if train_blocks in ("all", "single"):
            targets += self.FLUX_TARGET_REPLACE_MODULE_SINGLE
        te_targets = self.TEXT_ENCODER_TARGET_REPLACE_MODULE
        self.text_encoder_loras = self.create_modules(self.LORA_PREFIX_TEXT_ENCODER_CLIP, text_encoders[0], te_targets)
        logger.info("create LoRA for Text Encoder 1: %d modules.", len(self.text_encoder_loras))
        self.unet_loras = self.create_modules(self.LORA_PREFIX_FLUX, unet, targets)
        logger.info("create LoRA for FLUX %s blocks: %d modules.", train_blocks, len(self.unet_loras))

    def create_modules(self, prefix: str, root_module: nn.Module, targets: tuple[str, ...]) -> list[LoRAModule]:
        loras = []
        for name, module in root_module.named_modules():
            if type(module).__name__ not in targets:
                continue
            for child_name, child in module.named_modules():
                if isinstance(child, nn.Linear):
                    lora_name = f"{prefix}.{name}.{child_name}".replace(".", "_")
                    loras.append(LoRAModule(lora_name, child, self.multiplier, self.lora_dim, self.alpha))
        return loras

    def apply_to(self, text_encoders, unet, apply_text_encoder: bool = True, apply_unet: bool = True) -> None:
        if not apply_text_encoder:
            self.text_encoder_loras = []
        if not apply_unet:
            self.unet_loras = []
        for lora in self.text_encoder_loras + self.unet_loras:
            lora.apply_to()
            self.add_module(lora.lora_name, lora)

    def set_multiplier(self, multiplier: float) -> None:
        for lora in self.text_encoder_loras + self.unet_loras:
            lora.multiplier = multiplier

    def prepare_optimizer_params_with_multiple_te_lrs(self, text_encoder_lr, unet_lr, default_lr):
        """Group the parameters by text encoder and transformer: (groups, descriptions)."""
        text_encoder_lr = text_encoder_lr[0] if text_encoder_lr else None
        all_params, lr_descriptions = [], []
        for loras, lr, description in (
            (self.text_encoder_loras, text_encoder_lr, "textencoder 1"),
            (self.unet_loras, unet_lr, "unet"),
        ):
            if loras:
                params = [p for lora in loras for p in lora.parameters()]
                all_params.append({"params": params, "lr": default_lr if lr is None else lr})
                lr_descriptions.append(description)
        return all_params, lr_descriptions

    def prepare_optimizer_params(self, text_encoder_lr, unet_lr, default_lr=None):
        return self.prepare_optimizer_params_with_multiple_te_lrs([text_encoder_lr], unet_lr, default_lr)

    def enable_gradient_checkpointing(self) -> None:
        """Do nothing: the blocks are recomputed with their LoRA modules."""

    def prepare_grad_etc(self, text_encoder, unet) -> None:
        self.requires_grad_(True)

    def on_epoch_start(self, text_encoder, unet) -> None:
        self.train()

    def on_step_start(self, text_encoder=None, unet=None) -> None:
        """Do nothing, as upstream."""

    def get_trainable_params(self):
        return self.parameters()

    def load_weights(self, file: str):
        return self.load_state_dict(load_file(file), strict=False)

    def save_weights(self, file: str, dtype: torch.dtype | None, metadata: dict[str, str] | None) -> None:
        state_dict = self.state_dict()
        for key in list(state_dict):
            value = state_dict[key].detach().clone().to("cpu")
            state_dict[key] = value if dtype is None else value.to(dtype)
        if os.path.splitext(file)[1] == ".safetensors":
            save_file(state_dict, file, metadata or None)
        else:
            torch.save(state_dict, file)


def create_network(
    multiplier: float,
    network_dim: int | None,
    network_alpha: float | None,
    vae,
    text_encoders,
    flux,
    neuron_dropout: float | None = None,
    **kwargs: Any,
) -> LoRANetwork:
    """Make the network; of the network arguments only train_blocks has an effect here."""
    network_dim = 4 if network_dim is None else network_dim
    alpha = 1.0 if network_alpha is None else network_alpha
    return LoRANetwork(text_encoders, flux, multiplier, network_dim, alpha, kwargs.get("train_blocks") or "all")
