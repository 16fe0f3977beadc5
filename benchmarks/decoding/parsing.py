"""A parser on gold trees: F1 beside two baselines, sentences per second, and the constraint's share of the time.

The baselines are right-branching trees, and the most frequent training tree of the same length.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.lib.machine import count_cores
from dstransformer.decoding.commands import load_translator
from dstransformer.extras.parsing.brackets import score_trees
from dstransformer.extras.parsing.constraint import TreeConstraint
from dstransformer.extras.parsing.linearise import Linearisation
from dstransformer.extras.parsing.parser import Parser
from dstransformer.extras.parsing.trees import TOP, Tree, normalise, parse_tree, read_trees

BARE = Linearisation("xx", "label")


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("bundle", type=Path, help="a trained parser")
    parser.add_argument("gold", help="file, folder or pattern of the trees to compare with")
    parser.add_argument("train", help="file, folder or pattern of the training trees, for the second baseline")
    parser.add_argument("--prune", type=float, help="default: that of the bundle")
    parser.add_argument("--batch-tokens", type=int, help="default: that of the bundle")


def main(options: argparse.Namespace) -> None:
    gold = load_trees(options.gold)
    report("right-branching", gold, [branch_right(tree.words()) for tree in gold])
    report("most frequent training tree of that length", gold, copy_most_frequent(gold, load_trees(options.train)))
    torch.set_num_threads(count_cores())
    parser = load_translator(
        options.bundle, lambda: Parser, pruning_threshold=options.prune, batch_tokens=options.batch_tokens
    )
    sentences = [" ".join(tree.words()) for tree in gold]
    parser.translate(sentences[:20])  # builds kernels and caches
    constraint = Stopwatch()
    constraint.watch("__init__", "allowed", "advance", "keep")
    began = time.perf_counter()
    parsed = parser.translate(sentences)
    seconds = time.perf_counter() - began
    trees = list(map(parse_tree, parsed))
    report("parser", gold, trees)
    whole = sum(tree.words() == wanted.words() for tree, wanted in zip(trees, gold, strict=True))
    settings = parser.describe()
    search = f"beam {settings['beam_size']}, pruned at {settings['pruning_threshold']} nats, {settings['precision']}"
    search += f", {torch.get_num_threads()} threads"
    print(f"{len(gold)} sentences in {seconds:.1f} s: {len(gold) / seconds:.1f} per second, {search}")
    print(f"constraint: {100 * constraint.seconds / seconds:.1f}% of the time")
    print(f"trees over exactly the words of the sentence: {whole} of {len(gold)}")


def load_trees(pattern: str) -> list[Tree]:
    """The trees as a corpus has them, without traces and function tags."""
    return [tree for located in read_trees(pattern) if (tree := normalise(located.tree)) is not None]


def report(name: str, gold: Sequence[Tree], parsed: Sequence[Tree]) -> None:
    counts = score_trees(gold, parsed, "gold").all
    print(f"{name}: F1 {counts.f1:.2f}, precision {counts.precision:.2f}, recall {counts.recall:.2f} (gold tags)")


def branch_right(words: Sequence[str]) -> Tree:
    """``(S w (NP w (NP …)))``, the last word, a full stop most of the time, beside it."""
    if len(words) < 3:
        return Tree(TOP, (Tree("S", tuple(Tree("XX", word=word) for word in words)),))
    tree = Tree("NP", tuple(Tree("XX", word=word) for word in words[-3:-1]))
    for word in reversed(words[1:-3]):
        tree = Tree("NP", (Tree("XX", word=word), tree))
    first = (Tree("XX", word=words[0]),) if len(words) > 3 else ()
    return Tree(TOP, (Tree("S", (*first, tree, Tree("XX", word=words[-1]))),))


def copy_most_frequent(gold: Sequence[Tree], train: Sequence[Tree]) -> list[Tree]:
    """For each sentence the shape that most training sentences of its length have; of a length that none has, flat."""
    shapes: dict[int, Counter[tuple[str, ...]]] = {}
    for tree in train:
        shapes.setdefault(len(tree.words()), Counter())[tuple(BARE.write(tree))] += 1
    copies = []
    for tree in gold:
        words = tree.words()
        found = shapes.get(len(words))
        symbols = found.most_common(1)[0][0] if found else ("(S", *["(XX)"] * len(words), ")S")
        copies.append(BARE.read(symbols, words))
    return copies


class Stopwatch:
    """Seconds spent in the methods of the constraint."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def watch(self, *names: str) -> None:
        """Time these methods from now on."""
        for name in names:
            setattr(TreeConstraint, name, self._timed(getattr(TreeConstraint, name)))

    def _timed(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            began = time.perf_counter()
            try:
                return method(*arguments)
            finally:
                self.seconds += time.perf_counter() - began

        return call
