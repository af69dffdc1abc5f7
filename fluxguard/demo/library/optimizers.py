"""The optimizers and learning-rate schedules that FluxGym's presets ask for."""

import argparse
import ast
import logging
import math
from typing import Any

import torch
from torch.optim.lr_scheduler import LambdaLR

logger = logging.getLogger(__name__)


class Adafactor(torch.optim.Optimizer):
    """Keeps the second moment of a matrix as one row and one column."""

    def __init__(
        self,
        params,
        lr: float = 1e-3,
        eps: tuple[float, float] = (1e-30, 1e-3),
        clip_threshold: float = 1.0,
        decay_rate: float = -0.8,
        weight_decay: float = 0.0,
        scale_parameter: bool = False,
        relative_step: bool = False,
        warmup_init: bool = False,
    ) -> None:
        if relative_step or warmup_init:
            raise ValueError("this Adafactor knows only a given learning rate: relative_step=False warmup_init=False")
        defaults = {
            "lr": lr,
            "eps": eps,
            "clip_threshold": clip_threshold,
            "decay_rate": decay_rate,
            "weight_decay": weight_decay,
            "scale_parameter": scale_parameter,
        }
        super().__init__(params, defaults)

    def _second_moment(self, state: dict[str, Any], squared: torch.Tensor, beta2: float) -> torch.Tensor:
        """Move the running mean of the squares on and give the whole of it back."""
        if squared.ndim < 2:
            return state["exp_avg_sq"].lerp_(squared, 1 - beta2)
        row = state["exp_avg_sq_row"].lerp_(squared.mean(dim=-1), 1 - beta2)
        col = state["exp_avg_sq_col"].lerp_(squared.mean(dim=-2), 1 - beta2)
        return (row / row.mean(dim=-1, keepdim=True)).unsqueeze(-1) * col.unsqueeze(-2)

    @torch.no_grad()
    def step(self, closure=None):
        loss = closure() if closure is not None else None
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    self._step_one(p, p.grad.float(), group)
        return loss

    def _step_one(self, p: torch.Tensor, grad: torch.Tensor, group: dict[str, Any]) -> None:
        state = self.state[p]
        if not state:
            state["step"] = 0
            shapes = {"exp_avg_sq_row": grad.shape[:-1], "exp_avg_sq_col": (*grad.shape[:-2], grad.shape[-1])}
            if grad.ndim < 2:
                shapes = {"exp_avg_sq": grad.shape}
            state.update({name: torch.zeros(shape, device=grad.device) for name, shape in shapes.items()})
        state["step"] += 1
        beta2 = 1.0 - math.pow(state["step"], group["decay_rate"])
        update = grad * self._second_moment(state, grad * grad + group["eps"][0], beta2).rsqrt()
        rms = update.pow(2).mean().sqrt()
        update.div_((rms / group["clip_threshold"]).clamp(min=1.0))
        lr = group["lr"]
        if group["scale_parameter"]:
            lr = lr * max(group["eps"][1], p.pow(2).mean().sqrt().item())
        if group["weight_decay"]:
            p.mul_(1 - group["weight_decay"] * lr)
        p.add_(update.to(p.dtype), alpha=-lr)


def get_optimizer(args: argparse.Namespace, trainable_params) -> tuple[str, str, torch.optim.Optimizer]:
    """Make the optimizer that is asked for; 8-bit ones need CUDA, so the ordinary AdamW stands in for them."""
    optimizer_type = (args.optimizer_type or "AdamW").lower()
    optimizer_kwargs = {}
    for arg in args.optimizer_args or []:
        key, value = arg.split("=", 1)
        optimizer_kwargs[key] = ast.literal_eval(value)

    if optimizer_type == "adafactor":
        optimizer_class = Adafactor
    elif optimizer_type == "adamw":
        optimizer_class = torch.optim.AdamW
    elif optimizer_type in ("adamw8bit", "pagedadamw8bit"):
        logger.warning("no bitsandbytes here: AdamW is used instead of %s", args.optimizer_type)
        optimizer_class = torch.optim.AdamW
    elif optimizer_type == "sgdnesterov":
        optimizer_class = torch.optim.SGD
        optimizer_kwargs = {"momentum": 0.9, "nesterov": True, **optimizer_kwargs}
    else:
        raise ValueError(f"unknown optimizer type: {args.optimizer_type}")
    logger.info("use %s optimizer | %s", optimizer_class.__name__, optimizer_kwargs)
    optimizer = optimizer_class(trainable_params, lr=args.learning_rate, **optimizer_kwargs)
    optimizer_args = ",".join(f"{k}={v}" for k, v in optimizer_kwargs.items())
    return f"{optimizer_class.__module__}.{optimizer_class.__name__}", optimizer_args, optimizer


def get_optimizer_train_eval_fn(optimizer: torch.optim.Optimizer, args: argparse.Namespace):
    """Give the two calls that schedule-free optimizers need; here they do nothing."""
    return (lambda: None), (lambda: None)


def get_scheduler_fix(args: argparse.Namespace, optimizer: torch.optim.Optimizer, num_processes: int) -> LambdaLR:
    """Make the schedule of the learning rate, a plain function of the step."""
    total = max(1, args.max_train_steps * num_processes)
    warmup = args.lr_warmup_steps or 0
    warmup = int(warmup * total) if warmup < 1 else int(warmup) * num_processes

    def factor(step: int) -> float:
        if args.lr_scheduler == "constant":
            return 1.0
        if step < warmup:
            return step / max(1, warmup)
        progress = min(1.0, (step - warmup) / max(1, total - warmup))
        if args.lr_scheduler == "linear":
            return 1.0 - progress
        if args.lr_scheduler in ("cosine", "cosine_with_restarts"):
            return 0.5 * (1.0 + math.cos(math.pi * (progress * args.lr_scheduler_num_cycles % 1.0 or progress)))
        return 1.0

    return LambdaLR(optimizer, factor)
