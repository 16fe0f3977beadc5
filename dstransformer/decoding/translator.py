"""Text in, text out: what everything that decodes text has in common, and the translator."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, Self

import torch

from dstransformer.config import DecodingConfig, complete_config
from dstransformer.data import Tokenizer
from dstransformer.data.alignment import words_before, words_of_output, words_of_pieces
from dstransformer.data.directions import Tags
from dstransformer.data.sentences import split_sentences
from dstransformer.data.tokenizer import plain_spaces
from dstransformer.decoding.aligner import Aligner, Pieces
from dstransformer.decoding.beam import Hypothesis
from dstransformer.decoding.engine import SearchEngine, TorchEngine, evaluating
from dstransformer.decoding.formats import Sampling, take_prefixes
from dstransformer.decoding.texts import (
    BUFFER_LINES,
    Output,
    first_words,
    join_outputs,
    limit_inputs,
    split_long,
    split_symbols,
)
from dstransformer.errors import ConfigError, DataError, shown
from dstransformer.io.progress import Advance
from dstransformer.model import Bundle, Transformer, open_bundle

logger = logging.getLogger(__name__)


class TextDecoder(ABC):
    """Turns sentences into texts: a search engine with the tokenizer and the settings of its search.

    Args:
        engine: The search engine.
        tokenizer: The tokenizer that the model was trained with.
        settings: Beam size, length penalty and limits.
    """

    def __init__(self, engine: SearchEngine, tokenizer: Tokenizer, settings: DecodingConfig) -> None:
        self.engine = engine
        self.tokenizer = tokenizer
        self.settings = settings

    @classmethod
    def load(
        cls,
        bundle: str | Path | Bundle,
        *,
        others: Sequence[str | Path | Bundle] = (),
        device: str | torch.device | None = None,
        dtype: torch.dtype | None = None,
        settings: DecodingConfig | None = None,
        keep_nan: bool = False,
    ) -> Self:
        """Load a bundle, or several that decode together, to decode with PyTorch.

        Args:
            bundle: A folder that :func:`dstransformer.model.open_bundle` opens, or a bundle that it returned.
            others: More of them.
            device: See :meth:`TorchEngine.load`.
            dtype: See :meth:`TorchEngine.load`.
            settings: None takes the settings of the first bundle's configuration.
            keep_nan: See :class:`TorchEngine`.

        Raises:
            DataError: A folder is not a valid bundle, or one of the other kind; or the tokenizers differ.
            ConfigError: The device does not exist, or a setting is out of bounds.
        """
        opened = [open_bundle(bundle), *map(open_bundle, others)]
        engine = TorchEngine.load(opened, device, dtype, keep_nan=keep_nan)
        return cls.from_bundle(opened[0], engine, opened[0].decoding if settings is None else _checked(settings))

    @classmethod
    @abstractmethod
    def from_bundle(cls, opened: Bundle, engine: TorchEngine, settings: DecodingConfig) -> Self:
        """Decode with an engine that holds the bundle's model, and with the bundle's tokenizer.

        Raises:
            DataError: The bundle is of the other kind.
        """

    @property
    def identity(self) -> tuple[str, ...]:
        """What identifies the weights; see :class:`SearchEngine`."""
        return self.engine.identity

    def describe(self) -> dict[str, Any]:
        """The settings of the search, the device and the precision, as plain data."""
        return {**self.settings.model_dump(), **self.engine.describe()}

    @abstractmethod
    def search(
        self, sentences: Sequence[str], *, n_best: int = 1, progress: Advance | None = None, first: int = 1
    ) -> list[list[Output]]:
        """The best outputs of each sentence, best first; one that is empty for an empty sentence.

        Args:
            sentences: The sentences.
            n_best: Outputs per sentence. A search that finishes fewer returns those.
            progress: Called after each batch with the number of its sentences.
            first: Number of the first sentence in warnings and errors.

        Raises:
            ConfigError: ``n_best`` is more than the beam, or long inputs are split and there are several.
            DataError: A sentence is longer than memory allows; or without a limit, than the positions that the model
                has learned.
        """

    def translate(self, sentences: Sequence[str], progress: Advance | None = None, **asked: Any) -> list[str]:
        """The best output of each sentence; for what else may be asked for see :meth:`search`."""
        return [outputs[0].text for outputs in self.search(sentences, progress=progress, **asked)]

    def iter_search(
        self,
        lines: Iterable[str | None],
        *,
        prefixes: Iterator[str] | None = None,
        buffer_lines: int = BUFFER_LINES,
        **asked: Any,
    ) -> Iterator[tuple[str, list[Output]]]:
        """Each line of a stream of any length with its outputs, in order, holding at most ``buffer_lines`` at a time.

        A None in the stream means that it pauses: the lines held so far are translated. A translator takes a prefix for
        each line. For what else may be asked for see :meth:`search`.

        Raises:
            DataError: See :meth:`search`; or there are fewer prefixes than lines.
        """
        held: list[str] = []
        done = 0
        for line in chain(lines, [None]):
            if line is not None:
                held.append(line)
            if held and (line is None or len(held) >= buffer_lines):
                if prefixes is not None:
                    asked["prefixes"] = take_prefixes(prefixes, len(held), done + 1)
                yield from zip(held, self.search(held, first=done + 1, **asked), strict=True)
                done += len(held)
                held = []

    def _check_n_best(self, n_best: int, *, drawn: bool = False, prefixed: bool = False, split: bool = False) -> None:
        beam = self.settings.beam_size
        if type(n_best) is not int:
            raise ConfigError(f"n_best is {shown(n_best)}: give a whole number")
        if n_best < 1 or (n_best > beam and not drawn):
            raise ConfigError(f"--n-best {n_best}: must be from 1 to the beam size, {beam}: raise --beam")
        if (split or self.settings.long_inputs == "split") and (n_best > 1 or prefixed):
            option = "--split" if split else "--long split"
            raise ConfigError(f"{option} takes the best output of each part: leave out --n-best and prefixes")


class _Part(NamedTuple):
    """A sentence, or a part of one that is too long.

    Attributes:
        owner: The index of the sentence.
        begin: Its tag and a space, or nothing.
        text: The rest.
        first_word: The number, from 0, of the first word of the rest in the sentence.
    """

    owner: int
    begin: str
    text: str
    first_word: int

    @property
    def source(self) -> str:
        """The text that the encoder reads: without the tag too if there is nothing else to read."""
        return self.begin + self.text if plain_spaces(self.text).strip() else ""


class _Found(NamedTuple):
    """What was found for sentences.

    Attributes:
        texts: The sentences without their tags.
        parts: Them, or their parts.
        outputs: The outputs of each part.
    """

    texts: Sequence[str]
    parts: Sequence[_Part]
    outputs: list[list[Output]]

    def join(self, *, keep_spaces: bool) -> list[list[Output]]:
        """An output for each sentence; see :func:`join_outputs`."""
        sources = (self.texts, [part.text for part in self.parts]) if keep_spaces else None
        return join_outputs(self.outputs, [part.owner for part in self.parts], sources)


def _checked(settings: DecodingConfig) -> DecodingConfig:
    """Settings from a caller in Python, who may have copied them with values that no option takes."""
    if not isinstance(settings, DecodingConfig):
        raise ConfigError(
            f"settings is {shown(settings)}: give a DecodingConfig, such as "
            "open_bundle(path).decoding.model_copy(update={'beam_size': 8})"
        )
    return complete_config({"decoding": settings.model_dump(warnings=False)}, "settings").decoding


def check_strings(name: str, given: Iterable[str]) -> list[str]:
    """A list of strings, from a caller in Python.

    Args:
        name: What they are.
        given: The strings.

    Raises:
        DataError: It is one string, whose letters would be taken for sentences; or holds something else than text.
    """
    if isinstance(given, str):
        raise DataError(f"{name} is the string {shown(given)}: give a list of strings, [{shown(given)}]")
    texts = list(given)
    for number, text in enumerate(texts, 1):
        try:
            text.encode()
        except (AttributeError, UnicodeEncodeError):
            raise DataError(f"number {number} of {name} is {shown(text)}, which is not text: give strings") from None
    return texts


class Translator(TextDecoder):
    """Translates sentences.

    Attributes:
        tags: What tells the directions of a model of several apart; None where sentences are taken as they are.
        is_guided: Whether an attention head of the model was trained on alignments.
        src_lang: Code of the source language, if there is one and it is known.
    """

    tags: Tags | None = None
    src_lang: str | None = None
    is_guided: bool = False
    _has_warned: bool = False

    @classmethod
    def from_bundle(cls, opened: Bundle, engine: TorchEngine, settings: DecodingConfig) -> Self:
        """See :meth:`TextDecoder.from_bundle`.

        Raises:
            DataError: The bundle is a parser.
        """
        opened.check_translates("use `dst parse`, or name the bundle of a translation model")
        translator = cls(engine, opened.tokenizer, settings)
        translator.tags = Tags(opened.directions) if opened.directions else None
        translator.is_guided = opened.is_guided
        translator.src_lang = opened.src_lang
        return translator

    def describe(self) -> dict[str, Any]:
        """See :meth:`TextDecoder.describe`; with the language that :attr:`tags` chooses, if there is one."""
        target = self.tags.target if self.tags is not None else None
        return super().describe() | ({"to": target} if target is not None else {})

    @property
    def model(self) -> Transformer:
        """The model of a PyTorch engine, of an ensemble the first."""
        assert isinstance(self.engine, TorchEngine)
        return self.engine.model

    @property
    def max_input_tokens(self) -> int:
        """Maximum tokens of a sentence; 0: any number. See :meth:`SearchEngine.max_input_tokens`."""
        return self.engine.max_input_tokens(self.settings)

    def search(
        self,
        sentences: Sequence[str],
        *,
        n_best: int = 1,
        prefixes: Sequence[str] | None = None,
        sampling: Sampling | None = None,
        alignments: bool = False,
        split: bool = False,
        progress: Advance | None = None,
        first: int = 1,
    ) -> list[list[Output]]:
        """As :meth:`TextDecoder.search`, and with more to ask for.

        Args:
            sentences: The sentences.
            n_best: Outputs per sentence. A search that finishes fewer returns those.
            prefixes: What the outputs of each sentence begin with; an empty string for anything. A prefix ends with a
                whole piece, because it is encoded separately.
            sampling: Draw the outputs instead of searching for the best; they are in the order of drawing.
            alignments: Find the :attr:`Output.alignment` of each output.
            split: The sentences are texts of several: divide them, and join the outputs with the spaces and line ends
                of the texts.
            progress: Called after each batch with the number of its sentences.
            first: Number of the first sentence in warnings and errors, and for the random numbers of sampling.

        Raises:
            ConfigError: ``n_best`` is more than the beam; inputs are split, and n_best or prefixes are given; or the
                engine can neither sample nor align.
            UserError: The package that divides texts is not installed.
            DataError: A sentence or its prefix is longer than memory allows; or without a limit, than the positions
                that the model has learned.
        """
        found = self._search_parts(
            check_strings("sentences", sentences), n_best, prefixes, sampling, alignments, split, progress, first
        )
        return found.join(keep_spaces=split) if split or len(found.outputs) > len(found.texts) else found.outputs

    def _search_parts(
        self,
        texts: Sequence[str],
        n_best: int,
        prefixes: Sequence[str] | None,
        sampling: Sampling | None,
        alignments: bool,
        split: bool,
        progress: Advance | None,
        first: int,
    ) -> _Found:
        """The outputs of the sentences, or of their parts; see :meth:`search`."""
        self._check_n_best(n_best, drawn=sampling is not None, prefixed=prefixes is not None, split=split)
        if sampling is not None and not isinstance(self.engine, TorchEngine):
            raise ConfigError("this engine cannot sample: leave out --sample, or use --engine torch")
        aligner = self._build_aligner() if alignments else None
        parts, untagged = self._divide(texts, first, split=split)
        src = self.tokenizer.src.encode([part.source for part in parts])
        found = self.search_ids(
            src,
            n_best=n_best,
            prefixes=self.tokenizer.encode(check_strings("prefixes", prefixes)) if prefixes is not None else (),
            sampling=sampling,
            progress=progress,
            numbers=[first + part.owner for part in parts],
        )
        # One call of SentencePiece for all of them: one for each costs 2% of the time.
        decoded = iter(self.tokenizer.decode([one.tokens for hypotheses in found for one in hypotheses]))
        outputs = [
            [Output(plain_spaces(next(decoded)), one.score, one.log_probability, one.tokens) for one in hypotheses]
            for hypotheses in found
        ]
        if aligner is not None:
            outputs = self._align(aligner, parts, src, outputs)
        return _Found(untagged, parts, outputs)

    def _divide(self, sentences: Sequence[str], first: int, *, split: bool) -> tuple[list[_Part], Sequence[str]]:
        """The sentences with their tags, or their parts, if they or long ones are split; and those without tags."""
        texts, owners, limit = list(sentences), list(range(len(sentences))), self.max_input_tokens
        begins = [""] * len(texts)
        are_split = self.settings.long_inputs == "split"
        if self.tags is not None:
            begins, texts = self.tags.split(sentences, first)
        elif split or are_split:
            begins, texts = split_symbols(texts, self.tokenizer.src)
        numbers = [
            words_before(sentence[: len(sentence) - len(text)], text)
            for sentence, text in zip(sentences, texts, strict=True)
        ]
        untagged = texts
        if split:
            texts, owners = split_sentences(untagged, self.src_lang)
        elif are_split:
            limits = [max(1, limit - 1) if limit and begin else limit for begin in begins]  # the tag is a token
            texts, owners = split_long(untagged, self.tokenizer.src.encode(untagged), limits, self.tokenizer.src)
        if split or are_split:
            firsts = first_words(untagged, texts, owners)
            numbers = [numbers[owner] + number for owner, number in zip(owners, firsts, strict=True)]
        parts = [
            _Part(owner, begins[owner], text, number)
            for owner, text, number in zip(owners, texts, numbers, strict=True)
        ]
        return parts, untagged

    def _build_aligner(self) -> Aligner:
        """What aligns the outputs.

        Raises:
            ConfigError: The engine is not PyTorch's.
        """
        if not isinstance(self.engine, TorchEngine):
            raise ConfigError("this engine cannot align: leave out alignments, or use --engine torch")
        if not self.is_guided and not self._has_warned:
            self._has_warned = True
            logger.warning("the model was trained without guided alignment (loss.guided_alignment): it aligns badly")
        aligner = Aligner(self.model, self.tokenizer, batch_tokens=self.settings.batch_tokens)
        aligner.is_guided = self.is_guided
        return aligner

    def _align(
        self, aligner: Aligner, parts: Sequence[_Part], src: Sequence[Sequence[int]], outputs: list[list[Output]]
    ) -> list[list[Output]]:
        """The outputs with their alignments, in which the words of a source are those of the whole sentence."""
        words = words_of_pieces(self.tokenizer.src, [part.source for part in parts])
        limit = self.max_input_tokens or None
        sources = []
        for part, ids, words_of_part in zip(parts, src, words, strict=True):
            tag = 1 if part.begin else 0
            numbers = [word - tag + part.first_word if word >= tag else -1 for word in words_of_part[:limit]]
            sources.append(Pieces(ids[:limit], numbers))
        repeated = [source for source, found in zip(sources, outputs, strict=True) for _ in found]
        tokens = [one.tokens for found in outputs for one in found]
        assert isinstance(self.engine, TorchEngine)
        with evaluating(self.engine.ensemble):
            targets = [Pieces(ids, words_of_output(self.tokenizer, ids)) for ids in tokens]
            links = iter(aligner.align_pieces(repeated, targets))
        return [[one._replace(alignment=next(links)) for one in found] for found in outputs]

    def translate_ids(self, src: Sequence[Sequence[int]]) -> list[list[int]]:
        """The tokens of the best output of each sentence; see :meth:`search_ids`."""
        return [hypotheses[0].tokens for hypotheses in self.search_ids(src)]

    def search_ids(
        self,
        src: Sequence[Sequence[int]],
        *,
        n_best: int = 1,
        prefixes: Sequence[Sequence[int]] = (),
        sampling: Sampling | None = None,
        progress: Advance | None = None,
        numbers: Sequence[int] | None = None,
    ) -> list[list[Hypothesis]]:
        """As :meth:`search`, on token ids without begin and end on both sides; in batches of similar length.

        Args:
            src: The sentences.
            n_best: Outputs per sentence.
            prefixes: The tokens that the outputs of each sentence begin with; none if empty.
            sampling: See :meth:`search`.
            progress: See :meth:`search`.
            numbers: The number of each sentence in the text; None counts from 1.
        """
        numbers = range(1, len(src) + 1) if numbers is None else numbers
        src = limit_inputs(src, numbers, limit=self.max_input_tokens, how=self.settings.long_inputs)
        if sampling is not None:
            assert isinstance(self.engine, TorchEngine)
            return self.engine.sample(
                src, self.settings, sampling, numbers=numbers, count=n_best, prefixes=prefixes, progress=progress
            )
        return self.engine.search(
            src, self.settings, numbers=numbers, n_best=n_best, prefixes=prefixes, progress=progress
        )
