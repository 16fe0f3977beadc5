"""``batch.micro_batches: auto``: into how few parts an update can be cut, found by trial before the first update.

All ranks compute the largest update of the plan forward and backward, without a step. Where memory runs out on any of
them, all try again with more parts, until the fewest are found. An attempt calls no collective, so a rank that runs out
leaves no other one waiting; the ranks agree after each.
"""

from __future__ import annotations

import logging
import resource
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import numpy as np
import torch

from dstransformer.data.packing import PackedBatch
from dstransformer.data.plan import Position
from dstransformer.decoding.devices import is_memory_error
from dstransformer.distributed.supervision.session import Session
from dstransformer.distributed.world import World
from dstransformer.errors import ConfigError
from dstransformer.training.engine import Engine
from dstransformer.training.experiment import Experiment
from dstransformer.training.update_stream import build_loader

logger = logging.getLogger(__name__)

#: Share of the memory that an attempt may take. The rest is for what it does not hold: the temporary tensors of the
#: optimizer's step, the model of validation, and what a slightly larger update takes.
SHARE = 0.9


def try_micro_batches(experiment: Experiment, engine: Engine, session: Session) -> Experiment:
    """Find the number of micro-batches, and let the engine compute so many. Collective.

    Args:
        experiment: The experiment, with one micro-batch for each process.
        engine: The engine before its first update; nothing of the trial stays in it.
        session: The process group and the monitor.

    Returns:
        The experiment with the number.

    Raises:
        DataError: An update has fewer pairs than micro-batches.
        ConfigError: Memory runs out even where a micro-batch holds little more than the longest sentence pair.
    """
    world, size = session.world, experiment.world_size
    numbers = range(size, max_micro_batches(experiment) + 1, size)

    def fits(number: int) -> bool:
        session.enter(f"a trial of {number} micro-batches")
        with world.collective_errors():
            batches = largest_update(experiment.with_config(experiment.config.with_micro_batches(number)), world)
        (ran_out,) = world.any(_runs_out(engine, batches, world.device))
        if ran_out and world.is_rank0:
            logger.warning("memory ran out with batch.micro_batches = %d", number)
        return not ran_out

    number = numbers[0]
    if not fits(number):
        if len(numbers) == 1 or not fits(numbers[-1]):  # the last before those between, as it needs the least
            with world.collective_errors():
                raise ConfigError(
                    f"batch.micro_batches = auto: memory runs out with {numbers[-1]} too, with hardly more than the "
                    "longest pair in each: set training.activation_checkpointing=true, build the corpus with a smaller "
                    "--max-tokens, or choose a smaller model; or give a number, which is not tried"
                )
        number = numbers[bisect_left(numbers, True, lo=1, hi=len(numbers) - 1, key=fits)]
    engine.set_micro_batches(number)
    return experiment.with_config(experiment.config.with_micro_batches(number))


def max_micro_batches(experiment: Experiment) -> int:
    """The largest number of micro-batches, the same for each process, that have room for the longest sentence pair.

    With more, memory would not shrink. With ``batch.stages``, the smallest updates count. It is at least one for each.
    """
    batch, train = experiment.config.batch, experiment.corpus.manifest.splits["train"]
    longest = ((batch.src_tokens, train.src_lengths.max), (batch.tgt_tokens, train.tgt_lengths.max))
    most = min(int(batch.smallest_share * tokens) // (length + 1) for tokens, length in longest)  # with its end
    return max(1, most // experiment.world_size) * experiment.world_size


def largest_update(experiment: Experiment, world: World) -> Iterable[PackedBatch]:
    """This rank's micro-batches of the update with the most tokens in the first window of the plan, at full size.

    They are the largest too, but for one sentence pair, as an update is cut into equal parts.
    """
    batch = experiment.config.batch.model_copy(update={"stages": []})
    config = experiment.config.model_copy(update={"batch": batch})
    loader = build_loader(config, experiment.corpus, experiment.mixture, world)
    window = loader.plan(0)
    tokens = (window.src_lengths + window.tgt_lengths)[window.plan.order]
    number = int(np.add.reduceat(tokens, window.plan.bounds[:-1]).argmax())
    return loader.assemble(window, Position(0, number), Position()).batches


def _runs_out(engine: Engine, batches: Iterable[PackedBatch], device: torch.device) -> bool:
    try:
        with _limited_memory(device):
            engine.try_update(batches)
    except (RuntimeError, MemoryError) as error:
        if not is_memory_error(error):
            raise
        return True  # the error goes, and with it the tensors that its frames hold
    return False


@contextmanager
def _limited_memory(device: torch.device) -> Iterator[None]:
    """Within the block, leave a part of a GPU's memory free; on a CPU, of what the limits of this process allow."""
    if device.type != "cuda":
        limits = [resource.getrlimit(kind)[0] for kind in (resource.RLIMIT_AS, resource.RLIMIT_DATA)]
        limit = min((size for size in limits if size != resource.RLIM_INFINITY), default=0)
        _kept_free = torch.empty(int((1 - SHARE) * limit), dtype=torch.uint8)
        yield
        return
    share = torch.cuda.get_per_process_memory_fraction(device)
    torch.cuda.set_per_process_memory_fraction(SHARE * share, device)
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(share, device)
        torch.cuda.empty_cache()
