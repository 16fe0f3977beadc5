"""Resolves and checks an experiment from the options of the command line."""

from __future__ import annotations

import json
import logging
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from dstransformer.config import (
    Config,
    Precision,
    compose,
    dump_config,
    load_config,
    precision_of,
    width_warning,
    zero_stage,
)
from dstransformer.data import Corpus
from dstransformer.data.mixture import Mixture, build_mixture
from dstransformer.data.plan import build_budget
from dstransformer.data.windows import SUGGESTED_WINDOW, check_split, plan_memory
from dstransformer.distributed.launcher import Processes, check_environment, check_launch, read_processes
from dstransformer.errors import ConfigError, DataError, counted, shown
from dstransformer.io.files import replace_file, storage_errors
from dstransformer.io.products import check_run_folder
from dstransformer.io.remote import is_address
from dstransformer.io.requirements import check_installed
from dstransformer.tracking.mlflow.location import resolve_tracking_uri
from dstransformer.training.checkpoints.checkpoint_folder import CheckpointFolder
from dstransformer.training.checkpoints.format import TrainState
from dstransformer.training.checkpoints.resume import Resumed, find_resumed
from dstransformer.training.pretrained import Pretrained, check_pretrained, open_pretrained

if TYPE_CHECKING:
    from dstransformer.distributed.world import World
    from dstransformer.evaluation.task import Task

GIB = 2**30

_CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")

#: Most updates of a trace.
MAX_PROFILED = 100

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class TrainRequest:
    """The options of ``dst train``.

    Attributes:
        preset: Name or path of a preset.
        corpus: The corpus folder.
        run: The run folder.
        overrides: ``section.key=value`` strings.
        fragments: DeepSpeed fragments. If not empty, they replace the preset's.
        resume: ``auto`` resumes from the run's latest checkpoint if there is one; ``never`` refuses a run that has
            checkpoints; a path resumes from that checkpoint; an address (``s3://…``) from the newest one there.
        name: The run's name in MLflow; None builds one from preset, folder and date.
        tags: The user's tags in MLflow.
        register: The registered model in MLflow of which the final bundle becomes a version; None for none.
        init: A bundle whose weights training starts from; None for random weights.
        profile: Updates of which PyTorch's profiler writes a trace; 0 for none.
    """

    preset: str
    corpus: Path
    run: Path
    overrides: Sequence[str] = ()
    fragments: Sequence[str] = ()
    resume: str = "auto"
    name: str | None = None
    tags: Mapping[str, str] = field(default_factory=dict)
    register: str | None = None
    init: Path | None = None
    profile: int = 0

    def __post_init__(self) -> None:
        """Take the names of folders for paths, as a notebook gives them, and a path of ``resume`` for its name.

        Raises:
            ConfigError: ``tags`` is not a dictionary, or ``profile`` out of bounds.
        """
        if not 0 <= self.profile <= MAX_PROFILED:
            raise ConfigError(
                f"profile is {self.profile}: trace 1 to {MAX_PROFILED} updates (a trace takes MBs for each)"
            )
        if not isinstance(self.tags, Mapping):
            raise ConfigError(f"tags is {shown(self.tags)}: give a dictionary, {{'name': 'value'}}")
        paths = {name: Path(value) for name in ("corpus", "run", "init") if (value := getattr(self, name)) is not None}
        for name, value in {**paths, "preset": os.fspath(self.preset), "resume": os.fspath(self.resume)}.items():
            object.__setattr__(self, name, value)


@dataclass(frozen=True)
class Setup:
    """A resolved and checked experiment.

    Attributes:
        config: The experiment.
        ds_config: The complete DeepSpeed configuration, from ``compose``.
        corpus: The corpus, with the splits ``train``, ``validation`` and optionally ``test``.
        run: The run folder.
        world_size: Number of processes.
        pretrained: The bundle that training starts from; None for random weights, or if the run resumes and it is gone.
        micro_batches_from: What gives ``batch.micro_batches: auto`` its number: the checkpoint that the run resumes
            from, or a trial that begins with one for each process; None if it was given.
        precision_from: Why ``auto_precision`` became the precision it is, in words; None if a precision was given.
    """

    config: Config
    ds_config: Mapping[str, Any]
    corpus: Corpus
    run: Path
    world_size: int
    pretrained: Pretrained | None = None
    micro_batches_from: Literal["checkpoint", "trial"] | None = None
    precision_from: str | None = None

    @property
    def precision(self) -> Precision:
        """The precision of the forward and backward pass."""
        return precision_of(self.ds_config)

    @property
    def zero_stage(self) -> int:
        """The ZeRO stage."""
        return zero_stage(self.ds_config)

    @property
    def checkpoints(self) -> CheckpointFolder:
        """The folder of the run's checkpoints."""
        kept = self.config.checkpoint
        return CheckpointFolder(self.run / "checkpoints", kept.keep_last, kept.keep_best)

    @cached_property
    def task(self) -> Task:
        """What the model is trained for, and how it is scored.

        Raises:
            ConfigError: A tokenizer of BLEU is not installed.
        """
        from dstransformer.evaluation.task import build_task

        return build_task(self.corpus.manifest, self.config.validation)

    @property
    def mixture(self) -> Mixture | None:
        """Which pairs each epoch holds; None if every pair once.

        Raises:
            ConfigError: ``training.mixture`` does not fit the corpus.
        """
        return build_mixture(self.corpus.manifest.parts, self.config.training.mixture)

    def with_config(self, config: Config, **changes: Any) -> Setup:
        """A copy with another configuration of the experiment, and with other fields that change."""
        return replace(self, config=config, ds_config=compose(config, self.world_size), **changes)

    def write(self) -> None:
        """Write the resolved configuration into the run folder.

        Raises:
            StorageError: It cannot be written.
        """
        with storage_errors(self.run):
            replace_file(self.run / "config.yaml", dump_config(self.config.without_secrets()))
            replace_file(self.run / "ds_config.json", json.dumps(self.ds_config, indent=2) + "\n")

    @property
    def free_keys(self) -> tuple[str, ...]:
        """The fixed values that may differ from those of the checkpoint that the run resumes from."""
        return () if self.micro_batches_from is None else ("batch.micro_batches",)

    @property
    def initial_state(self) -> TrainState:
        """The training state before the first update."""
        return TrainState.fresh(self.ds_config, self.world_size, self.corpus.manifest)


def resolve_on_all(request: TrainRequest) -> Setup:
    """:func:`resolve_setup` for a training; an error ends all ranks. Only to tell other ranks it imports PyTorch."""
    processes = check_launch(os.environ)
    try:
        setup = resolve_setup(request, processes)
        mirror = ["fsspec"] if setup.config.checkpoint.mirror is not None else []
        mlflow = ["mlflow"] if setup.config.tracking.enabled else []
        check_installed("deepspeed", *mlflow, *mirror, *setup.config.tracking.also)
    except Exception as error:
        if processes.world_size == 1:
            raise
        from dstransformer.distributed.world import raise_on_all

        raise_on_all(error, processes)
    return setup


def resolve_alone(request: TrainRequest) -> Setup:
    """:func:`resolve_setup` for a dry run: in one process, which plans for those of the environment."""
    check_environment(os.environ)
    return resolve_setup(request, read_processes(os.environ, require_rank=False))


def resolve_setup(request: TrainRequest, processes: Processes) -> Setup:
    """Resolve a request and run all checks that need neither the shards nor other processes, nor PyTorch.

    Raises:
        UserError: Something in the request, its files or the environment is wrong.
    """
    if not isinstance(request, TrainRequest):
        raise ConfigError(f"{shown(request)} is not a request: give TrainRequest(preset=…, corpus=…, run=…)")
    config = load_config(request.preset, request.overrides, request.fragments)
    ds_config = compose(config, processes.world_size)
    if config.tracking.enabled:
        resolve_tracking_uri(config.tracking.uri, request.run)
    elif request.register is not None:
        raise ConfigError(f"--register {request.register} needs MLflow, but tracking.enabled is false: set it to true")
    if processes.rank == 0 and (warning := width_warning(config, request.preset, request.overrides)) is not None:
        logger.warning(warning)
    if processes.rank == 0:  # on other nodes a network file system may lag behind
        check_run_folder(request.run)
    corpus = Corpus.open(request.corpus, verify=False)
    build_mixture(corpus.manifest.parts, config.training.mixture)
    if config.model.tie_embeddings == "all" and not corpus.tokenizer.shares_ids:
        raise ConfigError(
            f"model.tie_embeddings = all, but {corpus.path} has a vocabulary for each language, which cannot share a "
            "matrix: set model.tie_embeddings=target (the decoder's embedding and the softmax share theirs) or none"
        )
    setup = Setup(config, ds_config, corpus, request.run, processes.world_size)
    # Elsewhere checkpoints may still be fetched, or not be seen yet.
    sees_checkpoints = (
        processes.rank == 0 and not is_address(request.resume) and request.resume != config.checkpoint.mirror
    )
    if sees_checkpoints:
        setup.checkpoints.find(request.resume, verify=False)
    is_new = sees_checkpoints and request.resume == "auto" and not setup.checkpoints.folders()
    if request.init is None or not (is_new or request.resume == "never" or request.init.exists()):
        return setup  # the bundle of --init may be gone: a run that resumes does not need it
    return replace(setup, pretrained=open_pretrained(request.init, config.model, corpus.tokenizer))


def find_resume_point(request: TrainRequest, setup: Setup) -> Resumed | None:
    """Find and fully verify the checkpoint to resume from; None for a new run.

    Raises:
        ConfigError: The run cannot begin in its folder, or the bundle of ``--init`` is not what the run began from.
        DataError: The checkpoint is damaged, of an earlier format, or was trained on another corpus; or the bundle of
            ``--init`` is needed and cannot be read.
    """
    found = find_resumed(request.resume, setup.checkpoints, setup.corpus)
    if request.init is not None:
        if found is not None:
            check_pretrained(found, request.init, setup.pretrained)
        elif setup.pretrained is None:  # it is gone, but needed
            open_pretrained(request.init, setup.config.model, setup.corpus.tokenizer)
    return found


def check_corpus(setup: Setup, *, verify: bool) -> None:
    """Check that the experiment can train on its corpus.

    Args:
        setup: The experiment.
        verify: Also compare every shard with its hash.

    Raises:
        DataError: A split is missing, a shard is damaged, or a sentence pair does not fit into an update.
        ConfigError: A tokenizer of BLEU is not installed, a sentence is longer than the table of learned positions,
            pieces are to be sampled from a tokenizer of the other kind, alignments that the corpus lacks are to guide a
            head, or augmentation or 8-bit weights for another task than translation.
    """
    config, corpus = setup.config, setup.corpus
    _ = setup.task  # can it be scored?
    for split in ("train", "validation"):
        if split not in corpus.splits:
            raise DataError(f"{corpus.path} has no split {split!r}, which training needs: rebuild the corpus with one")
    if verify:
        corpus.verify()
    pairs, parts = corpus.manifest.splits["train"].pairs, config.batch.micro_batches
    if not config.training.mixture and isinstance(parts, int) and pairs < parts:
        raise DataError(
            f"{corpus.path} has {counted(pairs, 'training pair')}, too few for batch.micro_batches = {parts}: build it "
            "from more text, or lower batch.micro_batches"
        )
    check_split(corpus.split("train"), build_budget(config.batch))
    for name, kind, other in (("bpe_dropout", "bpe", "unigram_alpha"), ("unigram_alpha", "unigram", "bpe_dropout")):
        value = getattr(config.training, name)
        for tokenizer in (corpus.tokenizer, corpus.tokenizer.src) if value else ():
            if tokenizer.model_type != kind:
                raise ConfigError(
                    f"training.{name} = {value}, but a tokenizer of {corpus.path} is a {tokenizer.model_type} model, "
                    f"not {kind}: set training.{name}=0 (training.{other} is for such a model), or build the corpus "
                    f"with a {kind} tokenizer"
                )
    if config.loss.guided_alignment and not corpus.split("train").is_aligned:
        raise ConfigError(
            f"loss.guided_alignment = {config.loss.guided_alignment}, but {corpus.path} holds no alignments: build it "
            "with `dst-prep build --alignments FILE` (--source toy: --aligned), or set loss.guided_alignment=0"
        )
    _check_form(config, corpus)
    if config.model.positions == "learned":
        splits = corpus.manifest.splits.values()
        longest = max(max(split.src_lengths.max, split.tgt_lengths.max) for split in splits) + 1
        needed = longest + config.decoding.max_extra_tokens
        if needed > config.model.max_positions:
            raise ConfigError(
                f"model.max_positions = {config.model.max_positions}, but {corpus.path} holds sentences of {longest} "
                f"tokens and translations may be {config.decoding.max_extra_tokens} longer: "
                f"set model.max_positions={needed}"
            )


def _check_form(config: Config, corpus: Corpus) -> None:
    """Refuse what is for translation only."""
    form = corpus.manifest.form
    if form.model and config.training.augment:
        raise ConfigError(
            f"training.augment is for translation, but {corpus.path} holds {form.content}, which a change of the text "
            "would break: set training.augment=[]"
        )
    if form.model and config.training.int8_weights:
        raise ConfigError(
            f"training.int8_weights is for `dst export ct2`, but {corpus.path} holds {form.content}, and {form.model} "
            "cannot be exported: set training.int8_weights=false"
        )


def check_setup(setup: Setup, world: World) -> None:
    """Check corpus, attention backend and memory on every rank. Collective.

    Raises:
        UserError: A check failed on any rank; raised on all of them.
    """
    from dstransformer.model import DTYPES
    from dstransformer.model.ops import check_backend

    with world.collective_errors():
        check_corpus(setup, verify=world.local_rank == 0)
        check_backend(
            setup.config.model, setup.config.training.attention_backend, world.device, DTYPES[setup.precision]
        )
    processes = world.gather(platform.node()).count(platform.node())
    with world.collective_errors():
        check_memory(setup, processes, machine_memory())


def check_memory(setup: Setup, processes: int, available: int, *, weights: bool = True) -> None:
    """Check that a node's memory holds what each process builds in full: the model's fp32 weights, and a plan.

    Args:
        setup: The experiment.
        processes: Processes on the node.
        available: Its memory in bytes.
        weights: Whether the model is built.

    Raises:
        ConfigError: The memory is too small.
    """
    from dstransformer.model import parameter_count

    tokenizer, pairs = setup.corpus.tokenizer, setup.corpus.manifest.splits["train"].pairs
    parameters = parameter_count(setup.config.model, tokenizer.vocab_size, tokenizer.src.vocab_size) if weights else 0
    at_once, planning = plan_memory(pairs, setup.mixture, setup.config.training.window_pairs)
    if (4 * parameters + planning) * processes <= available:
        return
    model_gib, plan_gib = 4 * parameters * processes / GIB, planning * processes / GIB
    model = f"the model has {parameters:,} parameters: building it takes {model_gib:,.1f} GiB (4 bytes per parameter)"
    per_pair = f"{planning / at_once:.0f} bytes per pair"
    plan = f"planning {at_once:,} pairs at once takes {plan_gib:,.1f} GiB ({per_pair})"
    where = f"in {processes} process{'' if processes == 1 else 'es'} on {platform.node()}"
    where += f", which has {available / GIB:,.1f} GiB"
    if planning > 4 * parameters:
        also = f"; {model}" if parameters else ""
        raise ConfigError(f"{plan} {where}{also}: set training.window_pairs={SUGGESTED_WINDOW}")
    raise ConfigError(
        f"{model} {where}; {plan}: lower model.num_layers (or encoder_layers and decoder_layers), "
        "model.d_model or model.d_ff, or start fewer processes"
    )


def machine_memory() -> int:
    """The memory of this machine, or the limit of its container, in bytes."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        return min(physical, int(_CGROUP_LIMIT.read_text()))
    except (OSError, ValueError):  # not in a container, or no limit ("max")
        return physical
