"""Evaluation of a parser on the held-out trees of a corpus."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self

from dstransformer.config import DecodingConfig, ValidationConfig
from dstransformer.data import Manifest, Tokenizer
from dstransformer.decoding import TorchEngine
from dstransformer.evaluation import Sample, Score
from dstransformer.evaluation.task import Task
from dstransformer.extras.parsing.brackets import score_trees
from dstransformer.extras.parsing.linearise import Linearisation
from dstransformer.extras.parsing.parser import Parser
from dstransformer.extras.parsing.trees import parse_tree
from dstransformer.model import Transformer

#: The scores of a parser, the first of which ranks checkpoints.
BRACKET_SCORES = ("f1", "precision", "recall", "complete_match", "tagging_accuracy")


@dataclass(frozen=True)
class Parsing(Task):
    """Parsing: labelled bracketing scores.

    Attributes:
        trees: How the parser writes trees.
    """

    tokenizers: Mapping[str, str] = field(default_factory=dict)
    example: str = "(S (X a))"
    trees: Linearisation = field(kw_only=True)

    @classmethod
    def build(cls, manifest: Manifest, config: ValidationConfig) -> Self:
        """The task of a corpus of trees."""
        assert isinstance(manifest.form, Linearisation)
        return cls("loss" if config.metric == "loss" else BRACKET_SCORES[0], trees=manifest.form)

    def decoder(self, model: Transformer, tokenizer: Tokenizer, settings: DecodingConfig) -> Parser:
        """A parser."""
        return Parser(TorchEngine([model], tokenizer.vocab_size), tokenizer, settings, self.trees)

    def score(self, outputs: Sequence[str], references: Sequence[str], direction: str = "") -> tuple[Score, ...]:
        """The labelled bracketing scores of trees on one line each, F1 first.

        The gold tree determines what is punctuation. A model that writes no tags is scored with the gold tags.
        """
        del direction
        gold, parsed = list(map(parse_tree, references)), list(map(parse_tree, outputs))
        found = score_trees(gold, parsed, "punctuation" if self.trees.tags == "keep" else "gold")
        metrics = found.all.metrics()
        values = {name: 0.0 if math.isnan(metrics[name]) else metrics[name] for name in BRACKET_SCORES}
        return tuple(Score(name, value, found.signature) for name, value in values.items())

    def draw(self, samples: Sequence[Sample]) -> str:
        """Sentences with the gold tree and the parser's, drawn by indentation."""
        blocks = []
        for sample in samples:
            gold, parsed = (parse_tree(text).draw() for text in (sample.reference, sample.translation))
            blocks.append(f"{sample.source}\n\ngold:\n{gold}\n\nparsed:\n{parsed}\n")
        return "\n\n".join(blocks)
