"""``batch.micro_batches: auto``: into how few parts an update can be cut, found by trial before the first update.

All ranks compute the largest update of the plan forward and backward, without a step. Where memory runs out on any of
them, all try again with one part more for each process, from eight on with an eighth more. An attempt calls no
collective, so a rank that runs out leaves no other one waiting; the ranks agree after each.
"""

from __future__ import annotations

import logging
import resource
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch

from dstransformer.data.packing import PackedBatch
from dstransformer.data.plan import deal
from dstransformer.decoding.devices import is_memory_error
from dstransformer.distributed.supervision.session import Session
from dstransformer.errors import ConfigError
from dstransformer.training.engine import Engine
from dstransformer.training.experiment import Experiment
from dstransformer.training.update_stream import LargestUpdate

logger = logging.getLogger(__name__)

#: Share of the memory that an attempt may take. The rest is for what it does not hold: the temporary tensors of the
#: optimizer's step, the model of validation, and what a slightly larger update takes.
SHARE = 0.9


def try_micro_batches(experiment: Experiment, engine: Engine, session: Session) -> Experiment:
    """Find the number of micro-batches, and let the engine compute so many. Collective.

    Args:
        experiment: The experiment, with the number to begin with.
        engine: The engine before its first update; nothing of the trial stays in it.
        session: The process group and the monitor.

    Returns:
        The experiment with the number.

    Raises:
        DataError: An update has fewer pairs than processes.
        ConfigError: Memory runs out even where a micro-batch holds little more than the longest sentence pair.
    """
    world, processes = session.world, experiment.world_size
    with world.collective_errors():
        update = LargestUpdate(experiment)
    most = min(max_micro_batches(experiment), update.fewest_pairs // processes * processes)
    for number in _attempts(processes, most):
        session.enter(f"a trial of {number} micro-batches")
        with world.collective_errors():
            batches = update.read(number, deal(number, world.rank, processes))
        (ran_out,) = world.any(_runs_out(engine, batches, world.device))
        if world.device.type == "cuda":
            torch.cuda.empty_cache()
        if not ran_out:
            engine.set_micro_batches(number)
            experiment = experiment.with_config(experiment.config.with_micro_batches(number))
            world.compute_on_rank0(experiment.write)
            return experiment
        if world.is_rank0:
            logger.warning("memory ran out with batch.micro_batches = %d", number)
    with world.collective_errors():
        raise ConfigError(
            f"batch.micro_batches = auto: memory runs out with {most} too, where a micro-batch holds little more than "
            "the longest sentence pair, or the smallest update one pair in each: set "
            "training.activation_checkpointing=true, build the corpus with a smaller --max-tokens, or choose a smaller "
            "model; or give a number, which is not tried"
        )


def _attempts(processes: int, most: int) -> Iterator[int]:
    """The numbers to try. No bisection: what an attempt leaves in a CPU's memory can make a smaller one fail later."""
    parts, last = 1, most // processes  # of each process
    while parts < last:
        yield parts * processes
        parts += max(1, parts // 8)
    yield most


def max_micro_batches(experiment: Experiment) -> int:
    """The largest multiple of the number of processes at which a micro-batch has room for the longest sentence pair.

    With more, memory would not shrink. With ``batch.stages``, the smallest updates count. It is at least that number.
    """
    batch, train = experiment.config.batch, experiment.corpus.manifest.splits["train"]
    longest = ((batch.src_tokens, train.src_lengths.max), (batch.tgt_tokens, train.tgt_lengths.max))
    most = min(int(batch.smallest_share * tokens) // (length + 1) for tokens, length in longest)  # with its end
    return max(1, most // experiment.world_size) * experiment.world_size


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
