"""The training objective: a model and its loss, as one module whose call returns the loss of a batch."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from dstransformer.data.packing import Links, Packing
from dstransformer.model.loss import LossSums, alignment_cross_entropy, r_drop_cross_entropy, smoothed_cross_entropy
from dstransformer.model.transformer import Transformer


class Objective(nn.Module):
    """The loss of a Transformer, summed over the target tokens of a batch (section 5.4).

    Of a model in eval mode it is the label-smoothed cross-entropy. In training, R-Drop (Liang et al., 2021) takes a
    batch through the model twice, side by side, with different dropout masks; with guided alignment (Chen et al., 2016)
    a head learns the batch's links, with R-Drop in the first pass.

    Args:
        model: The model.
        label_smoothing: epsilon.
        r_drop: alpha of R-Drop; 0 trains with one pass.
        guided_alignment: The weight of guided alignment; 0 trains without.
    """

    __call__: Callable[..., LossSums]

    def __init__(
        self, model: Transformer, label_smoothing: float = 0.0, r_drop: float = 0.0, guided_alignment: float = 0.0
    ) -> None:
        super().__init__()
        self.model = model
        self.label_smoothing = label_smoothing
        self.r_drop = r_drop
        self.guided_alignment = guided_alignment

    def forward(
        self,
        src: Tensor,
        src_packing: Packing,
        tgt_in: Tensor,
        tgt_out: Tensor,
        tgt_packing: Packing,
        links: Links | None = None,
    ) -> LossSums:
        """The loss of a packed batch of sentence pairs; see :class:`dstransformer.data.packing.PackedBatch`."""
        if not (self.model.training and self.guided_alignment):
            loss, nll = self._cross_entropy(src, src_packing, tgt_in, tgt_out, tgt_packing)
            return LossSums(loss, {"nll": nll})
        with self.model.alignment_layer.recording() as recorded:
            loss, nll = self._cross_entropy(src, src_packing, tgt_in, tgt_out, tgt_packing)
        alignment = torch.zeros_like(nll)
        if links is not None:
            queries, keys = (projected[:, : self.model.config.d_k] for projected in recorded[0])
            alignment = alignment_cross_entropy(queries, keys, links)
        return LossSums(loss + self.guided_alignment * alignment, {"nll": nll, "alignment": alignment.detach()})

    def _cross_entropy(
        self, src: Tensor, src_packing: Packing, tgt_in: Tensor, tgt_out: Tensor, tgt_packing: Packing
    ) -> tuple[Tensor, Tensor]:
        """The label-smoothed cross-entropy or that of R-Drop, and the negative log-likelihood."""
        passes_twice = self.model.training and self.r_drop > 0.0
        if passes_twice:
            src, tgt_in = src.repeat(2), tgt_in.repeat(2)
            src_packing, tgt_packing = src_packing.twice(), tgt_packing.twice()
        hidden = self.model(src, src_packing, tgt_in, tgt_packing)
        weight, bias = self.model.softmax_weight, self.model.output_bias
        if passes_twice:
            return r_drop_cross_entropy(hidden, weight, tgt_out, self.label_smoothing, self.r_drop, bias)
        return smoothed_cross_entropy(hidden, weight, tgt_out, self.label_smoothing, bias)


def recompute(layer: nn.Module, *inputs: object) -> Tensor:
    """Call a layer, keep only its inputs, and compute it again for its gradient (Chen et al., 2016).

    The dropout masks of both computations are the same. See :attr:`Transformer.call_layer`.
    """
    call = partial(checkpoint, layer, use_reentrant=False) if torch.is_grad_enabled() else layer
    output: Tensor = call(*inputs)
    return output


def zero_residual_branches(model: Transformer) -> None:
    """Let the output of each sub-layer begin at zero (Zhang et al., 2019): ``W_O`` and ``W_2`` become 0.

    So a layer begins as its layer norms alone, or with norms before its sub-layers as the identity.
    """
    for name, weight in model.named_parameters():
        if name.endswith((".out.weight", ".outer.weight")):
            nn.init.zeros_(weight)
