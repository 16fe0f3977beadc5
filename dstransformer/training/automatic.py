"""What a run leaves to its start: ``auto_precision``, and the first number of ``batch.micro_batches: auto``.

The precision is bf16 where every device has its instructions, else fp32. The number is one for each process, from which
:mod:`dstransformer.training.trial` goes on. A run that resumes keeps what its checkpoint has.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Collection

import torch

from dstransformer.config import AUTO_PRECISION, Config, Precision, precision_of
from dstransformer.distributed.world import World
from dstransformer.model.ops import processor_flags, processor_name
from dstransformer.training.checkpoints.resume import Resumed
from dstransformer.training.setup import Setup

logger = logging.getLogger(__name__)

ALL: frozenset[Precision] = frozenset({"fp32", "bf16", "fp16"})

#: The instruction sets, by Linux's names for x86 and ARM, of which a CPU needs one.
_INSTRUCTIONS: dict[Precision, set[str]] = {
    "bf16": {"avx512_bf16", "amx_bf16", "bf16"},
    "fp16": {"avx512_fp16", "amx_fp16", "asimdhp"},
}


def choose_on_all(setup: Setup, resumed: Resumed | None, world: World) -> Setup:
    """:func:`choose` the same on every rank, and warn if a device emulates the precision. Collective."""
    native = ALL.intersection(*world.gather(native_precisions(world.device)))
    setup = choose(setup, resumed, native)
    warnings = world.gather(emulation_warning(setup, world.device))
    if world.is_rank0 and (first := next(filter(None, warnings), None)) is not None:
        logger.warning(first)
    return setup


def choose(setup: Setup, resumed: Resumed | None, native: Collection[Precision]) -> Setup:
    """Give an experiment its precision and its number of micro-batches, if they are automatic.

    A run that resumes keeps the number of its checkpoint, and so its updates, if the number of processes divides it.

    Args:
        setup: The experiment.
        resumed: The checkpoint to resume from; None for a new run.
        native: The precisions that every device has instructions for.
    """
    if AUTO_PRECISION in setup.config.deepspeed:
        stored = None if resumed is None else resumed.checkpoint.state.precision
        precision, reason = choose_precision(stored, native)
        setup = setup.with_config(with_precision(setup.config, precision), precision_from=reason)
    if setup.config.batch.micro_batches != "auto":
        return setup
    kept = 0 if resumed is None else resumed.config.batch.micro_batch_count
    if kept and kept % setup.world_size == 0:
        return setup.with_config(setup.config.with_micro_batches(kept), micro_batches_from="checkpoint")
    return setup.with_config(setup.config.with_micro_batches(setup.world_size), micro_batches_from="trial")


def choose_precision(stored: Precision | None, native: Collection[Precision]) -> tuple[Precision, str]:
    """What ``auto_precision`` is, and why, in words.

    Args:
        stored: The precision of the checkpoint to resume from; None for a new run.
        native: The precisions that every device has instructions for.
    """
    best: Precision = "bf16" if "bf16" in native else "fp32"
    if stored is not None:
        other = "" if stored == best else f"; a new run would take {best} here ({AUTO_PRECISION})"
        return stored, f"as its checkpoint has{other}"
    if best == "bf16":
        return best, f"which every device here has instructions for ({AUTO_PRECISION})"
    return best, f"as not every device here has instructions for bf16 ({AUTO_PRECISION})"


def with_precision(config: Config, precision: Precision) -> Config:
    """A copy with this precision in place of ``auto_precision``."""
    fragments = [precision if name == AUTO_PRECISION else name for name in config.deepspeed]
    return config.model_copy(update={"deepspeed": fragments})


def own_device() -> torch.device:
    """The first GPU of this machine, or its CPU where a run would train on it."""
    on_cpu = os.environ.get("DS_ACCELERATOR") == "cpu" or not torch.cuda.is_available()
    return torch.device("cpu") if on_cpu else torch.device("cuda", 0)


def native_precisions(device: torch.device) -> frozenset[Precision]:
    """The precisions that a device has instructions for."""
    if device.type == "cuda":
        return ALL if torch.cuda.get_device_capability(device) >= (8, 0) else ALL - {"bf16"}
    return frozenset({"fp32", *(name for name, any_of in _INSTRUCTIONS.items() if any_of & processor_flags())})


def emulation_warning(setup: Setup, device: torch.device) -> str | None:
    """Say which precision is fast on a device that emulates the experiment's; None if it is that."""
    precision = precision_of(setup.ds_config)
    if precision in native_precisions(device):
        return None
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else processor_name()
    fast = " ".join("fp32" if name in ALL else name for name in setup.config.deepspeed)
    return (
        f"{name} has no {precision} instructions: {precision} is emulated, which is slow. `--ds {fast}` trains in "
        f"fp32; with {AUTO_PRECISION} in place of a precision, a new run chooses by the hardware"
    )
