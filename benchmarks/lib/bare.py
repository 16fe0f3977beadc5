"""Training without DeepSpeed: the arithmetic of an update in plain PyTorch."""

from __future__ import annotations

import torch
from torch import nn

from dstransformer.config import Config
from dstransformer.data.loader import Update
from dstransformer.model import DTYPES, Transformer
from dstransformer.model.loss import Objective
from dstransformer.training.optim import build_adam
from dstransformer.training.schedule import learning_rate

#: Loss scale in fp16.
LOSS_SCALE = 1024.0


class BareStepper:
    """Fused Adam on weights in fp32; in bf16 and fp16 the model computes with copies of them."""

    def __init__(self, config: Config, vocabulary: int, precision: str, device: torch.device) -> None:
        torch.manual_seed(config.training.seed)
        backend = config.training.attention_backend
        self.model = Transformer(config.model, vocabulary, backend).to(device=device, dtype=DTYPES[precision])
        self._objective = Objective(self.model, config.loss.label_smoothing)
        self._config = config
        self._device = device
        self._scale = LOSS_SCALE if precision == "fp16" else 1.0
        self._weights: list[torch.Tensor] = list(self.model.parameters())
        masters = list(self.model.parameters())
        if precision != "fp32":
            masters = [nn.Parameter(weight.detach().to(torch.float32, copy=True)) for weight in self._weights]
        self._masters: list[torch.Tensor] = [*masters]
        self._optimizer = build_adam(masters, config.optimizer, offloaded=False)
        self._number = 0

    def step(self, update: Update) -> torch.Tensor:
        """Compute an update; return its summed loss, on the device."""
        self._number += 1
        loss = torch.zeros((), device=self._device)
        for batch in update.batches:
            sums = self._objective(*batch.to(self._device))
            (sums.loss * (self._scale / update.tgt_tokens)).backward()  # type: ignore[no-untyped-call]
            loss += sums.loss.detach()
        gradients: list[torch.Tensor] = []
        for weight, master in zip(self._weights, self._masters, strict=True):
            assert weight.grad is not None
            gradients.append(weight.grad.float())
            weight.grad = None
            master.grad = gradients[-1]
        if self._scale != 1.0:
            torch._foreach_mul_(gradients, 1.0 / self._scale)
        torch.nn.utils.get_total_norm(gradients)
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate(
                self._number, self._config.model.d_model, self._config.schedule, self._config.training.max_updates
            )
        self._optimizer.step()
        self._optimizer.zero_grad()
        if self._masters[0] is not self._weights[0]:
            with torch.no_grad():
                torch._foreach_copy_(self._weights, self._masters)
        return loss
