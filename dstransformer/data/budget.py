"""How many tokens an update may hold. It depends only on where in the training the update begins, in epochs.

So the plan of an epoch, or of a window of one, needs no plan of those before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from dstransformer.config import BatchConfig, BatchStage


@dataclass(frozen=True)
class Budget:
    """The maximum tokens of an update on each side (section 5.1), and the number of its micro-batches.

    Attributes:
        src_tokens: Maximum source tokens.
        tgt_tokens: Maximum target tokens.
        micro_batches: Number of micro-batches.
        stages: Stages at the beginning of the training in which an update holds a share of these tokens.
    """

    src_tokens: int
    tgt_tokens: int
    micro_batches: int
    stages: tuple[BatchStage, ...] = ()

    def at(self, epochs: float) -> Budget:
        """The limits of an update that begins after so many epochs of training."""
        end = 0.0
        for stage in self.stages:
            end += stage.epochs
            if epochs < end:
                return self._take(stage)
        return self

    @property
    def smallest(self) -> Budget:
        """The limits of the stage with the fewest tokens."""
        return self._take(min(self.stages, key=lambda stage: stage.share)) if self.stages else self

    def _take(self, stage: BatchStage) -> Budget:
        src, tgt = (max(1, round(stage.share * tokens)) for tokens in (self.src_tokens, self.tgt_tokens))
        return replace(self, src_tokens=src, tgt_tokens=tgt)


def build_budget(batch: BatchConfig) -> Budget:
    """The limits of an update, from the configuration."""
    return Budget(batch.src_tokens, batch.tgt_tokens, batch.micro_batch_count, tuple(batch.stages))


def describe_stages(stages: Sequence[BatchStage], updates: Sequence[float]) -> str:
    """The stages in a line: ``25% of the tokens for 0.5 epochs (about 400 updates), then all``; empty without any.

    Args:
        stages: ``batch.stages``.
        updates: About how many updates each has.
    """
    described = [
        f"{100 * stage.share:g}% of the tokens for {stage.epochs:g} epoch{'' if stage.epochs == 1 else 's'} "
        f"(about {count:,.0f} updates)"
        for stage, count in zip(stages, updates, strict=True)
    ]
    return ", then ".join([*described, "all"]) if described else ""
