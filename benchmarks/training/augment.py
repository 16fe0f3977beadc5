"""What augmentation costs the loader's threads and training, in CPU time.

Beside it stands BPE dropout. Training takes turns with and without; the CPU time is that of all threads.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numpy as np

from dstransformer.config import Modifier, load_config
from dstransformer.data import Corpus
from dstransformer.data.augment import Augmentation, TextPart, describe_augmentation
from dstransformer.data.plan import Position
from dstransformer.data.reader import Pairs
from dstransformer.data.subwords import BpeDropout
from dstransformer.distributed.launcher import read_processes
from dstransformer.distributed.supervision.session import Session
from dstransformer.distributed.world import World, join_world, leave_world
from dstransformer.tracking.events import NullTracker
from dstransformer.training.build import build_engine, build_trainer
from dstransformer.training.experiment import Experiment, TrainRequest
from dstransformer.training.plan import Plan

SMOKE_OPTIONS = ""
PRESET = "multi30k"
AUGMENT = (
    "training.augment=[{modifier: upper, probability: 0.05}, {modifier: title, probability: 0.05}, "
    "{modifier: remove_end_punct, probability: 0.1}, {modifier: typos, probability: 0.05, rate: 0.05}, "
    "{modifier: noise, probability: 0.005}]"
)
MAX_TOKENS = 256
PAIRS = 150  # of a micro-batch
UPDATES = 5


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("corpus", type=Path, help="a corpus with a BPE vocabulary")
    parser.add_argument("--turns", type=int, default=0, help="turns of training with and without (default: none)")


def main(options: argparse.Namespace) -> None:
    corpus = Corpus.open(options.corpus, verify=False)
    modifiers = load_config(PRESET, [AUGMENT]).training.augment
    print(describe_augmentation(modifiers))
    measure_loader(corpus, modifiers)
    if options.turns:
        world = join_world(read_processes(os.environ))
        for _ in range(options.turns):
            for name, overrides in (("without", []), ("with", [AUGMENT])):
                tokens, seconds = train(corpus, world, overrides)
                print(
                    f"training {name}: {tokens / seconds:,.0f} tokens a CPU second, {tokens / UPDATES:,.0f} an update"
                )
        leave_world()


def measure_loader(corpus: Corpus, modifiers: list[Modifier]) -> None:
    split = corpus.split("train")
    parts = [TextPart(len(split), corpus.manifest.src_lang, corpus.manifest.tgt_lang)]
    augmentation = Augmentation(corpus.tokenizer, modifiers, 1, parts, MAX_TOKENS)
    dropout = BpeDropout(corpus.tokenizer, 0.1, 1, None)
    stored = int(split.src_lengths.sum() + split.tgt_lengths.sum())
    ways: dict[str, Callable[[Pairs, np.ndarray], Pairs]] = {
        "augmentation": lambda pairs, rows: augmentation.modify(pairs, rows, Position()),
        "BPE dropout": lambda pairs, rows: dropout.sample(pairs, Position(), int(rows[0])),
    }
    for name, change in ways.items():
        tokens, start = 0, time.process_time()
        for first in range(0, len(split), PAIRS):
            rows = np.arange(first, min(first + PAIRS, len(split)))
            after = change(split.gather(rows), rows)
            tokens += len(after.src_ids) + len(after.tgt_ids)
        seconds = time.process_time() - start
        print(
            f"{name}: {1e6 * seconds / len(split):.0f} µs a pair, {1e6 * seconds / stored:.2f} µs a stored token; "
            f"{tokens / stored - 1:+.1%} tokens"
        )


def train(corpus: Corpus, world: World, overrides: list[str]) -> tuple[int, float]:
    """Tokens of some updates, and the CPU seconds of all threads that they take."""
    config = load_config(PRESET, overrides, ["zero0", "fp32"])
    with tempfile.TemporaryDirectory() as folder:
        request = TrainRequest(PRESET, corpus.path, Path(folder))
        experiment = Experiment.build(request, config, corpus, world.world_size)
        session = Session(world)
        trainer = build_trainer(experiment, build_engine(experiment, Plan(config), session), {}, NullTracker(), session)
        tokens = 0
        with closing(trainer.data) as updates:
            for number in range(UPDATES + 1):
                update = updates.next()
                if number == 1:  # the first one warms up
                    start = time.process_time()
                trainer.engine.step(update, number + 1)
                tokens += update.src_tokens + update.tgt_tokens if number else 0
        return tokens, time.process_time() - start
