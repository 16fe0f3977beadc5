"""Builds the stream of updates that a run trains on, from its configuration and corpus."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from dataclasses import astuple, replace

import torch

from dstransformer.config import Config
from dstransformer.data import Corpus
from dstransformer.data.augment import Augmentation, TextPart
from dstransformer.data.links import LinkReader
from dstransformer.data.loader import PairReader, Update, UpdateLoader
from dstransformer.data.mixture import Mixture
from dstransformer.data.packing import PackedBatch
from dstransformer.data.plan import LengthSums, Position, build_budget
from dstransformer.data.subwords import BpeDropout, SubwordSampling, UnigramSampling
from dstransformer.data.windows import build_planner
from dstransformer.distributed.supervision.failure_detection import UPDATE
from dstransformer.distributed.supervision.session import Session
from dstransformer.distributed.world import World


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

    def _reporting(self, batches: Iterable[PackedBatch]) -> Iterator[PackedBatch]:
        for batch in batches:
            self._session.enter(UPDATE)
            yield batch

    def close(self) -> None:
        """Stop the threads of the loader."""
        if self._updates is not None:
            self._updates.close()
            self._updates = None


def build_loader(config: Config, corpus: Corpus, mixture: Mixture | None, world: World) -> UpdateLoader:
    """Build what plans the updates of a run and assembles this rank's share of each."""
    training, split = config.training, corpus.split("train")
    reader = PairReader(
        split,
        subwords=_build_subword_sampling(config, corpus),
        augmentation=_build_augmentation(config, corpus),
        links=LinkReader(split, corpus.tokenizer) if config.loss.guided_alignment else None,
    )
    return UpdateLoader(
        build_planner(split, build_budget(config.batch), training.seed, mixture, training.window_pairs),
        reader,
        rank=world.rank,
        world_size=world.world_size,
        prefetch=training.prefetch,
        pin_memory=world.device.type == "cuda",
    )


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
