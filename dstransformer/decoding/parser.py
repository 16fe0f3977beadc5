"""Parsing with a trained model: sentences in, trees out (section 6.3)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Self

from dstransformer.config import DecodingConfig
from dstransformer.corpus import Tokenizer
from dstransformer.corpus.tokenizer import plain_spaces
from dstransformer.decoding.beam import Constraint
from dstransformer.decoding.constraint import LEAST_BRACKETS, SymbolTable, TreeConstraint
from dstransformer.decoding.sampling import Sampling
from dstransformer.decoding.translator import Output, Progress, Translator
from dstransformer.errors import ConfigError, DataError
from dstransformer.model import Bundle, Transformer
from dstransformer.parsing.linearise import Linearisation, is_symbol
from dstransformer.parsing.trees import TOP, Tree, escape_brackets

_PLAIN_QUOTES = str.maketrans(
    {
        "\N{LEFT DOUBLE QUOTATION MARK}": '"',
        "\N{RIGHT DOUBLE QUOTATION MARK}": '"',
        "\N{LEFT SINGLE QUOTATION MARK}": "'",
        "\N{RIGHT SINGLE QUOTATION MARK}": "'",
    }
)


class Parser(Translator):
    """Parses sentences. Its outputs are trees on one line, in the format of the Penn Treebank.

    The search is constrained: every output is a tree over exactly the words of its sentence.

    Args:
        model: The model, see :class:`Translator`.
        tokenizer: The tokenizer, with a piece for every symbol that trees are written with.
        settings: Beam size, length penalty and limits.
        trees: How trees are written.
        others: See :class:`Translator`.

    Attributes:
        split: Divides a sentence into words. At its spaces, unless another function is set: see :func:`penn_words` and
            :func:`given_words`.
    """

    split: Callable[[str], Sequence[str]]

    def __init__(
        self,
        model: Transformer,
        tokenizer: Tokenizer,
        settings: DecodingConfig,
        trees: Linearisation,
        others: Sequence[Transformer] = (),
    ) -> None:
        super().__init__(model, tokenizer, settings, others)
        self.trees = trees
        self.split = str.split
        self._symbols = {name: number for name, number in tokenizer.symbols.items() if is_symbol(name)}
        self._names = {number: name for name, number in self._symbols.items()}

    @classmethod
    def from_bundle(cls, opened: Bundle, models: Sequence[Transformer], settings: DecodingConfig) -> Self:
        """See :meth:`Translator.from_bundle`.

        Raises:
            DataError: The bundle is a translator.
        """
        if opened.trees is None:
            raise DataError(
                f"{opened.path} is not a parser but translates {opened.src_lang} to {opened.tgt_lang}: "
                "use `dst translate`, or name the bundle of a model trained on trees"
            )
        return cls(models[0], opened.tokenizer, settings, opened.trees, models[1:])

    def search(
        self,
        sentences: Sequence[str],
        *,
        n_best: int = 1,
        prefixes: Sequence[str] | None = None,
        sampling: Sampling | None = None,
        progress: Progress | None = None,
        first: int = 1,
    ) -> list[list[Output]]:
        """The best trees of each sentence, best first; ``(())`` for one without words.

        Args:
            sentences: The sentences.
            n_best: Trees per sentence.
            prefixes: Trees have none: must be None.
            sampling: Trees are not sampled: must be None.
            progress: Called after each batch with the number of its sentences.
            first: Number of the first sentence in warnings and errors.

        Raises:
            DataError: A sentence is longer than the positions that the model has learned, or than memory allows.
        """
        self._check_request(n_best, prefixes, sampling)
        words = list(map(self.split, sentences))
        numbers = range(first, first + len(words))
        self._check_words(words, numbers)
        table = SymbolTable(self._symbols, self._ensemble.device)

        def constrain(batch: Sequence[int]) -> Constraint:
            return TreeConstraint(table, [len(words[place]) for place in batch], self.settings.beam_size)

        src = self.tokenizer.src.encode(list(map(self.trees.sentence, words)))
        found = self.search_ids(src, n_best=n_best, progress=progress, numbers=numbers, constrain=constrain)
        return [
            [
                Output(str(self._read(one.tokens, sentence)), one.score, one.log_probability, one.tokens)
                for one in hypotheses
            ]
            for sentence, hypotheses in zip(words, found, strict=True)
        ]

    def _check_request(self, n_best: int, prefixes: Sequence[str] | None, sampling: Sampling | None) -> None:
        if prefixes is not None or sampling is not None:
            raise ConfigError("a parser takes no prefix and draws no samples")
        super()._check_request(n_best, prefixes, sampling)

    def _check_words(self, words: Sequence[Sequence[str]], numbers: Sequence[int]) -> None:
        """Refuse sentences whose tree has no room in the positions that the model has learned."""
        most = self._ensemble.max_positions
        if most is None:
            return
        for number, sentence in zip(numbers, words, strict=True):
            least = len(sentence) + LEAST_BRACKETS + 1
            if least > most:
                raise DataError(
                    f"sentence {number} has {len(sentence)} words; its tree takes at least {least} positions, and the "
                    f"model has learned {most} (model.max_positions): split the sentence"
                )

    def _limit(self, src: Sequence[Sequence[int]], numbers: Sequence[int]) -> list[Sequence[int]]:
        """Refuse what a translator cuts: a tree has all the words of its sentence."""
        most = self.settings.max_input_tokens
        for number, ids in zip(numbers, src, strict=True):
            if most and len(ids) > most:
                raise DataError(
                    f"sentence {number} has {len(ids):,} tokens, more than --max-input-tokens {most:,}: split it, or "
                    "raise the limit (0: none)"
                )
        return list(src)

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
