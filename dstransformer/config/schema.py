"""The typed experiment configuration: types and bounds. Default values are in ``presets/base.yaml``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, PlainValidator, field_validator, model_validator

from dstransformer.errors import without_secrets

#: Upper bound of seeds and of counts (updates, tokens, sentences). PyTorch and Arrow use signed 64-bit integers.
MAX_INT64 = 2**63 - 1

Count = Annotated[int, Field(ge=1, le=MAX_INT64)]
NonNegative = Annotated[int, Field(ge=0, le=MAX_INT64)]
#: A width of the model. With larger ones a matrix would exceed any machine's memory and overflow PyTorch's sizes.
Width = Annotated[int, Field(ge=1, le=2**20)]
Probability = Annotated[float, Field(ge=0.0, lt=1.0)]
#: A probability or a share that is not zero.
Share = Annotated[float, Field(gt=0, le=1)]


class Section(BaseModel):
    """A frozen group of values. Unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


#: The function between the two products of a feed-forward network.
Activation = Literal["relu", "swish", "gelu"]

#: What tells the decoder and the encoder the order of tokens.
Positions = Literal["sinusoidal", "timing", "learned"]

Layers = Annotated[int, Field(ge=1, le=1_000)]


class ModelConfig(Section):
    """The architecture (paper, section 3)."""

    num_layers: Layers
    encoder_layers: Layers | None
    decoder_layers: Layers | None
    d_model: Annotated[int, Field(ge=2, le=2**20, multiple_of=2)]
    d_ff: Width
    num_heads: Annotated[int, Field(ge=1, le=2**16)]
    d_k: Annotated[int, Field(ge=1, le=2**16)]
    d_v: Annotated[int, Field(ge=1, le=2**16)]
    dropout: Probability
    attention_dropout: Probability
    activation: Activation
    activation_dropout: Probability
    norm: Literal["post", "pre"]
    norm_epsilon: Annotated[float, Field(gt=0, lt=1)]
    attention_bias: bool
    output_bias: bool
    positions: Positions
    start: Literal["embedding", "zeros"]
    max_positions: Annotated[int, Field(ge=1, le=2**26)]
    tie_embeddings: Literal["all", "target", "none"]
    vocab_multiple: Width

    @property
    def encoder_depth(self) -> int:
        """Layers of the encoder: ``encoder_layers``, or the paper's N."""
        return self.num_layers if self.encoder_layers is None else self.encoder_layers

    @property
    def decoder_depth(self) -> int:
        """Layers of the decoder: ``decoder_layers``, or the paper's N."""
        return self.num_layers if self.decoder_layers is None else self.decoder_layers

    def embedding_rows(self, vocab_size: int) -> int:
        """The rows of an embedding matrix: ``vocab_size`` rounded up to a multiple of ``vocab_multiple``."""
        return -(-vocab_size // self.vocab_multiple) * self.vocab_multiple


class LossConfig(Section):
    """The training loss (section 5.4; R-Drop is not in the paper)."""

    label_smoothing: Probability
    r_drop: Annotated[float, Field(ge=0, le=100)]
    guided_alignment: Annotated[float, Field(ge=0, le=100)]

    @property
    def passes(self) -> int:
        """Forward and backward passes of a micro-batch: two with R-Drop."""
        return 2 if self.r_drop else 1


class Optimizer(NamedTuple):
    """What is to be known of an optimizer beside how it computes an update.

    Attributes:
        moments: The tensors that it keeps of each parameter, by their names in its state and in checkpoints.
        matrix_moments: Those of the matrices of the layers.
        zero: Whether it can update a part of a parameter, as ZeRO asks of it.
        offload: Whether DeepSpeed can update its moments in CPU memory.
        deepspeed_types: What DeepSpeed calls it, in small letters.
        deepspeed_values: Parameters that it has in a DeepSpeed JSON beside those of every optimizer, and what they are
            called here.
    """

    moments: tuple[str, ...]
    matrix_moments: tuple[str, ...]
    zero: bool
    offload: bool
    deepspeed_types: tuple[str, ...]
    deepspeed_values: Mapping[str, str]


_ADAM_MOMENTS = ("exp_avg", "exp_avg_sq")

#: The optimizers. :mod:`dstransformer.training.optim` builds them.
OPTIMIZERS = {
    "adam": Optimizer(
        moments=_ADAM_MOMENTS,
        matrix_moments=_ADAM_MOMENTS,
        zero=True,
        offload=True,
        # All decouple weight decay unless ``adam_w_mode`` is false.
        deepspeed_types=("adam", "adamw", "fusedadam", "cpuadam", "deepspeedcpuadam"),
        deepspeed_values={"lr": "schedule.peak"},
    ),
    "muon": Optimizer(
        moments=_ADAM_MOMENTS,
        matrix_moments=("momentum",),
        zero=True,
        offload=False,
        deepspeed_types=("muon",),
        # A matrix moves by as much as Adam's here, unlike with DeepSpeed's Muon, so that muon_lr says nothing.
        deepspeed_values={"adam_lr": "schedule.peak", "momentum": "optimizer.momentum"},
    ),
}


class OptimizerConfig(Section):
    """Adam (section 5.3), or Muon (Jordan et al., 2024) with Adam."""

    name: Literal["adam", "muon"]
    beta1: Probability
    beta2: Probability
    eps: Annotated[float, Field(gt=0)]
    momentum: Probability
    muon_rate: Annotated[float, Field(gt=0)]
    weight_decay: Annotated[float, Field(ge=0)]
    clip_norm: Annotated[float, Field(ge=0)]
    ema_decay: Probability


class ScheduleConfig(Section):
    """The learning rate (section 5.3, equation 3), or another curve after the same warm-up."""

    kind: Literal["inverse_sqrt", "linear", "cosine", "warmup_stable_decay"]
    warmup_steps: Count
    scale: Annotated[float, Field(gt=0)]
    peak: Annotated[float, Field(gt=0)] | None
    final: Annotated[float, Field(ge=0, lt=1)]
    decay: Annotated[float, Field(gt=0, le=1)]

    @model_validator(mode="after")
    def _check_one_height(self) -> ScheduleConfig:
        if self.peak is not None and self.scale != 1.0:
            raise ValueError(
                f"scale {self.scale} and peak {self.peak} both set the height of the learning rate: set scale to 1, or "
                "peak to null"
            )
        return self


def _check_micro_batches(value: object) -> int | Literal["auto"]:
    if value == "auto":
        return "auto"
    if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MAX_INT64:
        return value
    raise ValueError("write an integer, 1 or more, or auto")


class BatchStage(Section):
    """A part of the training in which updates are smaller.

    Attributes:
        epochs: How long it lasts, in epochs.
        share: The share of ``src_tokens`` and ``tgt_tokens`` that an update may hold.
    """

    epochs: Annotated[float, Field(gt=0, le=1_000_000)]
    share: Share


class BatchConfig(Section):
    """The size of an update (section 5.1) and the number of micro-batches it is split into."""

    src_tokens: Count
    tgt_tokens: Count
    stages: list[BatchStage]
    micro_batches: Annotated[int | Literal["auto"], PlainValidator(_check_micro_batches)]

    @property
    def smallest_share(self) -> float:
        """The smallest share of the tokens that an update may hold in any stage."""
        return min((stage.share for stage in self.stages), default=1.0)

    @property
    def micro_batch_count(self) -> int:
        """``micro_batches`` as a number, which ``auto`` is by the time a run has joined its processes."""
        assert self.micro_batches != "auto"
        return self.micro_batches


class MixtureStage(Section):
    """How often each source of a corpus is used in an epoch, for a number of epochs.

    Attributes:
        epochs: Number of epochs; None for all that follow.
        weights: How often the pairs of each source are used in an epoch; a source that is not named is left out.
        temperature: In place of weights: the share of a source of ``n`` pairs is proportional to ``n ** (1 /
            temperature)``, and the largest is used once.
    """

    epochs: Count | None = None
    weights: dict[str, Annotated[float, Field(ge=0, le=10_000)]] | None = None
    temperature: Annotated[float, Field(ge=1, le=1000)] | None = None

    @model_validator(mode="after")
    def _check_one_way(self) -> MixtureStage:
        if (self.weights is None) == (self.temperature is None):
            raise ValueError("a stage has either weights or a temperature: give one of them")
        return self


class CaseChange(Section):
    """Augmentation: upper case, lower case or title case, on both sides or on the source only."""

    modifier: Literal["upper", "lower", "title"]
    probability: Share
    source_only: bool = False


class Typos(Section):
    """Augmentation: typing errors in a share ``rate`` of the source's letters."""

    modifier: Literal["typos"]
    probability: Share
    rate: Share


class OtherModifier(Section):
    """Augmentation: adds the same random words to both sides, or removes the final punctuation of both."""

    modifier: Literal["noise", "remove_end_punct"]
    probability: Share


Modifier = CaseChange | Typos | OtherModifier


class TrainingConfig(Section):
    """The training loop."""

    max_updates: Count
    seed: NonNegative
    zero_init_residual: bool
    bpe_dropout: Probability
    unigram_alpha: Annotated[float, Field(ge=0.0, le=10.0)]
    augment: list[Annotated[Modifier, Field(discriminator="modifier")]]
    mixture: list[MixtureStage]
    window_pairs: Annotated[int, Field(ge=0, le=2**30)]
    log_every: Count
    attention_backend: Literal["auto", "varlen", "padded"]
    tf32: bool
    activation_checkpointing: bool
    int8_weights: bool
    freeze: list[str]
    prefetch: Count
    join_seconds: Annotated[float, Field(ge=0)]
    hang_seconds: Annotated[float, Field(ge=0)]
    wait_seconds: Annotated[float, Field(ge=0)]
    silence_seconds: Annotated[float, Field(ge=0)]
    skip_budget: NonNegative
    max_rollbacks: NonNegative

    @field_validator("mixture")
    @classmethod
    def _check_lengths(cls, stages: list[MixtureStage]) -> list[MixtureStage]:
        for number, stage in enumerate(stages, 1):
            if (stage.epochs is None) != (number == len(stages)):
                where = "the last stage lasts to the end: leave out its epochs"
                raise ValueError(where if stage.epochs else f"stage {number} is not the last and has no epochs")
        return stages


#: A tokenizer of sacrebleu's BLEU; ``auto``: by the target language.
BleuTokenizer = Literal[
    "auto", "13a", "intl", "char", "zh", "ja-mecab", "ko-mecab", "flores101", "flores200", "none", "bpe"
]


class ValidationConfig(Section):
    """Loss, perplexity and scores during training."""

    every: NonNegative
    bleu_sentences: NonNegative
    final_sentences: NonNegative
    samples: NonNegative
    patience: NonNegative
    metric: Literal["bleu", "chrf", "loss"]
    tokenize: BleuTokenizer

    @model_validator(mode="after")
    def _check_patience(self) -> ValidationConfig:
        if self.patience and not self.every:
            raise ValueError(f"patience {self.patience} counts validations, but every is 0: set validation.every")
        return self


class CheckpointConfig(Section):
    """When checkpoints are written, which are kept, and how the final bundle is built."""

    every_updates: NonNegative
    every_minutes: Annotated[float, Field(ge=0)]
    retry_seconds: Annotated[float, Field(gt=0)]
    stop_seconds: Annotated[float, Field(ge=0)]
    keep_last: Count
    keep_best: NonNegative
    average_last: Count
    final: Literal["average", "best_on_validation"]
    mirror: Annotated[str, Field(pattern=r"^[a-z][a-z0-9+.-]+://.")] | None

    @model_validator(mode="after")
    def _check_average_last(self) -> CheckpointConfig:
        if self.average_last > self.keep_last:
            raise ValueError(
                f"average_last {self.average_last} is more than keep_last {self.keep_last}: "
                "the checkpoints to average would be deleted; raise checkpoint.keep_last, or lower "
                "checkpoint.average_last"
            )
        return self


class DecodingConfig(Section):
    """Beam search (section 6.1)."""

    beam_size: Annotated[int, Field(ge=1, le=1000)]
    length_penalty: Annotated[float, Field(ge=0, le=10)]
    length_offset: Annotated[float, Field(ge=0, le=1000)]
    max_input_tokens: NonNegative
    long_inputs: Literal["cut", "split", "refuse"]
    min_tokens: Annotated[int, Field(ge=0, le=100_000)]
    max_extra_tokens: Annotated[int, Field(ge=0, le=100_000)]
    batch_tokens: Count
    pruning_threshold: Annotated[float, Field(ge=0)]


class TrackingConfig(Section):
    """Experiment tracking with MLflow."""

    enabled: bool
    uri: str | None
    experiment: Annotated[str, Field(min_length=1)] | None
    system_metrics: bool
    also: list[Literal["tensorboard", "wandb"]]


class Config(Section):
    """One experiment. The DeepSpeed fragments that it lists say how it uses the hardware."""

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

    @model_validator(mode="after")
    def _check_freeze(self) -> Config:
        given, sides = self.training.freeze, ("encoder", "decoder")
        layers = {"encoder": self.model.encoder_depth, "decoder": self.model.decoder_depth}
        known = ["embedding", *sides, *(f"{side}.{number}" for side in sides for number in range(layers[side]))]
        if self.model.tie_embeddings == "none":
            known.insert(1, "softmax")
        if wrong := [part for part in given if part not in known]:
            raise ValueError(f"training.freeze: the model has no part {wrong[0]!r}; its parts are {', '.join(known)}")
        if given and self.optimizer.weight_decay:
            raise ValueError("training.freeze: frozen weights would decay: set optimizer.weight_decay to 0")
        whole = {side for side in sides if side in given or {f"{side}.{n}" for n in range(layers[side])} <= {*given}}
        if {"embedding", *sides, *({"softmax"} & {*known})} <= {*given} | whole:
            raise ValueError("training.freeze: every part is frozen, so there is nothing to train")
        return self

    def with_micro_batches(self, number: int) -> Config:
        """A copy whose updates are split into this number of micro-batches."""
        return self.model_copy(update={"batch": self.batch.model_copy(update={"micro_batches": number})})

    def without_secrets(self) -> Config:
        """A copy whose tracking address has its password masked, for files that others read and for MLflow."""
        if self.tracking.uri is None:
            return self
        tracking = self.tracking.model_copy(update={"uri": without_secrets(self.tracking.uri)})
        return self.model_copy(update={"tracking": tracking})
