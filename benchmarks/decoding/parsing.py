"""A parser on gold trees: F1, and sentences per second."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch

from benchmarks.lib.machine import count_cores
from dstransformer.decoding.commands import load_translator
from dstransformer.extras.parsing.brackets import score_trees
from dstransformer.extras.parsing.parser import Parser
from dstransformer.extras.parsing.trees import Tree, normalise, parse_tree, read_trees

SMOKE_OPTIONS = ""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("bundle", type=Path, help="a trained parser")
    parser.add_argument("gold", help="file, folder or pattern of the trees to compare with")
    parser.add_argument("--prune", type=float, help="default: that of the bundle")
    parser.add_argument("--batch-tokens", type=int, help="default: that of the bundle")


def main(options: argparse.Namespace) -> None:
    gold = load_trees(options.gold)
    torch.set_num_threads(count_cores())
    parser = load_translator(
        options.bundle, lambda: Parser, pruning_threshold=options.prune, batch_tokens=options.batch_tokens
    )
    sentences = [" ".join(tree.words()) for tree in gold]
    parser.translate(sentences[:20])  # builds kernels and caches
    began = time.perf_counter()
    parsed = parser.translate(sentences)
    seconds = time.perf_counter() - began
    trees = list(map(parse_tree, parsed))
    counts = score_trees(gold, trees, "gold").all
    print(f"F1 {counts.f1:.2f}, precision {counts.precision:.2f}, recall {counts.recall:.2f} (gold tags)")
    whole = sum(tree.words() == wanted.words() for tree, wanted in zip(trees, gold, strict=True))
    settings = parser.describe()
    search = f"beam {settings['beam_size']}, pruned at {settings['pruning_threshold']} nats, {settings['precision']}"
    search += f", {torch.get_num_threads()} threads"
    print(f"{len(gold)} sentences in {seconds:.1f} s: {len(gold) / seconds:.1f} per second, {search}")
    print(f"trees over exactly the words of the sentence: {whole} of {len(gold)}")


def load_trees(pattern: str) -> list[Tree]:
    """The trees as a corpus has them, without traces and function tags."""
    return [tree for located in read_trees(pattern) if (tree := normalise(located.tree)) is not None]
