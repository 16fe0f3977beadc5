"""What ``auto_precision`` is: bf16 where every device has its instructions, else fp32. Also warns of emulation."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Collection
from dataclasses import replace

import torch

from dstransformer.config import AUTO_PRECISION, Config, Precision, compose, precision_of
from dstransformer.distributed.world import World
from dstransformer.model import DTYPES
from dstransformer.model.ops import linear, processor_flags, processor_name
from dstransformer.training.setup import Setup, iter_stored

logger = logging.getLogger(__name__)

ALL: frozenset[Precision] = frozenset({"fp32", "bf16", "fp16"})

#: The instruction sets, by Linux's names for x86 and ARM, of which a CPU needs one.
_INSTRUCTIONS: dict[Precision, set[str]] = {
    "bf16": {"avx512_bf16", "amx_bf16", "bf16"},
    "fp16": {"avx512_fp16", "amx_fp16", "asimdhp"},
}

#: The layer that is timed, ``(rows, in_features, out_features)``, and how often; the shortest time counts.
_TIMED_LAYER, _TIMES = (256, 512, 512), 3


def native_precisions(device: torch.device) -> frozenset[Precision]:
    """The precisions that a device has instructions for. The others are emulated."""
    if device.type == "cuda":
        return ALL if torch.cuda.get_device_capability(device) >= (8, 0) else ALL - {"bf16"}
    return frozenset({"fp32", *(name for name, any_of in _INSTRUCTIONS.items() if any_of & processor_flags())})


def own_device() -> torch.device:
    """The first GPU of this machine, or its CPU where a run would train on it."""
    on_cpu = os.environ.get("DS_ACCELERATOR") == "cpu" or not torch.cuda.is_available()
    return torch.device("cpu") if on_cpu else torch.device("cuda", 0)


def settle_precision(setup: Setup, resume: str, world: World) -> Setup:
    """Give ``auto_precision`` its precision, the same on every rank, and warn if a device emulates it. Collective.

    Args:
        setup: The experiment.
        resume: See :class:`dstransformer.training.setup.TrainRequest`.
        world: The process group.
    """
    native = native_precisions(world.device)
    stored = world.compute_on_rank0(lambda: find_stored_precision(setup, resume))
    setup = choose_precision(setup, stored, ALL.intersection(*world.gather(native)))
    warnings = world.gather(emulation_warning(setup, world.device, native))
    if world.is_rank0 and (first := next(filter(None, warnings), None)) is not None:
        logger.warning(first)
    return setup


def choose_precision(setup: Setup, stored: Precision | None, native: Collection[Precision]) -> Setup:
    """Give ``auto_precision`` its precision; another setup stays as it is.

    Args:
        setup: The experiment.
        stored: The precision of the checkpoint to resume from, which the run keeps; None for a new run.
        native: The precisions that every device has instructions for.
    """
    if AUTO_PRECISION not in setup.config.deepspeed:
        return setup
    precision, reason = choose(stored, native)
    config = with_precision(setup.config, precision)
    return replace(setup, config=config, ds_config=compose(config, setup.world_size), precision_from=reason)


def choose(stored: Precision | None, native: Collection[Precision]) -> tuple[Precision, str]:
    """What ``auto_precision`` is, and why, in words. See :func:`choose_precision`."""
    best: Precision = "bf16" if "bf16" in native else "fp32"
    if stored is not None:
        other = "" if stored == best else f"; a new run would take {best} here ({AUTO_PRECISION})"
        return stored, f"as its checkpoint has{other}"
    if best == "bf16":
        return best, f"which every device here has instructions for ({AUTO_PRECISION})"
    return best, f"as not every device here has instructions for bf16 ({AUTO_PRECISION})"


def with_precision(config: Config, precision: Precision) -> Config:
    """A copy with this precision in place of ``auto_precision``."""
    return config.model_copy(update={"deepspeed": _replaced(config, {AUTO_PRECISION}, precision)})


def find_stored_precision(setup: Setup, resume: str) -> Precision | None:
    """The precision of the checkpoint that a run with ``auto_precision`` resumes from; None for a new run."""
    if AUTO_PRECISION not in setup.config.deepspeed:
        return None
    return next((checkpoint.state.precision for checkpoint in iter_stored(setup, resume)), None)


def emulation_warning(setup: Setup, device: torch.device, native: Collection[Precision]) -> str | None:
    """Say which precision is fast on a device that emulates the experiment's, and by how much; None if it is fast.

    Args:
        setup: The experiment, with its precision settled.
        device: The device. A layer is timed on it if it has no instructions for the precision.
        native: What it has instructions for.
    """
    precision = precision_of(setup.ds_config)
    if precision in native or (slowdown := measure_slowdown(device, precision)) <= 1.0:
        return None
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else processor_name()
    fast = " ".join(_replaced(setup.config, ALL, "fp32"))
    return (
        f"{name} has no {precision} instructions: {precision} is emulated, and a layer takes about {slowdown:.2g} "
        f"times as long as in fp32 (measured just now). `--ds {fast}` trains in fp32; with {AUTO_PRECISION} in place "
        "of a precision, a new run chooses by the hardware"
    )


def measure_slowdown(device: torch.device, precision: Precision) -> float:
    """How many times as long as in fp32 a layer takes in a precision, forward and backward."""
    seconds = [[_time_layer(device, DTYPES[name]) for name in (precision, "fp32")] for _ in range(_TIMES)]
    emulated, fp32 = (min(times) for times in zip(*seconds, strict=True))
    return float(emulated / fp32)


def _time_layer(device: torch.device, dtype: torch.dtype) -> float:
    rows, ins, outs = _TIMED_LAYER
    x = torch.ones(rows, ins, dtype=dtype, device=device, requires_grad=True)
    weight = torch.ones(outs, ins, device=device, requires_grad=True)
    bias = torch.ones(outs, device=device, requires_grad=True)
    _wait_for(device)
    start = time.perf_counter()
    linear(x, weight, bias).sum().backward()  # type: ignore[no-untyped-call]
    _wait_for(device)
    return time.perf_counter() - start


def _wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _replaced(config: Config, names: Collection[str], precision: Precision) -> list[str]:
    return [precision if name in names else name for name in config.deepspeed]
