"""The cases of a benchmark run, and the amount of work in each."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from dstransformer.config import Config, Precision, load_config

Act = Literal["train", "decode"]
AttentionBackend = Literal["varlen", "padded"]
Loop = Literal["engine", "bare"]

#: Micro-batches per update, beside the case as shipped, which has those of the preset. Without padding, one is enough
#: and keeps the kernels large. The padded backend needs micro-batches of similar lengths, as in the presets.
MICRO_BATCHES: dict[AttentionBackend, int] = {"varlen": 1, "padded": 8}

#: Overrides for ``--smoke``, to run the same code on a CPU within seconds.
SMOKE_SIZES = (
    "model.num_layers=1",
    "model.d_model=32",
    "model.d_ff=64",
    "model.num_heads=2",
    "model.d_k=16",
    "model.d_v=16",
    "batch.src_tokens=600",
    "batch.tgt_tokens=600",
    "schedule.warmup_steps=20",
)


@dataclass(frozen=True)
class Work:
    """The amount of work in a case.

    Attributes:
        vocabulary: Size of the joint vocabulary.
        updates: Number of different updates; a round computes each of them once.
        rounds: Timed rounds, after one for warm-up and compilation.
        sentences: Sentences translated per round of decoding.
        batch_tokens: Source tokens per decoding batch.
        product: Side of the square matrices whose product measures the peak of the device.
        overrides: ``section.key=value`` overrides of the preset.
    """

    vocabulary: int = 37_000
    updates: int = 10
    rounds: int = 5
    sentences: int = 3000
    batch_tokens: int = 16_384
    product: int = 8192
    overrides: tuple[str, ...] = ()


#: What runs within seconds on a CPU.
SMOKE = Work(
    vocabulary=300,
    updates=3,
    rounds=2,
    sentences=24,
    batch_tokens=300,
    product=128,
    overrides=SMOKE_SIZES,
)


@dataclass(frozen=True)
class Case:
    """One measurement, made in a new process.

    Attributes:
        act: Training or decoding.
        model: The preset.
        precision: Precision of the forward and backward pass.
        backend: The attention backend.
        micro_batches: Micro-batches per update: ranks x accumulation steps.
        stage: The ZeRO stage.
        loop: ``engine`` is the engine of ``dst train``; ``bare`` the same model and arithmetic without DeepSpeed.
        profile: Whether to profile after the timing.
        trace: Folder for the full profile, or None.
        work: The amount of work.
    """

    act: Act
    model: str
    precision: Precision
    backend: AttentionBackend
    micro_batches: int = 1
    stage: int = 1
    loop: Loop = "engine"
    profile: bool = False
    trace: str | None = None
    work: Work = field(default_factory=Work)

    @property
    def name(self) -> str:
        """The name for printed lines and for the files of the profile."""
        parts = [self.act, self.model, self.precision, self.backend]
        if self.act == "train":
            parts += [f"{self.micro_batches}x", self.loop]
            parts += [f"zero{self.stage}"] if self.stage != 1 else []
        return "-".join(parts)

    def load_config(self) -> Config:
        """Load the preset with the overrides of the case."""
        overrides = [
            f"batch.micro_batches={self.micro_batches}",
            f"training.attention_backend={self.backend}",
            "schedule.warmup_steps=1000",
            "decoding.max_extra_tokens=0",
            *self.work.overrides,
        ]
        return load_config(self.model, overrides, [f"zero{self.stage}", self.precision])

    def to_json(self) -> dict[str, Any]:
        """The case as plain data."""
        return asdict(self)

    @classmethod
    def from_json(cls, plain: dict[str, Any]) -> Case:
        """The inverse of :meth:`to_json`."""
        work = plain["work"] | {"overrides": tuple(plain["work"]["overrides"])}
        return cls(**plain | {"work": Work(**work)})


@dataclass(frozen=True)
class Choice:
    """The selection made on the command line."""

    models: Sequence[str]
    precisions: Sequence[Precision]
    backends: Sequence[AttentionBackend]
    loops: Sequence[Loop]
    micro_batches: int | None
    work: Work
    trace: str | None
    stage: int = 1


def build_cases(choice: Choice) -> list[Case]:
    """Build the cases, the most informative first, because the time limit may cut off the last ones.

    Precisions come in the given order; within each, varlen before padded, engine before bare loop, and training before
    decoding. Cases with the first precision and the first backend are profiled.
    """
    cases: list[Case] = []
    for precision, backend in itertools.product(choice.precisions, choice.backends):
        leading = precision == choice.precisions[0] and backend == choice.backends[0]
        profile = leading or choice.trace is not None
        micro_batches = choice.micro_batches or MICRO_BATCHES[backend]
        cases += [
            Case(
                act="train",
                model=model,
                precision=precision,
                backend=backend,
                micro_batches=micro_batches,
                stage=choice.stage,
                loop=loop,
                profile=profile,
                trace=choice.trace,
                work=choice.work,
            )
            for loop, model in itertools.product(choice.loops, choice.models)
        ]
        if backend == choice.backends[0]:
            cases += [
                Case("decode", model, precision, backend, profile=profile, trace=choice.trace, work=choice.work)
                for model in choice.models
            ]
    return cases
