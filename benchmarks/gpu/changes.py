"""Changes that would make training faster, as what they do to the counted operators of an update.

A change that the program has already finds nothing to replace, and changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from benchmarks.gpu.counts import VOCABULARY
from benchmarks.gpu.roofline import Work
from benchmarks.gpu.text import build_updates
from dstransformer.config import Config
from dstransformer.data.plan import build_budget

#: Launches of an update whose micro-batch is one replayed graph: the graph, the reduction of gradients, Adam, copies.
_GRAPH_LAUNCHES = 40

#: Rows and keys of a block that flash attention computes, for heads of 64; and those of ``attention_backend=short``.
FLASH_BLOCK, SHORT_BLOCK = 128, 32

#: How often the backward pass of flash attention reads or writes the fp32 gradients of the queries: they are cleared,
#: added to, which is both, and read to be rounded.
FLASH_PASSES = 4

Change = Callable[[Work, Config, int], Work]


def attention_work(config: Config, block: int) -> tuple[float, int]:
    """Operations of the products inside attention in an update, and rows of its queries, in whole blocks.

    There are two products forward, five backward, as attention is computed again.
    """
    (update,) = build_updates(build_budget(config.with_micro_batches(1).batch), 1, VOCABULARY)
    (batch,), model = update.batches, config.model
    lengths = (np.diff(packing.cu.numpy()) for packing in (batch.src_packing, batch.tgt_packing))
    src, tgt = (-(-each // block) * block for each in lengths)
    seen = model.encoder_depth * int(src @ src) + model.decoder_depth * int(tgt @ tgt + tgt @ src)
    rows = model.encoder_depth * int(src.sum()) + model.decoder_depth * 2 * int(tgt.sum())
    return 7.0 * model.num_heads * (model.d_k + model.d_v) * seen, rows


def shorten_attention(work: Work, config: Config, vocabulary: int) -> Work:  # noqa: ARG001
    """Attention in short blocks, without gradients in fp32, and with one gradient of queries, keys and values."""
    share = attention_work(config, SHORT_BLOCK)[0] / attention_work(config, FLASH_BLOCK)[0]
    flops = share * work.attention_flops if work.attention_bytes else work.attention_flops
    operators = [operator for operator in work.operators if (operator.name, operator.dtype) != ("cat", "bfloat16")]
    return replace(work, operators=operators, attention_flops=flops, attention_bytes=0.0)


def fuse_relu(work: Work, config: Config, vocabulary: int) -> Work:  # noqa: ARG001
    """ReLU in the kernel of the product before it."""
    return replace(work, operators=[operator for operator in work.operators if operator.name != "relu"])


def replay_graphs(work: Work, config: Config, vocabulary: int) -> Work:  # noqa: ARG001
    """CUDA graphs: one launch for a micro-batch."""
    return replace(work, launches=_GRAPH_LAUNCHES)


#: In the order in which they are added, each on top of those before.
CHANGES: Sequence[tuple[str, Change]] = (
    ("attention_backend=short", shorten_attention),
    ("ReLU within products", fuse_relu),
    ("CUDA graphs", replay_graphs),
)
