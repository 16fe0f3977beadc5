"""Parsing with a trained model: sentences in, trees out (section 6.3); and its evaluation on held-out trees."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self

from dstransformer.config import DecodingConfig, ValidationConfig
from dstransformer.data import Manifest, Tokenizer
from dstransformer.data.tokenizer import plain_spaces
from dstransformer.decoding.beam import Constraint
from dstransformer.decoding.engine import TorchEngine
from dstransformer.decoding.texts import Output
from dstransformer.decoding.translator import TextDecoder, check_strings
from dstransformer.errors import DataError
from dstransformer.evaluation import Sample, Score
from dstransformer.evaluation.task import Task
from dstransformer.extras.parsing.brackets import score_trees
from dstransformer.extras.parsing.constraint import MIN_BRACKETS, SymbolTable, TreeConstraint
from dstransformer.extras.parsing.linearise import Linearisation, is_symbol
from dstransformer.extras.parsing.trees import TOP, Tree, escape_brackets, parse_tree
from dstransformer.io.progress import Advance
from dstransformer.model import Bundle, Transformer

#: The scores of a parser, the first of which ranks checkpoints.
BRACKET_SCORES = ("f1", "precision", "recall", "complete_match", "tagging_accuracy")

_PLAIN_QUOTES = str.maketrans(
    {
        "\N{LEFT DOUBLE QUOTATION MARK}": '"',
        "\N{RIGHT DOUBLE QUOTATION MARK}": '"',
        "\N{LEFT SINGLE QUOTATION MARK}": "'",
        "\N{RIGHT SINGLE QUOTATION MARK}": "'",
    }
)


class Parser(TextDecoder):
    """Parses sentences. Its outputs are trees on one line, in the format of the Penn Treebank.

    The search is constrained: every output is a tree over exactly the words of its sentence.

    Args:
        engine: The search engine; it has to follow the constraint.
        tokenizer: The tokenizer, with a piece for every symbol that trees are written with.
        settings: Beam size, length penalty and limits.
        trees: How trees are written.

    Attributes:
        split: Divides a sentence into words: at its spaces, unless another function such as :func:`given_words` is set.
    """

    engine: TorchEngine
    split: Callable[[str], Sequence[str]] = staticmethod(str.split)

    def __init__(
        self, engine: TorchEngine, tokenizer: Tokenizer, settings: DecodingConfig, trees: Linearisation
    ) -> None:
        super().__init__(engine, tokenizer, settings)
        self.trees = trees
        self._symbols = {name: number for name, number in tokenizer.symbols.items() if is_symbol(name)}
        self._names = {number: name for name, number in self._symbols.items()}

    @classmethod
    def from_bundle(cls, opened: Bundle, engine: TorchEngine, settings: DecodingConfig) -> Self:
        """See :meth:`TextDecoder.from_bundle`.

        Raises:
            DataError: The bundle is a translator.
        """
        if not isinstance(opened.form, Linearisation):
            raise DataError(
                f"{opened.path} is not a parser but translates {opened.src_lang} to {opened.tgt_lang}: "
                "use `dst translate`, or name the bundle of a model trained on trees"
            )
        return cls(engine, opened.tokenizer, settings, opened.form)

    def search(
        self,
        sentences: Sequence[str],
        *,
        n_best: int = 1,
        progress: Advance | None = None,
        first: int = 1,
    ) -> list[list[Output]]:
        """The ``n_best`` trees of each sentence, best first; ``(())`` for one without words.

        ``progress`` is called after each batch with the number of its sentences; errors count sentences from ``first``.

        Raises:
            ConfigError: ``n_best`` is more than the beam, or long inputs are split and there are several.
            DataError: A sentence is longer than the limit, than the positions that the model has learned, or than
                memory allows.
        """
        self._check_n_best(n_best)
        words = list(map(self.split, check_strings("sentences", sentences)))
        src = self.tokenizer.src.encode(list(map(self.trees.sentence, words)))
        numbers = range(first, first + len(words))
        self._check_lengths(words, src, numbers)
        table = SymbolTable(self._symbols, self.engine.ensemble.device)

        def constrain(batch: Sequence[int]) -> Constraint:
            return TreeConstraint(table, [len(words[index]) for index in batch], self.settings.beam_size)

        lists = self.engine.search(
            src, self.settings, numbers=numbers, n_best=n_best, progress=progress, constrain=constrain
        )
        return [
            [
                Output(str(self._read(found.tokens, sentence)), found.score, found.log_probability, found.tokens)
                for found in hypotheses
            ]
            for sentence, hypotheses in zip(words, lists, strict=True)
        ]

    def _check_lengths(
        self, words: Sequence[Sequence[str]], src: Sequence[Sequence[int]], numbers: Sequence[int]
    ) -> None:
        """Refuse sentences whose tree has no room in learned positions, and what a translator would cut."""
        learned, limit = self.engine.ensemble.max_positions, self.settings.max_input_tokens
        for number, sentence, ids in zip(numbers, words, src, strict=True):
            needed = len(sentence) + MIN_BRACKETS + 1
            if learned is not None and needed > learned:
                raise DataError(
                    f"sentence {number} has {len(sentence)} words; its tree takes at least {needed} positions, and the "
                    f"model has learned {learned} (model.max_positions): split the sentence"
                )
            if limit and len(ids) > limit:
                raise DataError(
                    f"sentence {number} has {len(ids):,} tokens, more than --max-input-tokens {limit:,}: split it, or "
                    "raise the limit (0: none)"
                )

    def _read(self, tokens: Sequence[int], words: Sequence[str]) -> Tree:
        return self.trees.read([self._names[token] for token in tokens], words) if tokens else Tree(TOP)


def given_words(sentence: str) -> list[str]:
    """The words of text that is divided at its spaces. Brackets in them are written as the treebank does."""
    return list(map(escape_brackets, plain_spaces(sentence).split()))


def penn_words(sentence: str) -> list[str]:
    """Divide raw English text into words nearly as the Penn Treebank does: ``can't`` becomes ``ca n't``.

    NLTK's tokenizer does it. Unlike the treebank it divides ``AT&T``.
    """
    from nltk.tokenize.destructive import NLTKWordTokenizer

    plain = plain_spaces(sentence).translate(_PLAIN_QUOTES)
    return list(map(escape_brackets, NLTKWordTokenizer().tokenize(plain, convert_parentheses=True)))


class RawTextParser(Parser):
    """A parser of raw English text, which it divides into words nearly as the Penn Treebank does."""

    split = staticmethod(penn_words)


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
