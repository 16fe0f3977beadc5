"""Text in, text out: what translators and parsers have in common, and the translator."""

from __future__ import annotations

import logging
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, groupby, islice
from pathlib import Path
from typing import Any, NamedTuple, Self

import torch

from dstransformer.config import DecodingConfig, complete_config
from dstransformer.corpus import Tokenizer
from dstransformer.corpus.directions import Tags
from dstransformer.corpus.tokenizer import plain_spaces
from dstransformer.decoding.beam import Hypothesis
from dstransformer.decoding.engine import SearchEngine, TorchEngine
from dstransformer.decoding.sampling import Sampling
from dstransformer.errors import ConfigError, DataError, shown
from dstransformer.model import Bundle, Transformer, open_bundle
from dstransformer.terminal.progress import Advance

logger = logging.getLogger(__name__)

#: Lines of a stream that are held at a time: enough to sort them into batches of similar length.
BUFFER_LINES = 4096

#: Where a sentence can end: spaces after its last character, closing quotation marks and brackets included.
_SENTENCE_END = re.compile(r"""(?<=[.!?…])\s+|(?<=[.!?…]["'”’»)\]])\s+|(?<=[。！？])\s*""")

#: A text after which Chinese and Japanese have no space: it ends with kana, an ideograph or their punctuation.
_NO_SPACE_FOLLOWS = re.compile("[\u3000-\u30ff\u3400-\u9fff\uf900-\ufaff\uff00-\uffef][”’]*$")


class Output(NamedTuple):
    """One output of a sentence.

    Attributes:
        text: Detokenised, on one line; a tree, if the model is a parser.
        score: See :class:`Hypothesis`.
        log_probability: See :class:`Hypothesis`.
        tokens: See :class:`Hypothesis`.
    """

    text: str
    score: float
    log_probability: float
    tokens: list[int]


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
        others: Sequence[str | Path] = (),
        device: str | torch.device | None = None,
        dtype: torch.dtype | None = None,
        settings: DecodingConfig | None = None,
        keep_nan: bool = False,
    ) -> Self:
        """Load a bundle, or several that decode together, to decode with PyTorch.

        Args:
            bundle: A folder that :func:`dstransformer.model.open_bundle` opens, or a bundle that it returned.
            others: More such folders.
            device: See :meth:`TorchEngine.load`.
            dtype: See :meth:`TorchEngine.load`.
            settings: None takes the settings of the first bundle's configuration.
            keep_nan: See :class:`TorchEngine`.

        Raises:
            DataError: A folder is not a valid bundle, or one of the other kind; or the tokenizers differ.
            ConfigError: The device does not exist, or a setting is out of bounds.
        """
        opened = [bundle if isinstance(bundle, Bundle) else open_bundle(bundle), *map(open_bundle, others)]
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
        self,
        sentences: Sequence[str],
        *,
        n_best: int = 1,
        prefixes: Sequence[str] | None = None,
        sampling: Sampling | None = None,
        progress: Advance | None = None,
        first: int = 1,
    ) -> list[list[Output]]:
        """The best outputs of each sentence, best first; one that is empty for an empty sentence.

        Args:
            sentences: The sentences.
            n_best: Outputs per sentence. A search that finishes fewer returns those.
            prefixes: What the outputs of each sentence begin with; an empty string for anything. A prefix ends with a
                whole piece, because it is encoded separately.
            sampling: Draw the outputs instead of searching for the best; they are in the order of drawing.
            progress: Called after each batch with the number of its sentences.
            first: Number of the first sentence in warnings and errors, and for the random numbers of sampling.

        Raises:
            ConfigError: ``n_best`` is more than the beam, or long inputs are split and n_best or prefixes are given.
            DataError: A sentence or its prefix is longer than memory allows; or without a limit, than the positions
                that the model has learned.
        """

    def translate(self, sentences: Sequence[str], progress: Advance | None = None, *, first: int = 1) -> list[str]:
        """The best output of each sentence; see :meth:`search`."""
        return [outputs[0].text for outputs in self.search(sentences, progress=progress, first=first)]

    def iter_search(
        self,
        lines: Iterable[str | None],
        *,
        n_best: int = 1,
        prefixes: Iterator[str] | None = None,
        sampling: Sampling | None = None,
        buffer_lines: int = BUFFER_LINES,
        progress: Advance | None = None,
    ) -> Iterator[tuple[str, list[Output]]]:
        """Each line of a stream of any length with its outputs, in order, holding at most ``buffer_lines`` at a time.

        A None in the stream means that it pauses: the lines held so far are translated. For the other arguments see
        :meth:`search`.

        Raises:
            DataError: See :meth:`search`; or there are fewer prefixes than lines.
        """
        held: list[str] = []
        done = 0
        for line in chain(lines, [None]):
            if line is not None:
                held.append(line)
            if held and (line is None or len(held) >= buffer_lines):
                found = self.search(
                    held,
                    n_best=n_best,
                    prefixes=None if prefixes is None else take_prefixes(prefixes, len(held), done + 1),
                    sampling=sampling,
                    progress=progress,
                    first=done + 1,
                )
                yield from zip(held, found, strict=True)
                done += len(held)
                held = []

    def _check_request(self, n_best: int, prefixes: Sequence[str] | None, sampling: Sampling | None) -> None:
        beam = self.settings.beam_size
        if type(n_best) is not int:
            raise ConfigError(f"n_best is {shown(n_best)}: give a whole number")
        if n_best < 1 or (n_best > beam and sampling is None):
            raise ConfigError(f"--n-best {n_best}: must be from 1 to the beam size, {beam}: raise --beam")
        if self.settings.long_inputs == "split" and (n_best > 1 or prefixes is not None):
            raise ConfigError("--long split takes the best output of each part: leave out --n-best and prefixes")


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
    """

    tags: Tags | None = None
    is_guided: bool = False

    @classmethod
    def from_bundle(cls, opened: Bundle, engine: TorchEngine, settings: DecodingConfig) -> Self:
        """See :meth:`TextDecoder.from_bundle`.

        Raises:
            DataError: The bundle is a parser.
        """
        if opened.trees is not None:
            raise DataError(f"{opened.path} is a parser: use `dst parse`, or name the bundle of a translation model")
        translator = cls(engine, opened.tokenizer, settings)
        translator.tags = Tags(opened.directions) if opened.directions else None
        translator.is_guided = opened.is_guided
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
        progress: Advance | None = None,
        first: int = 1,
    ) -> list[list[Output]]:
        """See :meth:`TextDecoder.search`.

        Raises:
            ConfigError: ``n_best`` is more than the beam; long inputs are split, and n_best or prefixes are given; or
                the engine cannot sample.
            DataError: A sentence or its prefix is longer than memory allows; or without a limit, than the positions
                that the model has learned.
        """
        self._check_request(n_best, prefixes, sampling)
        if sampling is not None and not isinstance(self.engine, TorchEngine):
            raise ConfigError("this engine cannot sample: leave out --sample, or use --engine torch")
        texts = check_strings("sentences", sentences)
        count = len(texts)
        src, owners = self._encode(texts, first)
        found = self.search_ids(
            src,
            n_best=n_best,
            prefixes=self.tokenizer.encode(check_strings("prefixes", prefixes)) if prefixes is not None else (),
            sampling=sampling,
            progress=progress,
            numbers=[first + owner for owner in owners],
        )
        outputs = self._outputs(found)
        return outputs if len(outputs) == count else join_outputs(outputs, owners)

    def _encode(self, sentences: Sequence[str], first: int) -> tuple[list[list[int]], list[int]]:
        """The tokens of the sentences, or of their parts if long ones are split, and the sentence of each."""
        texts, owners, limit = list(sentences), list(range(len(sentences))), self.max_input_tokens
        begins = [""] * len(texts)
        are_split = self.settings.long_inputs == "split"
        if self.tags is not None:
            begins, texts = self.tags.split(sentences, first)
        elif are_split:
            begins, texts = split_symbols(texts, self.tokenizer.src)
        if are_split:
            limits = [max(1, limit - 1) if limit and begin else limit for begin in begins]  # the tag is a token
            texts, owners = split_long(texts, self.tokenizer.src.encode(texts), limits, self.tokenizer.src)
        return self.tokenizer.src.encode([begins[o] + text for o, text in zip(owners, texts, strict=True)]), owners

    def _outputs(self, found: Sequence[Sequence[Hypothesis]]) -> list[list[Output]]:
        """The outputs with their texts. A call of SentencePiece for all of them; one for each costs 2% of the time."""
        texts = iter(self.tokenizer.decode([one.tokens for hypotheses in found for one in hypotheses]))
        return [
            [Output(plain_spaces(next(texts)), one.score, one.log_probability, one.tokens) for one in hypotheses]
            for hypotheses in found
        ]

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
        src = limit_inputs(src, numbers, limit=self.max_input_tokens, refuse=self.settings.long_inputs == "refuse")
        if sampling is not None:
            assert isinstance(self.engine, TorchEngine)
            return self.engine.sample(
                src, self.settings, sampling, numbers=numbers, count=n_best, prefixes=prefixes, progress=progress
            )
        return self.engine.search(
            src, self.settings, numbers=numbers, n_best=n_best, prefixes=prefixes, progress=progress
        )


def limit_inputs(
    src: Sequence[Sequence[int]], numbers: Sequence[int], *, limit: int, refuse: bool
) -> list[Sequence[int]]:
    """Cut sentences of more than ``limit`` tokens to their first, or leave them without tokens; with one warning.

    Args:
        src: The sentences.
        numbers: Their numbers, for the warning.
        limit: Maximum tokens of a sentence, and those that are kept of a longer one; 0: any number.
        refuse: Keep none.
    """
    long = [index for index, ids in enumerate(src) if limit and len(ids) > limit]
    if not long:
        return list(src)
    done = "it gets no output" if refuse else f"only its first {limit:,} are translated"
    more = len(long) - 1
    others = (
        f", nor {'does' if more == 1 else 'do'} {more:,} more"
        if refuse
        else (f", and {more:,} more {'is' if more == 1 else 'are'} cut")
    )
    logger.warning(
        "sentence %d has %s tokens: %s (--max-input-tokens)%s; split it, or let --long split do so",
        numbers[long[0]], f"{len(src[long[0]]):,}", done, others if more else "",
    )  # fmt: skip
    return [ids if len(ids) <= limit else [] if refuse else ids[:limit] for ids in src]


def split_symbols(texts: Sequence[str], tokenizer: Tokenizer) -> tuple[list[str], list[str]]:
    """Divide texts into the tag and the space that each begins with, or nothing, and the rest.

    A tag is a first word that is a symbol of the tokenizer.
    """
    tags = {symbol.removeprefix("▁") for symbol in tokenizer.symbols if symbol.startswith("▁")}
    found = [text.lstrip().partition(" ") for text in texts]
    begins = [f"{word} " if word in tags else "" for word, _, _ in found]
    rests = [rest if begin else text for text, begin, (_, _, rest) in zip(texts, begins, found, strict=True)]
    return begins, rests


def split_long(
    texts: Sequence[str], ids: Sequence[Sequence[int]], limits: Sequence[int], tokenizer: Tokenizer
) -> tuple[list[str], list[int]]:
    """Divide texts of more tokens than their limits into parts of whole sentences, as many in a part as fit.

    A single sentence that is too long stays whole. Between the sentences of a part is what was there in the text.

    Args:
        texts: The texts.
        ids: Their tokens.
        limits: Maximum tokens of a part of each text; 0: any number.
        tokenizer: Counts the tokens of the sentences.

    Returns:
        The parts, and the index of the text of each.
    """
    parts: list[str] = []
    owners: list[int] = []
    for index, (text, tokens, limit) in enumerate(zip(texts, ids, limits, strict=True)):
        divided = [text] if not limit or len(tokens) <= limit else _pack_sentences(text, limit, tokenizer)
        parts += divided
        owners += [index] * len(divided)
    return parts, owners


def _pack_sentences(text: str, limit: int, tokenizer: Tokenizer) -> list[str]:
    spans = _sentence_spans(text)
    # A tokenizer that does not normalise makes tokens of the spaces between two sentences too.
    ends = [begin for begin, _ in spans[1:]] + [len(text)]
    with_spaces = [text[begin:end] for (begin, _), end in zip(spans, ends, strict=True)]
    parts: list[tuple[int, int]] = []
    room = 0
    for (begin, end), tokens in zip(spans, map(len, tokenizer.encode(with_spaces)), strict=True):
        if parts and tokens <= room:
            parts[-1] = (parts[-1][0], end)
            room -= tokens
        else:
            parts.append((begin, end))
            room = limit - tokens
    return [text[begin:end] for begin, end in parts]


def _sentence_spans(text: str) -> list[tuple[int, int]]:
    """Where each sentence of a text begins and ends; a text of spaces is one sentence."""
    spans: list[tuple[int, int]] = []
    begin = 0
    for separator in _SENTENCE_END.finditer(text):
        spans.append((begin, separator.start()))
        begin = separator.end()
    spans.append((begin, len(text)))
    return [span for span in spans if text[slice(*span)].strip()] or [(0, len(text))]


def join_outputs(outputs: Sequence[list[Output]], owners: Sequence[int]) -> list[list[Output]]:
    """Join the best outputs of the parts of each text; scores and log-probabilities are the sums.

    The texts are joined by a space, or by nothing where Chinese and Japanese have none: the target may have spaces
    where the source has none, and the reverse.
    """
    joined = []
    for _, group in groupby(zip(owners, outputs, strict=True), key=lambda pair: pair[0]):
        best = [found[0] for _, found in group]
        text = _join_texts([one.text for one in best if one.text])
        score, log_probability = sum(one.score for one in best), sum(one.log_probability for one in best)
        joined.append([Output(text, score, log_probability, [token for one in best for token in one.tokens])])
    return joined


def _join_texts(texts: Sequence[str]) -> str:
    spaced = [text if _NO_SPACE_FOLLOWS.search(text) else f"{text} " for text in texts[:-1]]
    return "".join([*spaced, *texts[-1:]])


def take_prefixes(prefixes: Iterator[str], count: int, first: int) -> list[str]:
    """The prefixes of the next ``count`` lines, of which ``first`` is the number of the first.

    Raises:
        DataError: There are fewer prefixes than lines.
    """
    taken = list(islice(prefixes, count))
    if len(taken) < count:
        raise DataError(f"there is no prefix for line {first + len(taken)}: --prefix-file needs one for every line")
    return taken
