"""The training objective, a model and its loss: label-smoothed cross-entropy, R-Drop, and guided alignment.

The losses through the output projection never hold the logits of all tokens in memory at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

from dstransformer.data.packing import ROW_COUNTS, Links, Packing, fill_rows, round_rows
from dstransformer.model import ops
from dstransformer.model.transformer import Transformer

#: Maximum logits held at once, in fp32 on a CPU half of them; a chunk of tokens is as long as fits. With several chunks
#: a CPU also holds two copies of the softmax matrix, laid out for the products.
CHUNK_LOGITS = {"cpu": 1 << 24, "cuda": 1 << 27}

#: The factor of the gradient of fp16 logits while it is in fp16. It is rounded before the loss is scaled, and the share
#: of label smoothing is about 3e-6 per piece, where fp16 has steps of 6e-8.
FP16_SCALE = 1024.0

#: The rows of a chunk in the decoder's output: of one pass, or as many of each of two. The targets have the first.
Rows = tuple[slice, ...]


class LossSums(NamedTuple):
    """Sums over the target tokens of a batch, in nats, scalars in fp32.

    Attributes:
        loss: The training loss, with a gradient.
        terms: Terms of it by name, before their weights and without a gradient: ``nll``, the negative log-likelihood
            of the reference without smoothing, and ``alignment``, the cross-entropy of guided alignment, if it is on.
    """

    loss: Tensor
    terms: Mapping[str, Tensor]

    def detach(self) -> LossSums:
        """The sums without a gradient, in fp32."""
        terms = {name: term.detach().float() for name, term in self.terms.items()}
        return LossSums(self.loss.detach().float(), terms)

    @classmethod
    def total(cls, sums: Sequence[LossSums]) -> LossSums:
        """The totals of several batches, all with the same terms."""
        terms = {name: torch.stack([one.terms[name] for one in sums]).sum() for name in sums[0].terms}
        return cls(torch.stack([one.loss for one in sums]).sum(), terms)


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
        passes_twice = self.model.training and self.r_drop > 0.0
        is_guided = self.model.training and self.guided_alignment > 0.0
        if passes_twice:
            src, tgt_in = src.repeat(2), tgt_in.repeat(2)
            src_packing, tgt_packing = src_packing.twice(), tgt_packing.twice()
        recording: AbstractContextManager[list[tuple[Tensor, ...]]] = nullcontext([])
        if is_guided:
            recording = self.model.alignment_layer.recording()
        with recording as recorded:
            hidden = self.model(src, src_packing, tgt_in, tgt_packing)
        weight, bias = self.model.softmax_weight, self.model.output_bias
        if passes_twice:
            loss, nll = r_drop_cross_entropy(hidden, weight, tgt_out, self.label_smoothing, self.r_drop, bias)
        else:
            loss, nll = smoothed_cross_entropy(hidden, weight, tgt_out, self.label_smoothing, bias)
        if not is_guided:
            return LossSums(loss, {"nll": nll})
        alignment = torch.zeros_like(nll)
        if links is not None:
            queries, keys = (projected[:, : self.model.config.d_k] for projected in recorded[0])
            alignment = alignment_cross_entropy(queries, keys, links)
        return LossSums(loss + self.guided_alignment * alignment, {"nll": nll, "alignment": alignment.detach()})


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


def smoothed_cross_entropy(
    hidden: Tensor, weight: Tensor, targets: Tensor, label_smoothing: float, bias: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Sum over tokens of the cross-entropy against the smoothed target (section 5.4; Szegedy et al., 2016).

    The target is ``1 - epsilon`` on the reference and ``epsilon`` spread evenly over all rows of ``weight``. Gradients
    are computed chunk by chunk in the forward pass, while a chunk's logits are at hand.

    Args:
        hidden: The decoder's output, ``(rows, d_model)``; rows beyond the targets are filler.
        weight: The softmax matrix, ``(rows, d_model)``; rounded to the precision of ``hidden`` for the computation.
        targets: ``(tokens,)`` int64, at most ``rows``.
        label_smoothing: epsilon.
        bias: Added to the logits, ``(rows,)``; None: nothing. It has a gradient if the others have.

    Returns:
        The loss, and the negative log-likelihood without smoothing and without a gradient: scalars in fp32.
    """
    assert targets.numel() <= hidden.shape[0]
    size = max(1, _most_logits(hidden) // weight.shape[0])
    chunks = [(slice(start, start + size),) for start in range(0, hidden.shape[0], size)]

    def loss_of(logits: Tensor, chunk: slice, scale: float | None) -> tuple[Tensor, Tensor, Tensor | None]:
        return ops.cross_entropy(logits, targets[chunk], label_smoothing, scale)

    return _sum_chunks(hidden, weight, bias, chunks, loss_of, FP16_SCALE)


def r_drop_cross_entropy(
    hidden: Tensor, weight: Tensor, targets: Tensor, label_smoothing: float, alpha: float, bias: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Half the loss of R-Drop for two passes (Liang et al., 2021, equation 4); see ``ops.r_drop_cross_entropy``.

    Args:
        hidden: The decoder's output, ``(rows, d_model)``: the first pass, the second pass, then filler.
        weight: The softmax matrix, ``(rows, d_model)``.
        targets: Of one pass, ``(tokens,)`` int64.
        label_smoothing: epsilon.
        alpha: Weight of the divergence between the passes.
        bias: As for :func:`smoothed_cross_entropy`.

    Returns:
        The loss, and the mean negative log-likelihood of the two passes without a gradient: scalars in fp32.
    """
    tokens = targets.numel()
    assert 2 * tokens <= hidden.shape[0]
    # PyTorch keeps eight tensors as large; the kernel keeps two, and is not faster with more rows.
    size = max(64, _most_logits(hidden) // (8 * weight.shape[0]))
    starts = range(0, tokens, size)
    chunks = [(slice(at, min(at + size, tokens)), slice(tokens + at, tokens + min(at + size, tokens))) for at in starts]

    def loss_of(logits: Tensor, chunk: slice, scale: float | None) -> tuple[Tensor, Tensor, Tensor | None]:
        first, second = logits.chunk(2)
        loss, nll, grads = ops.r_drop_cross_entropy((first, second), targets[chunk], label_smoothing, alpha, scale)
        return loss, nll, None if grads is None else torch.cat(grads)

    return _sum_chunks(hidden, weight, bias, chunks, loss_of, FP16_SCALE / max(1.0, alpha))


def _most_logits(hidden: Tensor) -> int:
    """Maximum logits of a chunk: on a CPU, whose caches it goes through, as many bytes in fp32 as in 16 bits."""
    most = CHUNK_LOGITS[hidden.device.type]
    return most // 2 if hidden.device.type == "cpu" and hidden.dtype == torch.float32 else most


#: The loss of a chunk and its negative log-likelihood, and the gradient of the logits: from the logits, the rows of the
#: targets, and the factor of the gradient, None if none is needed.
_LossOf = Callable[[Tensor, slice, float | None], tuple[Tensor, Tensor, Tensor | None]]


def _sum_chunks(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, chunks: Sequence[Rows], loss_of: _LossOf, fp16_scale: float
) -> tuple[Tensor, Tensor]:
    needs_grad = torch.is_grad_enabled() and (hidden.requires_grad or weight.requires_grad)
    scale = fp16_scale if hidden.dtype == torch.float16 else 1.0
    loss, nll = _ChunkedLoss.apply(hidden, weight, bias, chunks, loss_of, scale, needs_grad)  # type: ignore[no-untyped-call]
    return loss, nll


class _ChunkedLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        chunks: Sequence[Rows],
        loss_of: _LossOf,
        scale: float,
        needs_grad: bool,
    ) -> tuple[Tensor, Tensor]:
        grad_hidden = torch.zeros_like(hidden) if needs_grad else None
        grad_weight: Tensor | None = None
        grad_bias = None if bias is None else torch.zeros_like(bias, dtype=torch.float32)
        loss = torch.zeros((), dtype=torch.float32, device=hidden.device)
        nll = torch.zeros_like(loss)
        repeated = len(chunks) > 1
        rounded = ops.rounded(weight, hidden.dtype)
        rounded_bias = None if bias is None else ops.rounded(bias, hidden.dtype)
        project = ops.prepare_linear(rounded, rounded_bias, repeated=repeated)
        project_back = ops.prepare_linear(rounded.t(), repeated=repeated) if needs_grad else None
        for chunk in chunks:
            x = hidden[chunk[0]] if len(chunk) == 1 else torch.cat([hidden[part] for part in chunk])
            rows = len(x)
            if len(chunk) > 1:
                x = fill_rows(x, round_rows(rows, ROW_COUNTS))  # few sizes, for oneDNN
            logits = project(x)[:rows]
            chunk_loss, chunk_nll, grad = loss_of(logits, chunk[0], scale if needs_grad else None)
            loss += chunk_loss
            nll += chunk_nll
            if grad is not None and grad_hidden is not None and project_back is not None:
                grad = fill_rows(grad, len(x))
                for part, of_part in zip(chunk, project_back(grad)[:rows].chunk(len(chunk)), strict=True):
                    grad_hidden[part] = of_part
                chunk_grad_weight = ops.weight_gradient(grad, x)
                grad_weight = chunk_grad_weight.float() if grad_weight is None else grad_weight.add_(chunk_grad_weight)
                if grad_bias is not None:
                    grad_bias += grad.sum(dim=0, dtype=torch.float32)
                del chunk_grad_weight
            del logits, grad  # before the next chunk takes as much memory
        if needs_grad:
            ctx.save_for_backward(grad_hidden, grad_weight, grad_bias)
        ctx.weight_dtype, ctx.scale = weight.dtype, scale
        ctx.mark_non_differentiable(nll)
        return loss, nll

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_loss: Tensor, grad_nll: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ARG004
        grad_hidden, grad_weight, grad_bias = ctx.saved_tensors
        # In fp32, because the scale of an fp16 loss can exceed the range of fp16.
        factor = grad_loss / ctx.scale
        scaled = (grad_hidden.float() * factor).to(grad_hidden.dtype)
        of_bias = None if grad_bias is None else (grad_bias * factor).to(ctx.weight_dtype)
        return scaled, (grad_weight * factor).to(ctx.weight_dtype), of_bias, None, None, None, None


def alignment_cross_entropy(queries: Tensor, keys: Tensor, links: Links) -> Tensor:
    """Sum over linked target tokens of the cross-entropy between their alignment and the attention weights of a head.

    The alignment of a token is spread evenly over the source tokens that it is linked to. The weights are those of the
    position that predicts the token, before dropout.

    Args:
        queries: Those of the head for a packed batch, ``(rows, d_k)``.
        keys: Those of the head, ``(src_rows, d_k)``.
        links: The alignments.

    Returns:
        A scalar in fp32, in nats.
    """
    weights = log_weights(queries, keys, links.tgt_rows, links.tgt_packing, links.src_rows, links.src_packing)
    return -(weights.flatten()[links.places] * links.shares).sum()


def log_weights(
    queries: Tensor, keys: Tensor, tgt_rows: Tensor, tgt_packing: Packing, src_rows: Tensor, src_packing: Packing
) -> Tensor:
    """The logarithms of the attention weights of one head (equation 1) for some sentences of a packed batch, in fp32.

    Args:
        queries: Of the batch, ``(rows, d_k)``.
        keys: Of the batch, ``(src_rows, d_k)``.
        tgt_rows: The rows of the sentences in ``queries``.
        tgt_packing: The sentences that these rows are.
        src_rows: The rows of the sentences in ``keys``.
        src_packing: The sentences that these rows are.

    Returns:
        ``(n, tgt_packing.max_len, src_packing.max_len)``; minus infinity where a source sentence has no token.
    """
    q = tgt_packing.pad(queries.float()[tgt_rows])
    k = src_packing.pad(keys.float()[src_rows])
    scores = q @ k.transpose(1, 2) / math.sqrt(q.shape[2])
    return scores.masked_fill(~src_packing.padding_mask[:, None], float("-inf")).log_softmax(dim=2)
