"""What a step costs, and the average that the progress bar shows."""

import torch
import torch.nn.functional as F


def conditional_loss(model_pred: torch.Tensor, target: torch.Tensor, loss_type: str, huber_c: float) -> torch.Tensor:
    """Compare element by element."""
    if loss_type == "l1":
        return F.l1_loss(model_pred, target, reduction="none")
    if loss_type in ("huber", "smooth_l1"):
        return F.huber_loss(model_pred, target, reduction="none", delta=huber_c)
    return F.mse_loss(model_pred, target, reduction="none")


class LossRecorder:
    """Averages the losses of the last epoch's worth of steps."""

    def __init__(self):
        self.loss_list: list[float] = []
        self.loss_total: float = 0.0

    def add(self, *, epoch: int, step: int, loss: float) -> None:
        if epoch == 0:
            self.loss_list.append(loss)
        else:
            while len(self.loss_list) <= step:
                self.loss_list.append(0.0)
            self.loss_total -= self.loss_list[step]
            self.loss_list[step] = loss
        self.loss_total += loss

    @property
    def moving_average(self) -> float:
        losses = len(self.loss_list)
        return self.loss_total / losses if losses else 0.0
