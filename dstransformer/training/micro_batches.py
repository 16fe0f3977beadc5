"""What ``batch.micro_batches: auto`` is: as few micro-batches as fit the memory of every GPU."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

import torch

from dstransformer.config import compose
from dstransformer.distributed.world import World
from dstransformer.errors import ConfigError, DataError
from dstransformer.model import open_bundle
from dstransformer.model.ops import gpu_kernels_name
from dstransformer.training.estimate import setup_peak_bytes
from dstransformer.training.setup import GIB, Setup, iter_stored

#: Share of a GPU's memory that the predicted peak may take. The rest is for the error of the prediction, which is at
#: most 10%, and for fragmentation.
SHARE = 0.9

#: Micro-batches of an update at least, on GPUs whose memory is not predicted: the paper's eight GPUs computed one each.
UNPREDICTED = 8

#: Bytes of it that CUDA's context, cuBLAS and NCCL take before that.
CONTEXT_BYTES = GIB


def settle_micro_batches(setup: Setup, resume: str, world: World) -> Setup:
    """Give ``auto`` its number, the same on every rank. Collective if it is ``auto``.

    Args:
        setup: The experiment.
        resume: See :class:`dstransformer.training.setup.TrainRequest`.
        world: The process group.

    Raises:
        ConfigError: No number of micro-batches fits a GPU.
    """
    if setup.config.batch.micro_batches != "auto":
        return setup
    stored = world.compute_on_rank0(lambda: find_stored_micro_batches(setup, resume))
    usable = [size for size in world.gather(usable_bytes(world.device)) if size is not None]
    with world.collective_errors():
        return choose_micro_batches(setup, stored, min(usable, default=None))


def choose_micro_batches(setup: Setup, stored: int | None, usable: int | None) -> Setup:
    """Give ``auto`` its number; another setup stays as it is.

    A run that resumes keeps the number of its checkpoint, and so its updates, if the number of processes divides it and
    it fits. Where memory is not predicted, each process of a CPU computes one micro-batch, and GPUs compute at least
    :data:`UNPREDICTED` together.

    Args:
        setup: The experiment.
        stored: The micro-batches of the checkpoint to resume from; None for a new run.
        usable: Bytes that an update may take on the smallest GPU, 0 if its memory is not predicted; None on CPUs.

    Raises:
        ConfigError: No number fits.
    """
    if setup.config.batch.micro_batches != "auto":
        return setup
    world_size = setup.world_size
    peak = setup_peak_bytes(setup, world_size)
    if not usable or peak is None:
        if stored is not None and stored % world_size == 0:
            return _settle(setup, stored, "as its checkpoint has")
        each = 1 if usable is None else -(-UNPREDICTED // world_size)
        return _settle(setup, each * world_size, f"{each} for each process, as no memory is predicted here (auto)")

    def measure(number: int) -> int:
        return setup_peak_bytes(setup, number) or 0

    if stored is not None and stored % world_size == 0 and measure(stored) <= usable:
        return _settle(setup, stored, "as its checkpoint has")
    most = max_micro_batches(setup)
    number = fewest_micro_batches(measure, usable, world_size, most)
    if number is None:
        again = "" if setup.config.training.activation_checkpointing else "set training.activation_checkpointing=true, "
        raise ConfigError(
            f"batch.micro_batches = auto: no number fits the GPUs. With {most}, the most for {world_size} "
            f"process{'' if world_size == 1 else 'es'}, an update takes {_gib(measure(most))} on each by prediction, "
            f"and {_gib(usable)} are usable: choose a higher ZeRO stage or more processes, {again}lower "
            "batch.src_tokens and batch.tgt_tokens, or give a number with --set batch.micro_batches=N to try"
        )
    found = f"which take {_gib(measure(number))} of the {_gib(usable)} that are usable on each GPU by prediction (auto)"
    return _settle(setup, number, found)


def fewest_micro_batches(peak: Callable[[int], int], usable: int, world_size: int, most: int) -> int | None:
    """The smallest multiple of the number of processes whose peak memory fits; None if none up to ``most`` does.

    Args:
        peak: Predicted bytes of an update of so many micro-batches on each GPU.
        usable: Bytes that it may take.
        world_size: Number of processes.
        most: The largest number to consider.
    """
    return next((number for number in range(world_size, most + 1, world_size) if peak(number) <= usable), None)


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


def usable_bytes(device: torch.device) -> int | None:
    """Bytes that the tensors of an update may take on a GPU, 0 if its memory is not predicted; None for a CPU."""
    if device.type != "cuda":
        return None
    if torch.cuda.get_device_capability(device) < (8, 0) or gpu_kernels_name(device) == "none":
        return 0
    return usable_of(torch.cuda.get_device_properties(device).total_memory)


def usable_of(memory: int) -> int:
    """Bytes that the tensors of an update may take on a GPU with so many bytes of memory."""
    return max(1, round(SHARE * memory) - CONTEXT_BYTES)


def find_stored_micro_batches(setup: Setup, resume: str) -> int | None:
    """The micro-batches of the checkpoint that a run with ``auto`` resumes from; None for a new run."""
    if setup.config.batch.micro_batches != "auto":
        return None
    for checkpoint in iter_stored(setup, resume):
        with suppress(ConfigError, DataError):
            return open_bundle(checkpoint.bundle).training_config().batch.micro_batch_count
    return None


def _settle(setup: Setup, number: int, reason: str) -> Setup:
    config = setup.config.with_micro_batches(number)
    ds_config = compose(config, setup.world_size)
    return replace(setup, config=config, ds_config=ds_config, micro_batches_from=reason)


def _gib(size: int) -> str:
    return f"{size / GIB:,.1f} GiB"
