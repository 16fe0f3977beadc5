"""The typed experiment configuration. Values live in ``presets/base.yaml``; here stand their types and bounds."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

#: Counts of updates, tokens and sentences, and seeds: what a signed 64-bit integer holds, as PyTorch and Arrow count.
LARGEST = 2**63 - 1

Count = Annotated[int, Field(ge=1, le=LARGEST)]
NonNegative = Annotated[int, Field(ge=0, le=LARGEST)]
#: Widths, heads, layers and rows of a model: beyond these a matrix has more elements than any machine has memory for,
#: and PyTorch's sizes overflow.
Width = Annotated[int, Field(ge=1, le=2**20)]
Probability = Annotated[float, Field(ge=0.0, lt=1.0)]


class Section(BaseModel):
    """A frozen group of values; an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class ModelConfig(Section):
    """The architecture (paper, section 3)."""

    num_layers: Annotated[int, Field(ge=1, le=1_000)]
    d_model: Annotated[int, Field(ge=2, le=2**20, multiple_of=2)]
    d_ff: Width
    num_heads: Annotated[int, Field(ge=1, le=2**16)]
    d_k: Annotated[int, Field(ge=1, le=2**16)]
    d_v: Annotated[int, Field(ge=1, le=2**16)]
    dropout: Probability
    attention_dropout: Probability
    activation_dropout: Probability
    norm: Literal["post", "pre"]
    attention_bias: bool
    positions: Literal["sinusoidal", "learned"]
    max_positions: Annotated[int, Field(ge=1, le=2**26)]
    tie_embeddings: Literal["all", "target", "none"]
    vocab_multiple: Width

    def embedding_rows(self, vocab_size: int) -> int:
        """Rows of an embedding matrix for ``vocab_size`` pieces: rounded up to ``vocab_multiple``."""
        return -(-vocab_size // self.vocab_multiple) * self.vocab_multiple


class LossConfig(Section):
    """The training criterion (section 5.4)."""

    label_smoothing: Probability


class OptimizerConfig(Section):
    """Adam (section 5.3)."""

    beta1: Probability
    beta2: Probability
    eps: Annotated[float, Field(gt=0)]
    weight_decay: Annotated[float, Field(ge=0)]
    clip_norm: Annotated[float, Field(ge=0)]


class ScheduleConfig(Section):
    """The learning rate (section 5.3, equation 3)."""

    warmup_steps: Count
    scale: Annotated[float, Field(gt=0)]


class BatchConfig(Section):
    """What an update holds (section 5.1) and how many parts it is cut into."""

    src_tokens: Count
    tgt_tokens: Count
    micro_batches: Count


class TrainingConfig(Section):
    """The loop."""

    max_updates: Count
    seed: NonNegative
    log_every: Count
    attention_backend: Literal["auto", "varlen", "padded"]
    prefetch: Count


class ValidationConfig(Section):
    """Loss, perplexity and BLEU during training."""

    every: NonNegative
    bleu_sentences: NonNegative
    final_sentences: NonNegative
    samples: NonNegative


class CheckpointConfig(Section):
    """When checkpoints are written and which of them stay."""

    every_updates: NonNegative
    every_minutes: Annotated[float, Field(ge=0)]
    keep_last: Count
    keep_best: NonNegative
    average_last: Count
    final: Literal["average", "best_on_validation"]

    @model_validator(mode="after")
    def _averages_what_is_kept(self) -> CheckpointConfig:
        if self.average_last > self.keep_last:
            raise ValueError(
                f"average_last {self.average_last} is more than keep_last {self.keep_last}: "
                "the checkpoints to average would be gone; raise checkpoint.keep_last"
            )
        return self


class DecodingConfig(Section):
    """Beam search (section 6.1)."""

    beam_size: Annotated[int, Field(ge=1, le=1000)]
    length_penalty: Annotated[float, Field(ge=0, le=10)]
    max_input_tokens: NonNegative
    max_extra_tokens: Annotated[int, Field(ge=0, le=100_000)]
    batch_tokens: Count


class TrackingConfig(Section):
    """Where the record of a run goes."""

    enabled: bool
    uri: str | None
    experiment: Annotated[str, Field(min_length=1)]
    system_metrics: bool


class Config(Section):
    """One experiment: what is trained. How it is run on the hardware stands in the DeepSpeed fragments it names."""

    model: ModelConfig
    loss: LossConfig
    optimizer: OptimizerConfig
    schedule: ScheduleConfig
    batch: BatchConfig
    training: TrainingConfig
    validation: ValidationConfig
    checkpoint: CheckpointConfig
    decoding: DecodingConfig
    tracking: TrackingConfig
    deepspeed: list[str]
