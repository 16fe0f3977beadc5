"""The weights of a bundle as ``transformers.MarianMTModel`` holds them, and back; so both compute the same logits.

Marian's model is ours with three differences, which the weights make up for:

- Its sinusoids are all sines, then all cosines; ours alternate. So every matrix, norm and bias that touches the
  residual stream has that dimension permuted.
- Its norms have epsilon 1e-5, ours usually 1e-6. ``sqrt(10) * x`` normalised with 1e-5 is ``x`` normalised with 1e-6.
  So each norm gives its output times ``sqrt(10)``, the projections that read it are divided by that, and those that add
  to it are multiplied. Only the first norm of encoder and decoder, where the positions are added, keeps Marian's
  epsilon. A model with Marian's epsilon (``model.norm_epsilon``) is not scaled.
- Its heads are d_model / heads wide. Narrower ones are filled with zeros.

A bundle of a model of Marian keeps its epsilon and the widths of its heads: only the dimensions change their order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from dstransformer.config import ModelConfig
from dstransformer.config.schema import Positions
from dstransformer.data import BOS_ID
from dstransformer.exchange.holds import SIZES, Holds
from dstransformer.exchange.weights import Affine, Weights, affine, attention

#: The epsilon of Marian's norms.
EPSILON = 1e-5

#: The logit of a piece that the model does not have, or whose row of the softmax had to become zeros: its probability
#: is below the precision of fp32 beside that of the others.
ABSENT = -30.0

#: Returns a weight by Marian's name.
Load = Callable[[str], Tensor]


def marian_holds(config: ModelConfig, positions: Positions, starts: Sequence[str]) -> Holds:
    """The architectures that Marian has, or a ``MarianMTModel``, which have other positions.

    Args:
        config: The architecture: its width is a multiple of the number of heads, and no head is wider than its share.
        positions: The positions.
        starts: What decoding may start with.
    """
    heads = range(1, config.d_model // config.num_heads + 1)
    return {
        **SIZES,
        "num_heads": [number for number in range(1, config.d_model + 1) if config.d_model % number == 0],
        "d_k": heads,
        "d_v": heads,
        "activation": ("relu", "swish", "gelu"),
        "norm": ("post",),
        "attention_bias": (False, True),
        "output_bias": (False, True),
        "positions": (positions,),
        "start": starts,
        "tie_embeddings": ("all", "target", "none"),
    }


def marian_weights(weights: Weights, config: ModelConfig, epsilon: float = EPSILON) -> dict[str, Tensor]:
    """The state of a ``MarianMTModel`` in fp32.

    Args:
        weights: The bundle's.
        config: Its architecture, see :func:`marian_holds`.
        epsilon: That of the norms which will compute with it.
    """
    scale = math.sqrt(epsilon / config.norm_epsilon)  # of the residual stream from the first norm on; see above
    exact = {name: weight.double() for name, weight in weights.items()}
    state = dict(_embeddings(exact, config))
    for side, depth, sublayers in (
        ("encoder", config.encoder_depth, (("self_attention", "self_attn"),)),
        ("decoder", config.decoder_depth, (("self_attention", "self_attn"), ("memory_attention", "encoder_attn"))),
    ):
        for number in range(depth):
            ours, theirs = f"{side}.{number}", f"model.{side}.layers.{number}"
            before = 1.0 if number == 0 else scale
            for ours_name, theirs_name in sublayers:
                names = (f"{ours}.{ours_name}", f"{theirs}.{theirs_name}")
                state.update(_attention(exact, config, *names, before, scale))
                before = scale
            after = 1.0 if number == depth - 1 else scale
            state.update(_feed_forward(exact, config, ours, theirs, after, scale))
    return {name: weight.float().contiguous() for name, weight in state.items()}


def _embeddings(weights: Weights, config: ModelConfig) -> Iterator[tuple[str, Tensor]]:
    order = _order(config)
    target = weights["embedding.weight"][:, order]
    if config.start == "zeros":
        target[BOS_ID] = 0.0
    if config.tie_embeddings == "all":
        yield "model.shared.weight", target
    else:
        yield "model.encoder.embed_tokens.weight", weights["src_embedding.weight"][:, order]
        yield "model.decoder.embed_tokens.weight", target
    if config.tie_embeddings == "none":
        yield "lm_head.weight", weights["softmax.weight"][:, order]
    bias = weights["output_bias"].clone() if config.output_bias else target.new_zeros(len(target))
    if config.start == "zeros" and config.tie_embeddings != "none":
        bias[BOS_ID] = ABSENT
    yield "final_logits_bias", bias[None]


def _attention(
    weights: Weights, config: ModelConfig, ours: str, theirs: str, before: float, scale: float
) -> Iterator[tuple[str, Tensor]]:
    """The attention ``ours`` and its norm, whose output is ``scale`` times ours.

    Its input is ``before`` times ours; the memory is not scaled.
    """
    parts = attention(weights, ours, config, config.d_model // config.num_heads)
    of_memory = 1.0 if ours.endswith("memory_attention") else before
    yield from _named(f"{theirs}.q_proj", _read(parts.q, config, before))
    yield from _named(f"{theirs}.k_proj", _read(parts.k, config, of_memory))
    yield from _named(f"{theirs}.v_proj", _read(parts.v, config, of_memory))
    yield from _named(f"{theirs}.out_proj", _write(parts.out, config, before))
    yield from _named(f"{theirs}_layer_norm", _write(affine(weights, f"{ours}_residual.norm"), config, scale))


def _feed_forward(
    weights: Weights, config: ModelConfig, ours: str, theirs: str, after: float, scale: float
) -> Iterator[tuple[str, Tensor]]:
    """The feed-forward network of a layer, and its norm. Their outputs are ``scale`` and ``after`` times ours."""
    yield from _named(f"{theirs}.fc1", _read(affine(weights, f"{ours}.feed_forward.inner"), config, scale))
    yield from _named(f"{theirs}.fc2", _write(affine(weights, f"{ours}.feed_forward.outer"), config, scale))
    norm = affine(weights, f"{ours}.feed_forward_residual.norm")
    yield from _named(f"{theirs}.final_layer_norm", _write(norm, config, after))


def _named(name: str, part: Affine) -> Iterator[tuple[str, Tensor]]:
    yield f"{name}.weight", part.weight
    yield f"{name}.bias", part.bias


def _read(part: Affine, config: ModelConfig, scale: float) -> Affine:
    """A projection of the residual stream that is ``scale`` times ours."""
    return Affine(part.weight[:, _order(config)] / scale, part.bias)


def _write(part: Affine, config: ModelConfig, scale: float) -> Affine:
    """A projection or a norm whose output is ``scale`` times ours."""
    order = _order(config)
    return Affine(part.weight[order] * scale, part.bias[order] * scale)


def _order(config: ModelConfig) -> Tensor:
    """Our dimension for each of Marian's: the sines, then the cosines."""
    return torch.arange(config.d_model).view(-1, 2).t().flatten()


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
    weights = dict(_bundle_embeddings(load, config, src_rows, tgt_rows, order))
    for side, depth in (("encoder", config.encoder_depth), ("decoder", config.decoder_depth)):
        for number in range(depth):
            ours, theirs = f"{side}.{number}", f"model.{side}.layers.{number}"
            weights.update(_bundle_layer(load, ours, theirs, order))
    return weights


def _bundle_embeddings(
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


def _bundle_layer(load: Load, ours: str, theirs: str, order: Tensor) -> Iterator[tuple[str, Tensor]]:
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
