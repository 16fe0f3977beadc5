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
from dstransformer.exchange.formats import SIZES, Holds
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
    order = torch.arange(config.d_model).view(-1, 2).t().flatten()  # our dimension for each of Marian's
    exact = {name: weight.double() for name, weight in weights.items()}
    state = dict(_embeddings(exact, config, order))

    def reads(theirs: str, part: Affine, factor: float) -> None:
        """A projection of the residual stream that is ``factor`` times ours."""
        state[f"{theirs}.weight"], state[f"{theirs}.bias"] = part.weight[:, order] / factor, part.bias

    def writes(theirs: str, part: Affine, factor: float) -> None:
        """A projection, or a norm, whose output is ``factor`` times ours."""
        state[f"{theirs}.weight"], state[f"{theirs}.bias"] = part.weight[order] * factor, part.bias[order] * factor

    def add_attention(ours: str, theirs: str, before: float, of_keys: float) -> None:
        """An attention and its norm. Its input is ``before`` times ours, that of its keys and values ``of_keys``."""
        parts = attention(exact, ours, config, config.d_model // config.num_heads)
        reads(f"{theirs}.q_proj", parts.q, before)
        reads(f"{theirs}.k_proj", parts.k, of_keys)
        reads(f"{theirs}.v_proj", parts.v, of_keys)
        writes(f"{theirs}.out_proj", parts.out, before)
        writes(f"{theirs}_layer_norm", affine(exact, f"{ours}_residual.norm"), scale)

    for side, depth in (("encoder", config.encoder_depth), ("decoder", config.decoder_depth)):
        for number in range(depth):
            ours, theirs = f"{side}.{number}", f"model.{side}.layers.{number}"
            before = 1.0 if number == 0 else scale
            add_attention(f"{ours}.self_attention", f"{theirs}.self_attn", before, before)
            if side == "decoder":  # the memory is not scaled
                add_attention(f"{ours}.memory_attention", f"{theirs}.encoder_attn", scale, 1.0)
            reads(f"{theirs}.fc1", affine(exact, f"{ours}.feed_forward.inner"), scale)
            writes(f"{theirs}.fc2", affine(exact, f"{ours}.feed_forward.outer"), scale)
            after = 1.0 if number == depth - 1 else scale
            writes(f"{theirs}.final_layer_norm", affine(exact, f"{ours}.feed_forward_residual.norm"), after)
    return {name: weight.float().contiguous() for name, weight in state.items()}


def _embeddings(weights: Weights, config: ModelConfig, order: Tensor) -> Iterator[tuple[str, Tensor]]:
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
    weights: dict[str, Tensor] = {}

    def embedding(name: str, rows: Sequence[int | None]) -> Tensor:
        return _rows(load(name), rows)[:, order].contiguous()

    def reads(ours: str, *names: str) -> None:
        """Projections of the residual stream, as one matrix."""
        matrix, bias = (torch.cat([load(f"{name}.{part}").float() for name in names]) for part in ("weight", "bias"))
        weights[f"{ours}.weight"], weights[f"{ours}.bias"] = matrix[:, order].contiguous(), bias

    def writes(ours: str, name: str) -> None:
        """A projection, or a norm, whose output is the residual stream's."""
        for part in ("weight", "bias"):
            weights[f"{ours}.{part}"] = load(f"{name}.{part}").float()[order].contiguous()

    if config.tie_embeddings == "all":
        weights["embedding.weight"] = embedding("model.shared.weight", tgt_rows)
    else:
        weights["src_embedding.weight"] = embedding("model.encoder.embed_tokens.weight", src_rows)
        weights["embedding.weight"] = embedding("model.decoder.embed_tokens.weight", tgt_rows)
    if config.tie_embeddings == "none":
        weights["softmax.weight"] = embedding("lm_head.weight", tgt_rows)
    weights["output_bias"] = _rows(load("final_logits_bias").flatten(), tgt_rows, ABSENT)
    for side, depth in (("encoder", config.encoder_depth), ("decoder", config.decoder_depth)):
        for number in range(depth):
            ours, theirs = f"{side}.{number}", f"model.{side}.layers.{number}"
            reads(f"{ours}.self_attention.qkv", *(f"{theirs}.self_attn.{letter}_proj" for letter in "qkv"))
            writes(f"{ours}.self_attention.out", f"{theirs}.self_attn.out_proj")
            writes(f"{ours}.self_attention_residual.norm", f"{theirs}.self_attn_layer_norm")
            if side == "decoder":
                reads(f"{ours}.memory_attention.q", f"{theirs}.encoder_attn.q_proj")
                reads(f"{ours}.memory_attention.kv", *(f"{theirs}.encoder_attn.{letter}_proj" for letter in "kv"))
                writes(f"{ours}.memory_attention.out", f"{theirs}.encoder_attn.out_proj")
                writes(f"{ours}.memory_attention_residual.norm", f"{theirs}.encoder_attn_layer_norm")
            reads(f"{ours}.feed_forward.inner", f"{theirs}.fc1")
            writes(f"{ours}.feed_forward.outer", f"{theirs}.fc2")
            writes(f"{ours}.feed_forward_residual.norm", f"{theirs}.final_layer_norm")
    return weights


def _rows(weight: Tensor, rows: Sequence[int | None], absent: float = 0.0) -> Tensor:
    """The rows of a weight, ``absent`` where there is none."""
    chosen = weight[[0 if row is None else row for row in rows]].float()
    chosen[[number for number, row in enumerate(rows) if row is None]] = absent
    return chosen
