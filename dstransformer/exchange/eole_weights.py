"""The weights of a Transformer of eole as those of a bundle, so that it computes the same logits.

Norms are before the sub-layers. Sinusoids that are all sines, then all cosines, change the order of the dimensions of
the residual stream.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from dstransformer.config import ModelConfig
from dstransformer.errors import DataError
from dstransformer.exchange.vocabularies import Rows
from dstransformer.model.transformer import sinusoidal_table

#: The logit of a piece that the model does not have, less than that of another by far more than fp32 resolves.
ABSENT = -100.0

#: Weights with their names in a bundle.
Named = Iterator[tuple[str, Tensor]]

_PROJECTIONS = ("linear_query", "linear_keys", "linear_values")


class Stored:
    """The weights in files of eole; remembers which were read.

    Args:
        weights: All weights by name.
        path: The files, for errors.
    """

    def __init__(self, weights: Mapping[str, Tensor], path: object) -> None:
        self._weights = weights
        self._unread = set(weights)
        self.path = path

    def read(self, name: str) -> Tensor:
        """A weight in fp32.

        Raises:
            DataError: It is missing or quantised.
        """
        if name not in self._weights:
            raise DataError(f"{self.path} has no weight {name}: it does not fit config.json; copy the model again")
        self._unread.discard(name)
        weight = self._weights[name]
        if not weight.is_floating_point():
            raise DataError(f"{self.path}: {name} is of type {weight.dtype}: give the model before it was quantised")
        return weight.float()

    def bias(self, name: str, width: int) -> Tensor:
        """The bias of a projection, zeros if it has none."""
        return self.read(f"{name}.bias") if f"{name}.bias" in self._weights else torch.zeros(width)

    @property
    def has_attention_bias(self) -> bool:
        """Whether a projection of attention has a bias."""
        return any("_attn." in name and name.endswith(".bias") for name in self._weights)

    def check_rest(self, d_model: int, positions: str) -> None:
        """Refuse weights that were not read but for sinusoids, and factors that are 1.

        Raises:
            DataError: There is another.
        """
        for name in sorted(self._unread):
            if name.endswith(".layer_scalar") and bool((self._weights[name] == 1).all()):
                continue
            if name.endswith("_emb.pe.pe") and _are_sinusoids(self._weights[name].float(), d_model, positions):
                continue
            raise DataError(f"{self.path} has a weight {name}, and a bundle cannot hold it")


def _are_sinusoids(found: Tensor, d_model: int, positions: str) -> bool:
    kind = "timing" if positions == "timing" else "sinusoidal"
    table = sinusoidal_table(len(found), d_model, torch.float32, torch.device("cpu"), kind)
    if positions == "timing":
        table = torch.cat((table[:, 0::2], table[:, 1::2]), dim=1)
    return found.numel() == table.numel() and torch.allclose(found.view_as(table), table, atol=2e-2)


def bundle_weights(
    stored: Stored,
    config: ModelConfig,
    rows: tuple[Rows, Rows],
    *,
    shares_embeddings: bool,
) -> dict[str, Tensor]:
    """The weights of a bundle in fp32.

    Args:
        stored: Those of eole.
        config: The architecture of the bundle.
        rows: The rows of source and target pieces.
        shares_embeddings: Whether source and target have one embedding.
    """
    order = torch.arange(config.d_model)
    if config.positions == "timing":
        order = order.view(2, -1).t().flatten()
    source = stored.read("src_emb.embeddings.weight")
    target = source if shares_embeddings else stored.read("tgt_emb.embeddings.weight")
    weights = {"embedding.weight": _take(target, rows[1])[:, order].contiguous()}
    if config.tie_embeddings != "all":
        weights["src_embedding.weight"] = _take(source, rows[0])[:, order].contiguous()
    if config.tie_embeddings == "none":
        weights["softmax.weight"] = _take(stored.read("generator.weight"), rows[1])[:, order].contiguous()
    weights["output_bias"] = _output_bias(stored.bias("generator", len(target)), rows[1])
    for side, depth in (("encoder", config.encoder_depth), ("decoder", config.decoder_depth)):
        for part in ("weight", "bias"):
            weights[f"{side}_norm.{part}"] = stored.read(f"{side}.layer_norm.{part}")[order].contiguous()
        for number in range(depth):
            names = f"{side}.{number}", f"{side}.transformer_layers.{number}"
            weights.update(_layer(stored, *names, order, attention_bias=config.attention_bias))
    return weights


def _take(weight: Tensor, rows: Rows) -> Tensor:
    """The rows of a weight, zeros where there is none."""
    chosen = weight[[0 if row is None else row for row in rows.numbers]]
    chosen[[number for number, row in enumerate(rows.numbers) if row is None]] = 0.0
    return chosen


def _output_bias(own: Tensor, rows: Rows) -> Tensor:
    bias = _take(own, rows)
    bias[[number for number, row in enumerate(rows.numbers) if row is None]] = ABSENT
    bias[list(rows.absent)] = ABSENT
    return bias


def _layer(stored: Stored, ours: str, theirs: str, order: Tensor, *, attention_bias: bool) -> Named:
    def reads(name: str, *sources: str, has_bias: bool = True) -> Named:
        """Projections of the residual stream, as one matrix."""
        parts = [stored.read(f"{theirs}.{source}.weight") for source in sources]
        yield f"{ours}.{name}.weight", torch.cat(parts)[:, order].contiguous()
        if has_bias:
            biases = [stored.bias(f"{theirs}.{one}", len(part)) for one, part in zip(sources, parts, strict=True)]
            yield f"{ours}.{name}.bias", torch.cat(biases)

    def writes(name: str, source: str, *, has_bias: bool = True) -> Named:
        """A projection whose output is added to the residual stream."""
        yield f"{ours}.{name}.weight", stored.read(f"{theirs}.{source}.weight")[order].contiguous()
        if has_bias:
            yield f"{ours}.{name}.bias", stored.bias(f"{theirs}.{source}", len(order))[order].contiguous()

    def norm(name: str, source: str) -> Named:
        for part in ("weight", "bias"):
            yield f"{ours}.{name}_residual.norm.{part}", stored.read(f"{theirs}.{source}.{part}")[order].contiguous()

    def attention(name: str, source: str, groups: Mapping[str, slice]) -> Named:
        sources = [f"{source}.{one}" for one in _PROJECTIONS]
        for group, members in groups.items():
            yield from reads(f"{name}.{group}", *sources[members], has_bias=attention_bias)
        yield from writes(f"{name}.out", f"{source}.final_linear", has_bias=attention_bias)

    yield from attention("self_attention", "self_attn", {"qkv": slice(3)})
    yield from norm("self_attention", "input_layernorm")
    if ours.startswith("decoder"):
        yield from attention("memory_attention", "context_attn", {"q": slice(1), "kv": slice(1, 3)})
        yield from norm("memory_attention", "precontext_layernorm")
    yield from reads("feed_forward.inner", "mlp.gate_up_proj")
    yield from writes("feed_forward.outer", "mlp.down_proj")
    yield from norm("feed_forward", "post_attention_layernorm")
