"""What differs between evaluating a translator and a parser; and the evaluation of a parser on gold trees."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from dstransformer.config import DecodingConfig
from dstransformer.corpus import Tokenizer
from dstransformer.decoding import Parser, TextDecoder, TorchEngine, Translator
from dstransformer.evaluation.bleu import score
from dstransformer.evaluation.result import Score
from dstransformer.model import Transformer
from dstransformer.parsing.brackets import BracketScores, Tags, score_trees
from dstransformer.parsing.linearise import Linearisation
from dstransformer.parsing.trees import Located, normalise, parse_tree

#: The scores of a parser, the first of which ranks checkpoints.
BRACKET_SCORES = ("f1", "precision", "recall", "complete_match", "tagging_accuracy")


@dataclass(frozen=True)
class Task:
    """Translating, or parsing.

    Attributes:
        trees: How a parser writes trees; None for a translator.
    """

    trees: Linearisation | None

    @property
    def metric(self) -> str:
        """The score that ranks checkpoints: ``bleu`` or ``f1``."""
        return "bleu" if self.trees is None else BRACKET_SCORES[0]

    def decoder(self, model: Transformer, tokenizer: Tokenizer, settings: DecodingConfig) -> TextDecoder:
        """What turns source sentences into outputs: a translator or a parser."""
        engine = TorchEngine([model], tokenizer.vocab_size)
        if self.trees is None:
            return Translator(engine, tokenizer, settings)
        return Parser(engine, tokenizer, settings, self.trees)

    def score(self, outputs: Sequence[str], references: Sequence[str]) -> tuple[Score, ...]:
        """BLEU and chrF of translations, or the labelled bracketing scores of trees; the first ranks checkpoints.

        The gold tree determines what is punctuation. A model that writes no tags is scored with the gold tags.

        Raises:
            DataError: There are no sentences, or the numbers of outputs and references differ.
        """
        if self.trees is None:
            return score(outputs, references)
        return bracket_scores(outputs, references, "punctuation" if self.trees.tags == "keep" else "gold")


def bracket_scores(outputs: Sequence[str], references: Sequence[str], tags: Tags) -> tuple[Score, ...]:
    """Labelled bracketing scores of trees on one line each, F1 first; see :mod:`dstransformer.parsing.brackets`."""
    gold, parsed = list(map(parse_tree, references)), list(map(parse_tree, outputs))
    found = score_trees(gold, parsed, tags)
    metrics = found.all.metrics()
    values = {name: 0.0 if math.isnan(metrics[name]) else metrics[name] for name in BRACKET_SCORES}
    return tuple(Score(name, value, found.signature) for name, value in values.items())


class TreebankEvaluation(NamedTuple):
    """The scores of a parser, and the seconds of parsing."""

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
