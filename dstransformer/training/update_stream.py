"""The updates that a trainer takes, and what builds their loader from an experiment."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from dataclasses import astuple, replace

import numpy as np
import torch

from dstransformer.config import Config
from dstransformer.data import Corpus
from dstransformer.data.augment import Augmentation, TextPart
from dstransformer.data.links import LinkReader
from dstransformer.data.loader import PairReader, Update, UpdateLoader
from dstransformer.data.packing import PackedBatch
from dstransformer.data.plan import Budget, LengthSums, Position, build_budget
from dstransformer.data.subwords import BpeDropout, SubwordSampling, UnigramSampling
from dstransformer.data.windows import Planner, build_planner
from dstransformer.distributed.supervision.failure_detection import UPDATE
from dstransformer.distributed.supervision.session import Session
from dstransformer.distributed.world import World
from dstransformer.training.experiment import Experiment


class UpdateStream:
    """The updates of a run, one after the other, from any position on, with the lengths of the sentences of all ranks.

    Each micro-batch that is taken tells the monitor that this process goes on.

    Args:
        loader: Assembles this rank's share of each update.
        session: The process group and the monitor.
    """

    def __init__(self, loader: UpdateLoader, session: Session) -> None:
        self._loader = loader
        self._session = session
        self._start = Position()
        self._updates: Generator[Update, None, None] | None = None

    def seek(self, position: Position) -> None:
        """Continue with the update at a position."""
        self.close()
        self._start = position

    def next(self) -> Update:
        """The next update. Collective if the pieces of sentences are sampled: then no rank knows all lengths."""
        if self._updates is None:
            self._updates = self._loader.iter_updates(self._start)
        update = next(self._updates)
        if self._loader.samples:
            sums = self._session.world.all_reduce(torch.tensor(astuple(update.sums)))
            update = replace(update, sums=LengthSums(*sums.tolist()))
        return replace(update, batches=self._reporting(update.batches))

    # The engine drives the heartbeat: it takes the batches one by one.
    def _reporting(self, batches: Iterable[PackedBatch]) -> Iterator[PackedBatch]:
        for batch in batches:
            self._session.enter(UPDATE)
            yield batch

    def close(self) -> None:
        """Stop the threads of the loader."""
        if self._updates is not None:
            self._updates.close()
            self._updates = None


def build_loader(experiment: Experiment, world: World) -> UpdateLoader:
    """Build what plans the updates of a run and assembles this rank's share of each."""
    return UpdateLoader(
        build_training_planner(experiment, build_budget(experiment.config.batch)),
        build_reader(experiment),
        rank=world.rank,
        world_size=world.world_size,
        prefetch=experiment.config.training.prefetch,
        pin_memory=world.device.type == "cuda",
    )


def build_training_planner(experiment: Experiment, budget: Budget) -> Planner:
    """Build the planner of the training split, with a budget of its own."""
    training, split = experiment.config.training, experiment.corpus.split("train")
    return build_planner(split, budget, training.seed, experiment.mixture, training.window_pairs)


def build_reader(experiment: Experiment) -> PairReader:
    """Build the reader of the training split, which samples and augments as the configuration says."""
    config, corpus = experiment.config, experiment.corpus
    split = corpus.split("train")
    return PairReader(
        split,
        subwords=_build_subword_sampling(config, corpus),
        augmentation=_build_augmentation(config, corpus),
        links=LinkReader(split, corpus.tokenizer) if config.loss.guided_alignment else None,
    )


class LargestUpdate:
    """The update with the most tokens in the first window of the plan, at full size.

    Its micro-batches are the largest too, but for one sentence pair, as an update is cut into equal parts.

    Attributes:
        fewest_pairs: Sentence pairs of the window's smallest update, which can be cut into so many micro-batches.
    """

    def __init__(self, experiment: Experiment) -> None:
        budget = replace(build_budget(experiment.config.batch), stages=())
        self._window = window = build_training_planner(experiment, budget).plan(0, 0)
        tokens = (window.src_lengths + window.tgt_lengths)[window.plan.order]
        self._number = int(np.add.reduceat(tokens, window.plan.bounds[:-1]).argmax())
        self._reader = build_reader(experiment)
        self.fewest_pairs = int(np.diff(window.plan.bounds).min())

    def read(self, micro_batches: int, numbers: Iterable[int]) -> list[PackedBatch]:
        """Some of its parts, if it is cut into this number of micro-batches."""
        parts = self._window.cut(self._number, micro_batches)
        position = Position(0, self._number)
        return [self._reader.read(self._window.pairs(parts[number]), position, number) for number in numbers]


def _build_subword_sampling(config: Config, corpus: Corpus) -> SubwordSampling | None:
    training, model = config.training, config.model
    max_pieces = model.max_positions - 1 if model.positions == "learned" else None
    if training.bpe_dropout:
        return BpeDropout(corpus.tokenizer, training.bpe_dropout, training.seed, max_pieces)
    if training.unigram_alpha:
        return UnigramSampling(corpus.tokenizer, training.unigram_alpha, training.seed, max_pieces)
    return None


def _build_augmentation(config: Config, corpus: Corpus) -> Augmentation | None:
    training, manifest = config.training, corpus.manifest
    if not training.augment:
        return None
    split = manifest.splits["train"]
    max_pieces = max(split.src_lengths.max, split.tgt_lengths.max, int(manifest.options.get("max_tokens") or 0))
    if config.model.positions == "learned":
        max_pieces = min(max_pieces, config.model.max_positions - 1)
    src_lang, tgt_lang = manifest.src_lang, manifest.tgt_lang
    parts = [TextPart(one.pairs, one.src_lang or src_lang, one.tgt_lang or tgt_lang) for one in manifest.parts]
    parts = parts or [TextPart(split.pairs, src_lang, tgt_lang)]
    return Augmentation(corpus.tokenizer, training.augment, training.seed, parts, max_pieces)
