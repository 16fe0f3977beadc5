"""The weights of a ``transformers.MarianMTModel`` as those of a bundle, so that it computes the same logits.

The inverse of :mod:`dstransformer.exchange.marian_export`. The norms keep their epsilon (``model.norm_epsilon``), so
nothing is scaled; the dimensions of the residual stream change their order, because Marian's sinusoids are all sines,
then all cosines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from dstransformer.config import ModelConfig

#: Returns a weight by Marian's name.
Load = Callable[[str], Tensor]

#: The logit of a piece that the model does not have: its probability is below the precision of fp32 beside that of
#: the others.
ABSENT = -30.0


def bundle_weights(
    load: Load, config: ModelConfig, src_rows: Sequence[int | None], tgt_rows: Sequence[int | None]
) -> dict[str, Tensor]:
    """The weights of a bundle in fp32.

    Args:
        load: Returns a weight by Marian's name.
        config: The architecture of the bundle.
        src_rows: For each source piece Marian's row of it; None for a piece that it lacks.
        tgt_rows: Those of the target pieces.
    """
    order = torch.arange(config.d_model).view(2, -1).t().flatten()
    weights = dict(_embeddings(load, config, src_rows, tgt_rows, order))
    for side, depth in (("encoder", config.encoder_depth), ("decoder", config.decoder_depth)):
        for number in range(depth):
            ours, theirs = f"{side}.{number}", f"model.{side}.layers.{number}"
            weights.update(_layer(load, ours, theirs, order))
    return weights


def _embeddings(
    load: Load,
    config: ModelConfig,
    src_rows: Sequence[int | None],
    tgt_rows: Sequence[int | None],
    order: Tensor,
) -> Iterator[tuple[str, Tensor]]:
    if config.tie_embeddings == "all":
        yield "embedding.weight", _rows(load("model.shared.weight"), tgt_rows)[:, order].contiguous()
    else:
        yield "src_embedding.weight", _rows(load("model.encoder.embed_tokens.weight"), src_rows)[:, order].contiguous()
        yield "embedding.weight", _rows(load("model.decoder.embed_tokens.weight"), tgt_rows)[:, order].contiguous()
    if config.tie_embeddings == "none":
        yield "softmax.weight", _rows(load("lm_head.weight"), tgt_rows)[:, order].contiguous()
    bias = _rows(load("final_logits_bias").flatten(), tgt_rows)
    bias[[number for number, row in enumerate(tgt_rows) if row is None]] = ABSENT
    yield "output_bias", bias


def _rows(weight: Tensor, rows: Sequence[int | None]) -> Tensor:
    """The rows of a weight, zeros where there is none."""
    chosen = weight[[0 if row is None else row for row in rows]].float()
    chosen[[number for number, row in enumerate(rows) if row is None]] = 0.0
    return chosen


def _layer(load: Load, ours: str, theirs: str, order: Tensor) -> Iterator[tuple[str, Tensor]]:
    def joined(names: Sequence[str], part: str) -> Tensor:
        return torch.cat([load(f"{name}.{part}").float() for name in names])

    def reads(name: str, *sources: str) -> Iterator[tuple[str, Tensor]]:
        """Projections of the residual stream, as one matrix."""
        names = [f"{theirs}.{source}" for source in sources]
        yield f"{ours}.{name}.weight", joined(names, "weight")[:, order].contiguous()
        yield f"{ours}.{name}.bias", joined(names, "bias")

    def writes(name: str, source: str) -> Iterator[tuple[str, Tensor]]:
        """A projection, or a norm, whose output is the residual stream's."""
        for part in ("weight", "bias"):
            yield f"{ours}.{name}.{part}", load(f"{theirs}.{source}.{part}").float()[order].contiguous()

    yield from reads("self_attention.qkv", *(f"self_attn.{one}_proj" for one in "qkv"))
    yield from writes("self_attention.out", "self_attn.out_proj")
    yield from writes("self_attention_residual.norm", "self_attn_layer_norm")
    if ours.startswith("decoder"):
        yield from reads("memory_attention.q", "encoder_attn.q_proj")
        yield from reads("memory_attention.kv", "encoder_attn.k_proj", "encoder_attn.v_proj")
        yield from writes("memory_attention.out", "encoder_attn.out_proj")
        yield from writes("memory_attention_residual.norm", "encoder_attn_layer_norm")
    yield from reads("feed_forward.inner", "fc1")
    yield from writes("feed_forward.outer", "fc2")
    yield from writes("feed_forward_residual.norm", "final_layer_norm")
