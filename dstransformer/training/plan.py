"""The plan of a run: what rank 0 decides for all ranks from the experiment and the facts of their machines.

``auto_precision`` is bf16 where every device has its instructions, else fp32. ``batch.micro_batches: auto`` begins with
one for each process, from which :mod:`dstransformer.training.trial` goes on. A run that resumes keeps what its
checkpoint has.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

from dstransformer.config import AUTO_PRECISION, Config, Precision
from dstransformer.data.windows import SUGGESTED_WINDOW, plan_memory
from dstransformer.distributed.hardware import share_cores
from dstransformer.distributed.supervision.rank_log import RankProcess
from dstransformer.distributed.supervision.session import Session
from dstransformer.errors import ConfigError
from dstransformer.io.products import remove_probe
from dstransformer.model import parameter_count
from dstransformer.training.checkpoints.mirror import fetch_resumed
from dstransformer.training.checkpoints.resume import ResumePoint, check_resumed, find_resumed
from dstransformer.training.experiment import Experiment
from dstransformer.training.facts import ALL, Facts, check_machine, collect_facts
from dstransformer.training.pretrained import check_pretrained, open_pretrained

GIB = 2**30

MicroBatchesFrom = Literal["checkpoint", "trial"]


@dataclass(frozen=True)
class Plan:
    """How a run computes its experiment.

    Attributes:
        config: The configuration, with the precision, and the number of micro-batches that training or a trial begins
            with.
        precision_from: Why ``auto_precision`` became the precision it is, in words; None if a precision was given.
        micro_batches_from: What gives ``batch.micro_batches: auto`` its number: the checkpoint that the run resumes
            from, or a trial; None if it was given.
        threads: The number of threads of each rank.
        hardware: What of the hardware can change the last bits of a result, of all ranks together.
        warnings: What to know about the choices and the scores.
        resumed: The checkpoint that the run resumes from; None for a new run.
    """

    config: Config
    precision_from: str | None = None
    micro_batches_from: MicroBatchesFrom | None = None
    threads: Sequence[int] = ()
    hardware: Mapping[str, str] = field(default_factory=dict)
    warnings: Sequence[str] = ()
    resumed: ResumePoint | None = None


def agree_on_plan(experiment: Experiment, session: Session) -> Plan:
    """Check this machine, make the plan on rank 0, record the start of the run, and send the plan to all. Collective.

    Args:
        experiment: The experiment. Rank 0 holds its run folder.
        session: The process group and its safeguards.

    Raises:
        UserError: A check failed on any rank; raised on all of them.
        StorageError: The run folder cannot be written.
    """
    world = session.world

    def collect() -> Facts:
        check_machine(experiment, is_first=world.local_rank == 0)
        return collect_facts(experiment, world.device)

    return world.decide_on_rank0(collect, partial(_plan_and_record, experiment, session))


def _plan_and_record(experiment: Experiment, session: Session, facts: Sequence[Facts]) -> Plan:
    remove_probe(experiment.run)  # the ranks have read it
    resume = fetch_resumed(experiment.request.resume, experiment.config.checkpoint, experiment.checkpoints)
    plan = plan_run(experiment, facts, resume)
    experiment.with_config(plan.config).write()
    session.record_start(experiment.run, [RankProcess(host=fact.host, process=fact.process) for fact in facts])
    return plan


def plan_run(experiment: Experiment, facts: Sequence[Facts], resume: str) -> Plan:
    """Find the checkpoint to resume from, decide, and check that the run can go on from there.

    Args:
        experiment: The experiment.
        facts: The facts of all ranks.
        resume: See :meth:`CheckpointFolder.find`.

    Raises:
        ConfigError: The run cannot begin in its folder, or not resume with its configuration; the bundle of ``--init``
            is not what it began from; or see :func:`decide`.
        DataError: The checkpoint is damaged, of an earlier format, or was trained on another corpus; or the bundle of
            ``--init`` is needed and cannot be read.
    """
    resumed = find_resumed(resume, experiment.checkpoints, experiment.corpus)
    if (init := experiment.request.init) is not None:
        if resumed is not None:
            check_pretrained(resumed, init, experiment.pretrained)
        elif experiment.pretrained is None:
            open_pretrained(init, experiment.config.model, experiment.corpus.tokenizer)  # raises: it is gone
    plan = decide(experiment, facts, resumed)
    if resumed is not None:
        check_resumed(resumed, plan.config, free=("batch.micro_batches",) if plan.micro_batches_from else ())
    return plan


def decide(experiment: Experiment, facts: Sequence[Facts], resumed: ResumePoint | None = None) -> Plan:
    """Decide how the machines run an experiment: a pure function.

    Args:
        experiment: The experiment.
        facts: The facts of all ranks.
        resumed: The checkpoint to resume from; None for a new run.

    Raises:
        ConfigError: A node sees another run folder, or has another configuration, version or corpus; a device cannot
            compute the attention backend; or the memory of a node is too small.
    """
    _check_nodes_agree(experiment, facts, is_new=resumed is None)
    config, precision_from = experiment.config, None
    micro_batches_from: MicroBatchesFrom | None = None
    if AUTO_PRECISION in config.deepspeed:
        stored = None if resumed is None else resumed.checkpoint.state.precision
        precision, precision_from = choose_precision(stored, ALL.intersection(*(fact.native for fact in facts)))
        config = with_precision(config, precision)
    if config.batch.micro_batches == "auto":
        stored_number = 0 if resumed is None else resumed.config.batch.micro_batch_count
        is_kept = stored_number > 0 and stored_number % experiment.world_size == 0  # then the updates stay
        config = config.with_micro_batches(stored_number if is_kept else experiment.world_size)
        micro_batches_from = "checkpoint" if is_kept else "trial"
    experiment = experiment.with_config(config)
    _check_backend(experiment.precision, facts)
    for host, ranks in _by_host(facts).items():
        if (memory := facts[ranks[0]].memory) is not None:
            check_memory(experiment, len(ranks), memory, host)
    threads = share_threads(facts)
    return Plan(
        config,
        precision_from,
        micro_batches_from,
        threads,
        combine_hardware(facts, threads),
        [*emulation_warnings(experiment, facts), *experiment.task.notes],
        resumed,
    )


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


def share_threads(facts: Sequence[Facts]) -> list[int]:
    """The number of threads of each rank: what ``OMP_NUM_THREADS`` says, else an even share of its cores."""
    on_hosts = {host: [(host, facts[rank].cores) for rank in ranks] for host, ranks in _by_host(facts).items()}
    return [fact.threads or share_cores((fact.host, fact.cores), on_hosts[fact.host]) for fact in facts]


def combine_hardware(facts: Sequence[Facts], threads: Sequence[int]) -> dict[str, str]:
    """The hardware facts that can change the last bits of a result, of all ranks together."""
    values = defaultdict[str, set[str]](set)
    for fact, number in zip(facts, threads, strict=True):
        values["device"].add(fact.device)
        if fact.computes_on_cpu:
            values["threads"].add(str(number))
        for name, value in fact.kernels.items():
            values[name].add(value)
    return {name: ", ".join(sorted(of_ranks)) for name, of_ranks in values.items()}


def emulation_warnings(experiment: Experiment, facts: Sequence[Facts]) -> list[str]:
    """Say which precision is fast, if a device emulates that of the experiment."""
    precision = experiment.precision
    fast = " ".join("fp32" if name in ALL else name for name in experiment.config.deepspeed)
    slow = next((fact.device for fact in facts if precision not in fact.native), None)
    if slow is None:
        return []
    return [
        f"{slow} has no {precision} instructions: {precision} is emulated, which is slow. `--ds {fast}` trains in "
        f"fp32; with {AUTO_PRECISION} in place of a precision, a new run chooses by the hardware"
    ]


def check_memory(experiment: Experiment, processes: int, available: int, host: str, *, weights: bool = True) -> None:
    """Check that a node's memory holds what each process builds in full: the model's fp32 weights, and a plan.

    Args:
        experiment: The experiment.
        processes: Processes on the node.
        available: Its memory in bytes.
        host: Its name.
        weights: Whether the model is built.

    Raises:
        ConfigError: The memory is too small.
    """
    config, tokenizer = experiment.config, experiment.corpus.tokenizer
    pairs = experiment.corpus.manifest.splits["train"].pairs
    parameters = parameter_count(config.model, tokenizer.vocab_size, tokenizer.src.vocab_size) if weights else 0
    at_once, planning = plan_memory(pairs, experiment.mixture, config.training.window_pairs)
    if (4 * parameters + planning) * processes <= available:
        return
    model_gib, plan_gib = 4 * parameters * processes / GIB, planning * processes / GIB
    model = f"the model has {parameters:,} parameters: building it takes {model_gib:,.1f} GiB (4 bytes per parameter)"
    per_pair = f"{planning / at_once:.0f} bytes per pair"
    plan = f"planning {at_once:,} pairs at once takes {plan_gib:,.1f} GiB ({per_pair})"
    where = f"in {processes} process{'' if processes == 1 else 'es'} on {host}, which has {available / GIB:,.1f} GiB"
    if planning > 4 * parameters:
        also = f"; {model}" if parameters else ""
        raise ConfigError(f"{plan} {where}{also}: set training.window_pairs={SUGGESTED_WINDOW}")
    raise ConfigError(
        f"{model} {where}; {plan}: lower model.num_layers (or encoder_layers and decoder_layers), "
        "model.d_model or model.d_ff, or start fewer processes"
    )


def _by_host(facts: Sequence[Facts]) -> dict[str, list[int]]:
    """The ranks of each machine."""
    ranks = defaultdict[str, list[int]](list)
    for rank, fact in enumerate(facts):
        ranks[fact.host].append(rank)
    return ranks


def _check_nodes_agree(experiment: Experiment, facts: Sequence[Facts], *, is_new: bool) -> None:
    """Check that all ranks see one run folder and have the same experiment, and a new run one bundle to start from."""
    first = facts[0]

    def differing(read: Callable[[Facts], object]) -> str:
        return ", ".join(sorted({fact.host for fact in facts if read(fact) != read(first)}))

    if hosts := differing(lambda fact: fact.probe):
        raise ConfigError(
            f"{hosts} cannot see what rank 0 on {first.host} writes into {experiment.run}: "
            "put --run on a file system that all nodes share"
        )
    if hosts := differing(lambda fact: fact.settings):
        raise ConfigError(
            f"{hosts} has a different preset, DeepSpeed JSON or dstransformer version than {first.host}: "
            "use the same on all nodes"
        )
    if hosts := differing(lambda fact: fact.corpus):
        raise ConfigError(
            f"{experiment.corpus.path} on {hosts} is not the same corpus as on {first.host}: "
            "copy one of them to every node"
        )
    if is_new and (hosts := differing(lambda fact: fact.init)):
        raise ConfigError(
            f"--init {experiment.request.init} on {hosts} is not the same bundle as on {first.host}, or is missing: "
            "copy it to every node, to the same path"
        )


def _check_backend(precision: Precision, facts: Sequence[Facts]) -> None:
    """Check that every device can compute the attention backend in this precision."""
    for fact in facts:
        if (reason := fact.refused.get(precision)) is not None:
            raise ConfigError(f"{fact.device} of {fact.host}: {reason}")
