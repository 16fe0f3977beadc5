"""From the options of ``dst train`` to an experiment that can be trained: what a run does first.

Every process does it alone. What a user can get wrong is refused here, before PyTorch is imported, which takes seconds.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
from dstransformer.data.windows import check_split
from dstransformer.distributed.launcher import Processes, check_environment, read_processes
from dstransformer.errors import ConfigError, DataError, counted, shown
from dstransformer.io.files import replace_file, storage_errors
from dstransformer.io.products import check_run_folder, hold_run_folder
from dstransformer.io.remote import is_address
from dstransformer.io.requirements import check_installed
from dstransformer.tracking.mlflow.location import resolve_tracking_uri
from dstransformer.training.checkpoints.checkpoint_folder import CheckpointFolder
from dstransformer.training.checkpoints.format import TrainState
from dstransformer.training.pretrained import Pretrained, open_pretrained

if TYPE_CHECKING:
    from dstransformer.evaluation.task import Task

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
class Experiment:
    """What a user asked for, resolved and checked.

    Attributes:
        request: The options.
        config: The configuration. Until the plan of the run is made, precision and micro-batches may be automatic.
        ds_config: The complete DeepSpeed configuration, from ``compose``.
        corpus: The corpus, with the splits ``train``, ``validation`` and optionally ``test``.
        mixture: Which pairs each epoch holds; None if every pair once.
        world_size: Number of processes.
        pretrained: The bundle that training starts from; None for random weights, or if the run resumes and it is gone.
    """

    request: TrainRequest
    config: Config
    ds_config: Mapping[str, Any]
    corpus: Corpus
    mixture: Mixture | None
    world_size: int
    pretrained: Pretrained | None = None

    @classmethod
    def build(cls, request: TrainRequest, config: Config, corpus: Corpus, world_size: int) -> Experiment:
        """An experiment of these parts, without the checks of :func:`resolve`.

        Raises:
            ConfigError: DeepSpeed's configuration cannot be composed, or ``training.mixture`` does not fit the corpus.
        """
        mixture = build_mixture(corpus.manifest.parts, config.training.mixture)
        return cls(request, config, compose(config, world_size), corpus, mixture, world_size)

    @property
    def run(self) -> Path:
        """The run folder."""
        return self.request.run

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
        settings = self.config.checkpoint
        return CheckpointFolder(self.run / "checkpoints", settings.keep_last, settings.keep_best)

    @cached_property
    def task(self) -> Task:
        """What the model is trained for, and how it is scored. Imports PyTorch.

        Raises:
            ConfigError: A tokenizer of BLEU is not installed.
        """
        from dstransformer.evaluation.task import build_task

        return build_task(self.corpus.manifest, self.config.validation)

    @property
    def initial_state(self) -> TrainState:
        """The training state before the first update."""
        return TrainState.fresh(self.ds_config, self.world_size, self.corpus.manifest)

    def with_config(self, config: Config) -> Experiment:
        """A copy with another configuration."""
        return replace(self, config=config, ds_config=compose(config, self.world_size))

    def write(self) -> None:
        """Write the resolved configuration into the run folder.

        Raises:
            StorageError: It cannot be written.
        """
        with storage_errors(self.run):
            replace_file(self.run / "config.yaml", dump_config(self.config.without_secrets()))
            replace_file(self.run / "ds_config.json", json.dumps(self.ds_config, indent=2) + "\n")


@contextmanager
def open_experiment(request: TrainRequest, processes: Processes) -> Iterator[Experiment]:
    """Resolve a request for training and, on rank 0, hold the run folder within the block. An error ends all ranks.

    Args:
        request: The options.
        processes: Rank of this process, and the number of processes.

    Raises:
        UserError: Something in the request, its files or the environment is wrong, or the run folder is in use.
        StorageError: The run folder cannot be written.
    """
    with ExitStack() as stack:
        try:
            experiment = resolve(request, processes)
            config = experiment.config
            mirror = ["fsspec"] if config.checkpoint.mirror is not None else []
            mlflow = ["mlflow"] if config.tracking.enabled else []
            check_installed("deepspeed", *mlflow, *mirror, *config.tracking.also)
            if processes.rank == 0:
                stack.enter_context(hold_run_folder(experiment.run))
        except Exception as error:
            if processes.world_size == 1:
                raise
            from dstransformer.distributed.world import raise_on_all  # imports PyTorch, only to tell the other ranks

            raise_on_all(error, processes)
        yield experiment


def resolve_alone(request: TrainRequest) -> Experiment:
    """:func:`resolve` for a dry run: in one process, for as many as the environment says.

    Raises:
        UserError: Something in the request, its files or the environment is wrong.
    """
    check_environment(os.environ)
    return resolve(request, read_processes(os.environ, require_rank=False))


def resolve(request: TrainRequest, processes: Processes) -> Experiment:
    """Resolve a request and run all checks that need neither a look at every shard, nor other processes, nor PyTorch.

    Raises:
        UserError: Something in the request or its files is wrong.
    """
    if not isinstance(request, TrainRequest):
        raise ConfigError(f"{shown(request)} is not a request: give TrainRequest(preset=…, corpus=…, run=…)")
    config = load_config(request.preset, request.overrides, request.fragments)
    if config.tracking.enabled:
        resolve_tracking_uri(config.tracking.uri, request.run)
    elif request.register is not None:
        raise ConfigError(f"--register {request.register} needs MLflow, but tracking.enabled is false: set it to true")
    if processes.rank == 0:  # on other nodes a network file system may lag behind
        if (warning := width_warning(config, request.preset, request.overrides)) is not None:
            logger.warning(warning)
        check_run_folder(request.run)
    corpus = Corpus.open(request.corpus, verify=False)  # its shards are read after the ranks have joined
    experiment = Experiment.build(request, config, corpus, processes.world_size)
    check_corpus(config, corpus)
    # Others may see checkpoints late on a network file system; `decide` refuses a bundle that only some have.
    may_resume = _may_resume(experiment) if processes.rank == 0 else request.resume != "never"
    if request.init is None or (may_resume and not request.init.exists()):
        return experiment  # a run that resumes does not need the bundle of --init
    return replace(experiment, pretrained=open_pretrained(request.init, config.model, corpus.tokenizer))


def _may_resume(experiment: Experiment) -> bool:
    """Check ``--resume``, as far as that takes no time; whether there may be a checkpoint to resume from."""
    resume, checkpoints = experiment.request.resume, experiment.checkpoints
    if is_address(resume) or resume == experiment.config.checkpoint.mirror:
        return True  # what lies there is fetched later
    checkpoints.find(resume, verify=False)  # raises if it cannot be followed
    return resume != "never" and (resume != "auto" or bool(checkpoints.folders()))


def check_corpus(config: Config, corpus: Corpus) -> None:
    """Check that a configuration can be trained on a corpus.

    Raises:
        DataError: A split is missing, or a sentence pair does not fit into an update.
        ConfigError: A sentence is longer than the table of learned positions, a vocabulary for each language is to
            share a matrix, pieces are to be sampled from a tokenizer of the other kind, alignments that the corpus
            lacks are to guide a head, or augmentation or 8-bit weights are for another task than translation.
    """
    if config.model.tie_embeddings == "all" and not corpus.tokenizer.shares_ids:
        raise ConfigError(
            f"model.tie_embeddings = all, but {corpus.path} has a vocabulary for each language, which cannot share a "
            "matrix: set model.tie_embeddings=target (the decoder's embedding and the softmax share theirs) or none"
        )
    for split in ("train", "validation"):
        if split not in corpus.splits:
            raise DataError(f"{corpus.path} has no split {split!r}, which training needs: rebuild the corpus with one")
    pairs, parts = corpus.manifest.splits["train"].pairs, config.batch.micro_batches
    if not config.training.mixture and isinstance(parts, int) and pairs < parts:
        raise DataError(
            f"{corpus.path} has {counted(pairs, 'training pair')}, too few for batch.micro_batches = {parts}: build it "
            "from more text, or lower batch.micro_batches"
        )
    batch = config.with_micro_batches(1).batch if parts == "auto" else config.batch
    check_split(corpus.split("train"), build_budget(batch))
    for name, kind, other in (("bpe_dropout", "bpe", "unigram_alpha"), ("unigram_alpha", "unigram", "bpe_dropout")):
        value = getattr(config.training, name)
        for tokenizer in (corpus.tokenizer, corpus.tokenizer.src) if value else ():
            if tokenizer.model_type != kind:
                raise ConfigError(
                    f"training.{name} = {value}, but a tokenizer of {corpus.path} is a {tokenizer.model_type} model, "
                    f"not {kind}: set training.{name}=0 (training.{other} is for such a model), or build the corpus "
                    f"with a {kind} tokenizer"
                )
    if config.loss.guided_alignment and corpus.manifest.splits["train"].links is None:
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
