"""Translation of sentences with one trained model or several, on any device."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, Self

import torch

from dstransformer.batching import plan_batches
from dstransformer.config import DecodingConfig
from dstransformer.corpus import EOS_ID, Tokenizer
from dstransformer.corpus.tokenizer import plain_spaces
from dstransformer.decoding.beam import Constraint, Hypothesis, beam_search
from dstransformer.decoding.devices import choose_device, free_memory, memory_errors
from dstransformer.decoding.ensemble import Ensemble, check_vocabularies
from dstransformer.decoding.lengths import output_limits
from dstransformer.decoding.long_inputs import join_outputs, split_long
from dstransformer.decoding.prefixes import take_prefixes
from dstransformer.decoding.sampling import Sampling, sample
from dstransformer.errors import ConfigError, DataError
from dstransformer.model import Bundle, Packing, Transformer, open_bundle, ops

logger = logging.getLogger(__name__)

#: Lines of a stream that are held at once: enough to sort them into batches of similar length.
BUFFER_LINES = 4096

#: More hypotheses per sentence than this take proportionally fewer source tokens at once, so that they need about the
#: same memory.
FULL_BATCH_BEAM = 8

Progress = Callable[[int], None]


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


class Translator:
    """Translates with models, their tokenizer and the settings of the search.

    Args:
        model: The model, on the device and in the precision to decode with. It is in eval mode only while it
            translates.
        tokenizer: The tokenizer that the model was trained with.
        settings: Beam size, length penalty and limits.
        others: Models with the same tokenizer, device and precision that decode together with it, as an ensemble.

    Attributes:
        identity: SHA-256 of the weights of each model, if they were loaded from bundles.
    """

    def __init__(
        self, model: Transformer, tokenizer: Tokenizer, settings: DecodingConfig, others: Sequence[Transformer] = ()
    ) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.settings = settings
        self._ensemble = Ensemble([model, *others])
        self.identity: tuple[str, ...] = ()

    @classmethod
    def load(
        cls,
        bundle: str | Path | Bundle,
        *,
        others: Sequence[str | Path] = (),
        device: str | torch.device | None = None,
        dtype: torch.dtype | None = None,
        settings: DecodingConfig | None = None,
    ) -> Self:
        """Load a bundle, or several that decode together.

        Args:
            bundle: A folder that :func:`dstransformer.model.open_bundle` opens, or a bundle that it returned.
            others: More such folders.
            device: None chooses CUDA if it is available, else the CPU.
            dtype: None chooses bf16 on CUDA, else fp32.
            settings: None takes the settings of the first bundle's configuration.

        Raises:
            DataError: A folder is not a valid bundle, or the tokenizers differ.
            ConfigError: The device does not exist.
        """
        opened = [bundle if isinstance(bundle, Bundle) else open_bundle(bundle), *map(open_bundle, others)]
        check_vocabularies([(str(one.path), one.tokenizer.identity) for one in opened])
        chosen = choose_device(device)
        half_or_full = dtype or (torch.bfloat16 if chosen.type == "cuda" else torch.float32)
        models = [one.build_model(chosen, half_or_full) for one in opened]
        translator = cls.from_bundle(opened[0], models, settings or opened[0].decoding)
        translator.identity = tuple(one.weights_sha256 for one in opened)
        return translator

    @classmethod
    def from_bundle(cls, opened: Bundle, models: Sequence[Transformer], settings: DecodingConfig) -> Self:
        """Put a bundle's tokenizer and models together, of which the first is the bundle's own.

        Raises:
            DataError: The bundle is a parser.
        """
        if opened.trees is not None:
            raise DataError(f"{opened.path} is a parser: use `dst parse`, or name the bundle of a translation model")
        return cls(models[0], opened.tokenizer, settings, models[1:])

    @property
    def most_input_tokens(self) -> int:
        """Most tokens of a sentence: ``max_input_tokens``, but no more than have learned positions; 0: any number."""
        most, learned = self.settings.max_input_tokens, self._ensemble.max_positions
        return most if learned is None or not most else min(most, learned - 1)

    def translate(self, sentences: Sequence[str], progress: Progress | None = None, *, first: int = 1) -> list[str]:
        """The best output of each sentence; see :meth:`search`."""
        return [outputs[0].text for outputs in self.search(sentences, progress=progress, first=first)]

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
        """The best outputs of each sentence, best first; one that is empty for an empty sentence.

        Args:
            sentences: The sentences.
            n_best: Outputs per sentence. A search that finishes fewer returns those.
            prefixes: What the outputs of each sentence begin with; an empty string for anything. A prefix ends with a
                whole piece: it is encoded by itself.
            sampling: Draw the outputs instead of searching for the best; they are in the order of drawing.
            progress: Called after each batch with the number of its sentences.
            first: Number of the first sentence in warnings and errors, and for the random numbers of sampling.

        Raises:
            ConfigError: ``n_best`` is more than the beam, or long inputs are split and n_best or prefixes are given.
            DataError: A sentence or its prefix is longer than memory allows; or without a limit, than the positions
                that the model has learned.
        """
        self._check_request(n_best, prefixes, sampling)
        texts, owners = list(sentences), list(range(len(sentences)))
        src = self.tokenizer.src.encode(texts)
        if self.settings.long_inputs == "split":
            texts, owners = split_long(texts, src, self.most_input_tokens, self.tokenizer.src)
            src = self.tokenizer.src.encode(texts)
        found = self.search_ids(
            src,
            n_best=n_best,
            prefixes=self.tokenizer.encode(prefixes) if prefixes is not None else (),
            sampling=sampling,
            progress=progress,
            numbers=[first + owner for owner in owners],
        )
        outputs = self._outputs(found)
        return outputs if len(outputs) == len(sentences) else join_outputs(outputs, owners)

    def _check_request(self, n_best: int, prefixes: Sequence[str] | None, sampling: Sampling | None) -> None:
        beam = self.settings.beam_size
        if n_best < 1 or (n_best > beam and sampling is None):
            raise ConfigError(f"--n-best {n_best}: must be from 1 to the beam size, {beam}: raise --beam")
        if self.settings.long_inputs == "split" and (n_best > 1 or prefixes is not None):
            raise ConfigError("--long split takes the best output of each part: leave out --n-best and prefixes")

    def _outputs(self, found: Sequence[Sequence[Hypothesis]]) -> list[list[Output]]:
        """The outputs with their texts. A call of SentencePiece for all of them; one for each costs 2% of the time."""
        texts = iter(self.tokenizer.decode([one.tokens for hypotheses in found for one in hypotheses]))
        return [
            [Output(plain_spaces(next(texts)), one.score, one.log_probability, one.tokens) for one in hypotheses]
            for hypotheses in found
        ]

    def iter_search(
        self,
        lines: Iterable[str | None],
        *,
        n_best: int = 1,
        prefixes: Iterator[str] | None = None,
        sampling: Sampling | None = None,
        buffer_lines: int = BUFFER_LINES,
        progress: Progress | None = None,
    ) -> Iterator[tuple[str, list[Output]]]:
        """Each line of a stream of any length with its outputs, in order, holding at most ``buffer_lines`` at once.

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

    def describe(self) -> dict[str, Any]:
        """The settings of the search, the device and the precision, as plain data."""
        weight = self.model.softmax_weight
        precision = ops.precision_name(weight.dtype)
        return {**self.settings.model_dump(), "device": str(weight.device), "precision": precision}

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
        progress: Progress | None = None,
        numbers: Sequence[int] | None = None,
        constrain: Callable[[Sequence[int]], Constraint] | None = None,
    ) -> list[list[Hypothesis]]:
        """As :meth:`search`, on token ids without begin and end on both sides; in batches of similar length.

        Args:
            src: The sentences.
            n_best: Outputs per sentence.
            prefixes: The tokens that the outputs of each sentence begin with; none if empty.
            sampling: See :meth:`search`.
            progress: See :meth:`search`.
            numbers: The number of each sentence in the text; None counts from 1.
            constrain: Makes the constraint of a batch from the places of its sentences in ``src``.
        """
        numbers = range(1, len(src) + 1) if numbers is None else numbers
        src = self._limit(src, numbers)
        self._check_lengths(src, prefixes, numbers)
        results = [[Hypothesis([], 0.0, 0.0)] for _ in src]
        lost: list[int] = []
        rows = n_best if sampling is not None else self.settings.beam_size
        batch_tokens = tokens_at_once(self.settings.batch_tokens, rows)
        with _evaluating(self._ensemble), memory_errors():
            for batch in plan_batches([len(ids) for ids in src], batch_tokens):
                given = [prefixes[place] for place in batch] if prefixes else ()
                sentences = [src[place] for place in batch]
                if sampling is not None:
                    found = self._sample(sentences, given, sampling, n_best, [numbers[place] for place in batch])
                else:
                    found = self._search(sentences, given, n_best, None if constrain is None else constrain(batch))
                for place, hypotheses in zip(batch, found, strict=True):
                    results[place] = hypotheses or results[place]
                    if not hypotheses:
                        lost.append(numbers[place])
                if progress is not None:
                    progress(len(batch))
        if progress is not None and (empty := sum(not ids for ids in src)):
            progress(empty)
        if lost:
            logger.warning(
                "%d of %d sentences have no output; the first is sentence %d: the model computes NaN for them in "
                "%s; try another --precision; if that does not help, the weights are damaged",
                len(lost), len(src), min(lost), str(self._ensemble.dtype).removeprefix("torch."),
            )  # fmt: skip
        return results

    def _pack(self, src: Sequence[Sequence[int]]) -> tuple[torch.Tensor, Packing]:
        packed = torch.tensor([token for ids in src for token in (*ids, EOS_ID)], device=self._ensemble.device)
        return packed, Packing.from_lengths([len(ids) + 1 for ids in src]).to(self._ensemble.device)

    def _search(
        self,
        src: Sequence[Sequence[int]],
        prefixes: Sequence[Sequence[int]],
        n_best: int,
        constraint: Constraint | None,
    ) -> list[list[Hypothesis]]:
        vocab_size = self.tokenizer.vocab_size
        return beam_search(
            self._ensemble, *self._pack(src), self.settings,
            vocab_size=vocab_size, n_best=n_best, prefixes=prefixes, constraint=constraint,
        )  # fmt: skip

    def _sample(
        self,
        src: Sequence[Sequence[int]],
        prefixes: Sequence[Sequence[int]],
        sampling: Sampling,
        count: int,
        numbers: Sequence[int],
    ) -> list[list[Hypothesis]]:
        packed, packing = self._pack(src)
        limits = output_limits(packing, self.settings, most=self._ensemble.max_positions, prefixes=prefixes)
        return sample(
            self._ensemble, packed, packing, sampling,
            vocab_size=self.tokenizer.vocab_size, count=count, limits=limits, numbers=numbers,
            alpha=self.settings.length_penalty, min_tokens=self.settings.min_tokens, prefixes=prefixes,
        )  # fmt: skip

    def _limit(self, src: Sequence[Sequence[int]], numbers: Sequence[int]) -> list[Sequence[int]]:
        """Cut or leave out sentences beyond :attr:`most_input_tokens`; see :func:`limit_inputs`."""
        return limit_inputs(src, numbers, most=self.most_input_tokens, refuse=self.settings.long_inputs == "refuse")

    def _check_lengths(
        self, src: Sequence[Sequence[int]], prefixes: Sequence[Sequence[int]], numbers: Sequence[int]
    ) -> None:
        """Refuse sentences and prefixes that exceed the learned positions or the memory."""
        most = self._ensemble.max_positions
        for what, texts in (("", src), ("the prefix of ", prefixes)):
            for number, ids in zip(numbers, texts, strict=False):
                if most is not None and len(ids) + 1 > most:
                    raise DataError(
                        f"{what}sentence {number} has {len(ids) + 1} tokens with its end, the model has learned "
                        f"positions for {most} (model.max_positions): split the sentence"
                    )
        longest = max(range(len(src)), key=lambda place: len(src[place]), default=None)
        if longest is None:
            return
        beam = self.settings.beam_size
        limit = len(src[longest]) + 1 + self.settings.max_extra_tokens
        needed, free = beam * limit * self._ensemble.bytes_per_token, free_memory(self._ensemble.device)
        if needed > free:
            raise DataError(
                f"sentence {numbers[longest]}: a beam of {beam} and up to {limit:,} output tokens can need "
                f"{needed / 2**30:,.1f} GiB, and {free / 2**30:,.1f} GiB are free: lower --beam, --max-input-tokens or "
                "--max-extra-tokens"
            )


def tokens_at_once(batch_tokens: int, rows: int) -> int:
    """Source tokens of a batch with ``rows`` hypotheses per sentence; see :data:`FULL_BATCH_BEAM`."""
    return max(1, batch_tokens * FULL_BATCH_BEAM // max(rows, FULL_BATCH_BEAM))


def limit_inputs(
    src: Sequence[Sequence[int]], numbers: Sequence[int], *, most: int, refuse: bool
) -> list[Sequence[int]]:
    """Cut sentences of more than ``most`` tokens to their first, or leave them without tokens; with one warning.

    Args:
        src: The sentences.
        numbers: Their numbers, for the warning.
        most: Most tokens of a sentence, and those that are kept of a longer one; 0: any number.
        refuse: Keep none.
    """
    long = [place for place, ids in enumerate(src) if most and len(ids) > most]
    if not long:
        return list(src)
    done = "it gets no output" if refuse else f"only its first {most:,} are translated"
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
    return [ids if len(ids) <= most else [] if refuse else ids[:most] for ids in src]


@contextmanager
def _evaluating(models: Ensemble) -> Iterator[None]:
    was_training = [model.training for model in models.members]
    models.eval()
    try:
        yield
    finally:
        for model, mode in zip(models.members, was_training, strict=True):
            model.train(mode)
