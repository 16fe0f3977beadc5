"""How many source tokens are decoded at once."""

from __future__ import annotations

from dataclasses import dataclass

from dstransformer.config import DecodingConfig
from dstransformer.decoding.ensemble import Ensemble
from dstransformer.model.ops.caches import FIRST_CAPACITY

#: More hypotheses per sentence than this take proportionally fewer source tokens at once, so that they need about the
#: same memory.
FULL_BATCH_BEAM = 8

#: A search on a GPU takes up to so many times ``decoding.batch_tokens`` at once: with 4,096 tokens a GPU waits for the
#: host, with many more it gains nothing (a prediction; docs/benchmarks.md).
GPU_FACTOR = 8

#: Share of a GPU's free memory that a batch may need.
MEMORY_SHARE = 0.8


def tokens_per_batch(batch_tokens: int, rows: int) -> int:
    """Source tokens of a batch with ``rows`` hypotheses per sentence; see :data:`FULL_BATCH_BEAM`."""
    return max(1, batch_tokens * FULL_BATCH_BEAM // max(rows, FULL_BATCH_BEAM))


@dataclass(frozen=True)
class SearchMemory:
    """What a search on a GPU keeps in memory.

    Attributes:
        position_bytes: Keys and values of a position, in all layers of all models.
        row_bytes: All that is computed from the logits of a hypothesis.
        beam_size: Hypotheses per sentence.
        extra_tokens: Tokens that an output may have more than its input.
        longest_prefix: Tokens that an output may begin with, however short its input is.
    """

    position_bytes: int
    row_bytes: int
    beam_size: int
    extra_tokens: int
    longest_prefix: int = 0

    @classmethod
    def of(cls, models: Ensemble, settings: DecodingConfig, *, longest_prefix: int = 0) -> SearchMemory:
        """Of these models with these settings."""
        size = models.members[0].softmax_weight.element_size()
        shapes = [model.config for model in models.members]
        # The logits, in fp32 if they are not, and their logarithms; an ensemble stacks and sums those of its models.
        logit_bytes = size + (4 if size < 4 else 0) + 4 if len(shapes) == 1 else 20 * len(shapes)
        return cls(
            position_bytes=size * sum(one.decoder_depth * one.num_heads * (one.d_k + one.d_v) for one in shapes),
            row_bytes=logit_bytes * max(len(model.softmax_weight) for model in models.members),
            beam_size=settings.beam_size,
            extra_tokens=max(settings.max_extra_tokens, settings.min_tokens),
            longest_prefix=longest_prefix,
        )

    def sentence_bytes(self, tokens: int) -> int:
        """Bytes of a sentence in a batch whose longest has ``tokens``, at the longest output; end included."""
        capacity = FIRST_CAPACITY
        while capacity < max(tokens + self.extra_tokens, self.longest_prefix + 1):
            capacity *= 2
        return self.position_bytes * (tokens + self.beam_size * capacity) + self.beam_size * self.row_bytes

    def least_tokens(self, tokens: int, batch_tokens: int, free: int) -> int:
        """How many of a batch's tokens a sentence counts for at least, so that the batch fits in memory.

        Args:
            tokens: Tokens of the longest sentence of the batch, with its end.
            batch_tokens: Maximum tokens of a batch.
            free: Bytes of free memory.
        """
        return -(-self.sentence_bytes(tokens) * batch_tokens // max(1, int(MEMORY_SHARE * free)))
