"""What a run leaves to its devices: ``auto_precision``, and ``batch.micro_batches: auto``.

The precision is bf16 where every device has its instructions, else fp32. The micro-batches are as few as fit the memory
of every GPU. A run that resumes keeps what its checkpoint has.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Collection
from dataclasses import replace
from typing import NamedTuple

import torch

from dstransformer.config import AUTO_PRECISION, Config, Precision, compose, precision_of
from dstransformer.distributed.world import World
from dstransformer.errors import ConfigError
from dstransformer.model.ops import processor_flags, processor_name
from dstransformer.training.checkpoints.resume import Resumed
from dstransformer.training.devices import GPU_MEMORY
from dstransformer.training.estimate import setup_peak_bytes
from dstransformer.training.setup import GIB, Setup

logger = logging.getLogger(__name__)

ALL: frozenset[Precision] = frozenset({"fp32", "bf16", "fp16"})

#: The instruction sets, by Linux's names for x86 and ARM, of which a CPU needs one.
_INSTRUCTIONS: dict[Precision, set[str]] = {
    "bf16": {"avx512_bf16", "amx_bf16", "bf16"},
    "fp16": {"avx512_fp16", "amx_fp16", "asimdhp"},
}

#: Share of a GPU's memory that the predicted peak may take. The rest is for the error of the prediction, which is at
#: most 10%, and for fragmentation.
SHARE = 0.9

#: Bytes of it that CUDA's context, cuBLAS and NCCL take before that.
CONTEXT_BYTES = GIB

#: Micro-batches of an update at least, on GPUs whose memory is not predicted: the paper's eight GPUs computed one each.
UNPREDICTED = 8

_AS_STORED = "as its checkpoint has"


class Devices(NamedTuple):
    """What the devices of a run have in common.

    Attributes:
        native: The precisions that every device has instructions for. The others are emulated.
        usable: Bytes that the tensors of an update may take on the smallest GPU, 0 if its memory is not predicted; None
            on CPUs.
    """

    native: frozenset[Precision]
    usable: int | None

    @classmethod
    def of(cls, device: torch.device) -> Devices:
        """Those of one device."""
        return cls(native_precisions(device), usable_bytes(device))

    @classmethod
    def named(cls, name: str) -> Devices:
        """Those of a GPU of :data:`GPU_MEMORY`, all of which have every precision."""
        return cls(ALL, usable_of(GPU_MEMORY[name]))

    @classmethod
    def gather(cls, world: World) -> Devices:
        """Those of all ranks. Collective."""
        native, usable = zip(*world.gather(cls.of(world.device)), strict=True)
        return cls(ALL.intersection(*native), min((size for size in usable if size is not None), default=None))


def choose_on_all(setup: Setup, resumed: Resumed | None, world: World) -> Setup:
    """:func:`choose` the same on every rank, and warn if a device emulates the precision. Collective.

    Raises:
        ConfigError: No number of micro-batches fits a GPU.
    """
    devices = Devices.gather(world)
    with world.collective_errors():
        setup = choose(setup, resumed, devices)
    warnings = world.gather(emulation_warning(setup, world.device))
    if world.is_rank0 and (first := next(filter(None, warnings), None)) is not None:
        logger.warning(first)
    return setup


def choose(setup: Setup, resumed: Resumed | None, devices: Devices) -> Setup:
    """Give an experiment its precision and its number of micro-batches, if they are automatic.

    Args:
        setup: The experiment.
        resumed: The checkpoint to resume from; None for a new run.
        devices: What the devices have in common.

    Raises:
        ConfigError: No number of micro-batches fits a GPU.
    """
    if AUTO_PRECISION in setup.config.deepspeed:
        stored = None if resumed is None else resumed.checkpoint.state.precision
        precision, reason = choose_precision(stored, devices.native)
        setup = _with(setup, with_precision(setup.config, precision), precision_from=reason)
    if setup.config.batch.micro_batches == "auto":
        number, reason = _choose_micro_batches(setup, resumed, devices.usable)
        setup = _with(setup, setup.config.with_micro_batches(number), micro_batches_from=reason)
    return setup


def _with(setup: Setup, config: Config, **reasons: str) -> Setup:
    return replace(setup, config=config, ds_config=compose(config, setup.world_size), **reasons)  # type: ignore[arg-type]


def choose_precision(stored: Precision | None, native: Collection[Precision]) -> tuple[Precision, str]:
    """What ``auto_precision`` is, and why, in words.

    Args:
        stored: The precision of the checkpoint to resume from; None for a new run.
        native: The precisions that every device has instructions for.
    """
    best: Precision = "bf16" if "bf16" in native else "fp32"
    if stored is not None:
        other = "" if stored == best else f"; a new run would take {best} here ({AUTO_PRECISION})"
        return stored, f"{_AS_STORED}{other}"
    if best == "bf16":
        return best, f"which every device here has instructions for ({AUTO_PRECISION})"
    return best, f"as not every device here has instructions for bf16 ({AUTO_PRECISION})"


def with_precision(config: Config, precision: Precision) -> Config:
    """A copy with this precision in place of ``auto_precision``."""
    return config.model_copy(update={"deepspeed": _replaced(config, {AUTO_PRECISION}, precision)})


def _replaced(config: Config, names: Collection[str], precision: Precision) -> list[str]:
    return [precision if name in names else name for name in config.deepspeed]


def _choose_micro_batches(setup: Setup, resumed: Resumed | None, usable: int | None) -> tuple[int, str]:
    """What ``batch.micro_batches: auto`` is, and why, in words.

    A run that resumes keeps the number of its checkpoint, and so its updates, if the number of processes divides it and
    it fits. Where memory is not predicted, each process of a CPU computes one micro-batch, and GPUs compute at least
    :data:`UNPREDICTED` together.
    """
    world_size = setup.world_size
    stored = None if resumed is None else resumed.config.batch.micro_batch_count
    if stored is not None and stored % world_size:
        stored = None
    if not usable or setup_peak_bytes(setup, world_size) is None:
        if stored is not None:
            return stored, _AS_STORED
        each = 1 if usable is None else -(-UNPREDICTED // world_size)
        return each * world_size, f"{each} for each process, as no memory is predicted here (auto)"

    def peak(number: int) -> int:
        return setup_peak_bytes(setup, number) or 0

    if stored is not None and peak(stored) <= usable:
        return stored, _AS_STORED
    most = max_micro_batches(setup)
    number = next((number for number in range(world_size, most + 1, world_size) if peak(number) <= usable), None)
    if number is None:
        again = "" if setup.config.training.activation_checkpointing else "set training.activation_checkpointing=true, "
        raise ConfigError(
            f"batch.micro_batches = auto: no number fits the GPUs. With {most}, the most for "
            f"{world_size} process{'' if world_size == 1 else 'es'}, an update takes {_gib(peak(most))} on each by "
            f"prediction, and {_gib(usable)} are usable: choose a higher ZeRO stage or more processes, {again}lower "
            "batch.src_tokens and batch.tgt_tokens, or give a number with --set batch.micro_batches=N to try"
        )
    found = f"which take {_gib(peak(number))} of the {_gib(usable)} that are usable on each GPU by prediction (auto)"
    return number, found


def max_micro_batches(setup: Setup) -> int:
    """The largest multiple of the number of processes at which a micro-batch holds the longest sentence pair.

    With more, memory would not shrink, and a full update could have fewer pairs than micro-batches. With
    ``batch.stages``, the smallest updates count. It is at least the number of processes.
    """
    batch, train = setup.config.batch, setup.corpus.manifest.splits["train"]
    longest = ((batch.src_tokens, train.src_lengths.max), (batch.tgt_tokens, train.tgt_lengths.max))
    least = batch.smallest_share
    most = min(int(least * tokens) // (length + 1) for tokens, length in longest)  # with the end of the sentence
    return max(1, most // setup.world_size) * setup.world_size


def own_device() -> torch.device:
    """The first GPU of this machine, or its CPU where a run would train on it."""
    on_cpu = os.environ.get("DS_ACCELERATOR") == "cpu" or not torch.cuda.is_available()
    return torch.device("cpu") if on_cpu else torch.device("cuda", 0)


def native_precisions(device: torch.device) -> frozenset[Precision]:
    """The precisions that a device has instructions for."""
    if device.type == "cuda":
        return ALL if torch.cuda.get_device_capability(device) >= (8, 0) else ALL - {"bf16"}
    return frozenset({"fp32", *(name for name, any_of in _INSTRUCTIONS.items() if any_of & processor_flags())})


def usable_bytes(device: torch.device) -> int | None:
    """Bytes that the tensors of an update may take on a GPU, 0 if its memory is not predicted; None for a CPU."""
    if device.type != "cuda":
        return None
    if torch.cuda.get_device_capability(device) < (8, 0):
        return 0
    return usable_of(torch.cuda.get_device_properties(device).total_memory)


def usable_of(memory: int) -> int:
    """Bytes that the tensors of an update may take on a GPU with so many bytes of memory."""
    return max(1, round(SHARE * memory) - CONTEXT_BYTES)


def emulation_warning(setup: Setup, device: torch.device) -> str | None:
    """Say which precision is fast on a device that emulates the experiment's; None if it is that."""
    precision = precision_of(setup.ds_config)
    if precision in native_precisions(device):
        return None
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else processor_name()
    fast = " ".join(_replaced(setup.config, ALL, "fp32"))
    return (
        f"{name} has no {precision} instructions: {precision} is emulated, which is slow. `--ds {fast}` trains in "
        f"fp32; with {AUTO_PRECISION} in place of a precision, a new run chooses by the hardware"
    )


def _gib(size: int) -> str:
    return f"{size / GIB:,.1f} GiB"
