"""What is measured: the cases of a run and how much each computes."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from dstransformer.config import Config, Precision, load_config

Act = Literal["train", "decode"]
AttentionBackend = Literal["varlen", "padded"]
Loop = Literal["engine", "bare"]

#: Parts that an update is cut into. Without padding one is enough and keeps the kernels large; the padded backend needs
#: parts of about one length each, as the presets cut them.
MICRO_BATCHES: dict[AttentionBackend, int] = {"varlen": 1, "padded": 8}

#: What ``--smoke`` changes in a preset: the same code on a CPU within seconds.
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
    """How much a case computes.

    Attributes:
        vocabulary: Pieces that both languages share.
        updates: Different updates; a round computes each of them once.
        rounds: Timed rounds, after one that warms up and compiles.
        sentences: Sentences that a round of decoding translates.
        batch_tokens: Source tokens decoded at once.
        product: Side of the square matrices whose product measures the device's peak.
        overrides: ``section.key=value`` for the preset.
        compiler: Backend of ``torch.compile``.
    """

    vocabulary: int = 37_000
    updates: int = 10
    rounds: int = 5
    sentences: int = 3000
    batch_tokens: int = 16_384
    product: int = 8192
    overrides: tuple[str, ...] = ()
    compiler: str = "inductor"


#: ``aot_eager`` traces as inductor does and generates no code, which would take a CPU minutes.
SMOKE = Work(
    vocabulary=300,
    updates=3,
    rounds=2,
    sentences=24,
    batch_tokens=300,
    product=128,
    overrides=SMOKE_SIZES,
    compiler="aot_eager",
)


@dataclass(frozen=True)
class Case:
    """One measurement, made in a process of its own.

    Attributes:
        act: Training or decoding.
        model: A preset.
        precision: Of the forward and backward pass.
        backend: Of the attention.
        compiled: Each layer goes through ``torch.compile``.
        static: Every micro-batch is filled up to one shape, so that the compiler meets that shape only.
        micro_batches: Parts of an update; ranks x accumulation steps.
        loop: ``engine`` is the product's; ``bare`` the same model and arithmetic without DeepSpeed.
        profile: Whether a profile is made after the timing.
        trace: Folder for the whole profile, or None.
        work: How much it computes.
    """

    act: Act
    model: str
    precision: Precision
    backend: AttentionBackend
    compiled: bool = False
    static: bool = False
    micro_batches: int = 1
    loop: Loop = "engine"
    profile: bool = False
    trace: str | None = None
    work: Work = field(default_factory=Work)

    @property
    def name(self) -> str:
        """For the lines that are printed, and for the files of its profile."""
        parts = [self.act, self.model, self.precision, self.backend]
        if self.act == "train":
            parts += ["compiled" if self.compiled else "eager", f"{self.micro_batches}x", self.loop]
        return "-".join(parts)

    def load_config(self) -> Config:
        """The preset as the case changes it, for ZeRO 1."""
        overrides = [
            f"batch.micro_batches={self.micro_batches}",
            f"training.attention_backend={self.backend}",
            "schedule.warmup_steps=1000",
            "decoding.max_extra_tokens=0",
            *self.work.overrides,
        ]
        return load_config(self.model, overrides, ["zero1", self.precision])

    def to_json(self) -> dict[str, Any]:
        """As plain data."""
        return asdict(self)

    @classmethod
    def from_json(cls, plain: dict[str, Any]) -> Case:
        """The inverse of :meth:`to_json`."""
        work = plain["work"] | {"overrides": tuple(plain["work"]["overrides"])}
        return cls(**plain | {"work": Work(**work)})


@dataclass(frozen=True)
class Choice:
    """What was asked for on the command line."""

    models: Sequence[str]
    precisions: Sequence[Precision]
    backends: Sequence[AttentionBackend]
    compiled: Sequence[bool]
    loops: Sequence[Loop]
    micro_batches: int | None
    work: Work
    trace: str | None
    smoke: bool


def build_cases(choice: Choice) -> list[Case]:
    """The cases in the order of what they tell, since the time may run out before the last.

    First precision first, and in it varlen before padded, the product's engine before the bare loop, eager before
    compiled, and decoding after training. Those in the first precision and with the first backend are profiled.
    """
    cases = []
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
                compiled=compiled,
                static=compiled and (backend == "varlen" or choice.smoke),
                micro_batches=micro_batches,
                loop=loop,
                profile=profile,
                trace=choice.trace,
                work=choice.work,
            )
            for loop, compiled, model in itertools.product(choice.loops, choice.compiled, choice.models)
        ]
        if backend == choice.backends[0]:
            cases += [
                Case("decode", model, precision, backend, profile=profile, trace=choice.trace, work=choice.work)
                for model in choice.models
            ]
    return cases
