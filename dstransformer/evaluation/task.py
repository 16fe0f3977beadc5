"""What a model does, as far as its evaluation differs: it translates, or it parses."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from dstransformer.config import DecodingConfig
from dstransformer.corpus import Tokenizer
from dstransformer.decoding import Parser, TextDecoder, TorchEngine, Translator
from dstransformer.evaluation.bleu import score
from dstransformer.evaluation.result import Score
from dstransformer.model import Transformer
from dstransformer.parsing.brackets import Tags, score_trees
from dstransformer.parsing.linearise import Linearisation
from dstransformer.parsing.trees import parse_tree

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

        The gold tree says what is punctuation; a model that writes no tags is scored with the gold ones.

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
