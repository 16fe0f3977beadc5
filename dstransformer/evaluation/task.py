"""What differs between evaluating a translator and a parser; and the evaluation of a parser on gold trees."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from dstransformer.config import DecodingConfig, ValidationConfig
from dstransformer.data import Manifest, Tokenizer
from dstransformer.decoding import Parser, TextDecoder, TorchEngine, Translator
from dstransformer.evaluation.bleu import bleu_tokenizer, score, tokenizer_note
from dstransformer.evaluation.directions import score_directions
from dstransformer.evaluation.result import Evaluation, Score
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
        metric: The score that ranks checkpoints: ``bleu``, ``chrf``, ``loss`` or ``f1``.
        tokenizers: Sacrebleu's tokenizer for BLEU, by the name of the direction; empty where there is one.
        notes: What to know about the choice of tokenizers.
    """

    trees: Linearisation | None
    metric: str = "bleu"
    tokenizers: Mapping[str, str] = field(default_factory=lambda: {"": "13a"})
    notes: tuple[str, ...] = ()

    @classmethod
    def build(cls, manifest: Manifest, config: ValidationConfig) -> Task:
        """What is learned from a corpus, and how it is scored.

        Raises:
            ConfigError: A tokenizer of BLEU is not installed.
        """
        if manifest.trees is not None:
            return cls(manifest.trees, "loss" if config.metric == "loss" else BRACKET_SCORES[0])
        targets = {direction.name: direction.tgt_lang for direction in manifest.directions}
        targets[""] = next(iter(targets.values()), manifest.tgt_lang)
        notes = dict.fromkeys(tokenizer_note(code, config.tokenize) for code in targets.values())
        return cls(
            None,
            config.metric,
            {name: bleu_tokenizer(code, config.tokenize) for name, code in targets.items()},
            tuple(note for note in notes if note),
        )

    def signature(self, directions: Iterable[str]) -> str:
        """The signature of the score that ranks checkpoints; empty of the loss.

        Args:
            directions: The directions of the held-out set; of a single one the empty name.
        """
        if self.metric == "loss":
            return ""
        sample = ["." if self.trees is None else "(S (X a))"]
        rows = {name: [0] for name in directions}
        found = score_directions(self.score, rows, sample * len(rows), sample * len(rows))
        return Evaluation(found, ranked_by=self.metric).main.signature

    def decoder(self, model: Transformer, tokenizer: Tokenizer, settings: DecodingConfig) -> TextDecoder:
        """What turns source sentences into outputs: a translator or a parser."""
        engine = TorchEngine([model], tokenizer.vocab_size)
        if self.trees is None:
            return Translator(engine, tokenizer, settings)
        return Parser(engine, tokenizer, settings, self.trees)

    def score(self, outputs: Sequence[str], references: Sequence[str], direction: str = "") -> tuple[Score, ...]:
        """BLEU and chrF of translations in one direction, or the labelled bracketing scores of trees.

        The gold tree determines what is punctuation. A model that writes no tags is scored with the gold tags.

        Raises:
            DataError: There are no sentences, or the numbers of outputs and references differ.
        """
        if self.trees is None:
            return score(outputs, references, self.tokenizers[direction])
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
