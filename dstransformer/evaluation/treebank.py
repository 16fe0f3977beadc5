"""Evaluates a parser on gold trees, for ``dst evaluate --task parsing``."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from dstransformer.decoding import Parser
from dstransformer.parsing.brackets import BracketScores, Tags, score_trees
from dstransformer.parsing.trees import Located, normalise, parse_tree


class TreebankEvaluation(NamedTuple):
    """The scores of a parser, and the seconds that parsing took."""

    scores: BracketScores
    seconds: float


def evaluate_treebank(
    gold: Sequence[Located],
    parser: Parser,
    *,
    tags: Tags = "punctuation",
    write: Callable[[str], None] | None = None,
    progress: Callable[[int], None] | None = None,
) -> TreebankEvaluation:
    """Parse the words of gold trees and score the result.

    Args:
        gold: The gold trees. Empty elements are not parsed.
        parser: The parser.
        tags: See :func:`score_trees`; always ``gold`` if the parser writes no tags.
        write: Called with each tree, in order, before scoring.
        progress: See :meth:`Parser.translate`.
    """
    words = [[] if (tree := normalise(located.tree)) is None else tree.words() for located in gold]
    began = time.perf_counter()
    trees = parser.translate([" ".join(sentence) for sentence in words], progress)
    seconds = time.perf_counter() - began
    if write is not None:
        for text in trees:
            write(text)
    gold_trees, parsed = [located.tree for located in gold], list(map(parse_tree, trees))
    scores = score_trees(gold_trees, parsed, tags if parser.trees.tags == "keep" else "gold")
    return TreebankEvaluation(scores, seconds)
