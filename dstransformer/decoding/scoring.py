"""Forced decoding: how probable a model finds given translations."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dstransformer.data import Tokenizer
from dstransformer.data.directions import Tags, build_tags
from dstransformer.data.packing import PackedBatch, pack_pairs
from dstransformer.data.plan import plan_batches
from dstransformer.decoding.devices import choose_device, decode_batches, memory_errors
from dstransformer.decoding.texts import BUFFER_LINES
from dstransformer.errors import ConfigError, UserError, counted
from dstransformer.io.progress import Advance
from dstransformer.io.text import is_same_file, iter_file_pairs, writing_lines
from dstransformer.model import DTYPES, Bundle, Transformer, open_bundle
from dstransformer.model.loss import CHUNK_LOGITS

logger = logging.getLogger(__name__)

#: How scores are written.
ScoreFormat = Literal["text", "jsonl"]


class PairScore(NamedTuple):
    """How probable a model finds a translation.

    Attributes:
        log_probability: ``log p(target | source)`` in nats, the end of the sentence included; NaN if the pair is too
            long to be scored, or if the model computes it.
        tokens: Tokens of the target, with its end.
        is_long: Whether the pair is too long.
    """

    log_probability: float
    tokens: int
    is_long: bool = False

    @property
    def perplexity(self) -> float:
        """``exp(-log_probability / tokens)``."""
        return math.exp(min(-self.log_probability / self.tokens, 700.0))


class PairDecoder:
    """A model that reads given pairs of sentences.

    Args:
        model: The model, in eval mode, on the device and in the precision to compute with.
        tokenizer: The tokenizer that the model was trained with.
        batch_tokens: Maximum tokens of a batch on its longer side. No result depends on it, except for rounding.
        max_tokens: Pairs with a longer side have no result; 0: those with more than the model's learned positions.
    """

    def __init__(self, model: Transformer, tokenizer: Tokenizer, *, batch_tokens: int, max_tokens: int = 0) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.batch_tokens = batch_tokens
        learned = model.tgt_input.max_len
        self.max_tokens = min(filter(None, (max_tokens, learned and learned - 1)), default=0)
        self._device = model.softmax_weight.device

    @classmethod
    def load(
        cls,
        bundle: str | Path | Bundle,
        *,
        device: str | None = None,
        precision: str | None = None,
        batch_tokens: int | None = None,
        max_tokens: int | None = None,
    ) -> Self:
        """Load a bundle.

        Args:
            bundle: A folder that :func:`dstransformer.model.open_bundle` opens, or a bundle that it returned.
            device: None chooses CUDA if it is available, else the CPU.
            precision: ``fp32``, ``bf16`` or ``fp16``; None chooses bf16 on CUDA, else fp32.
            batch_tokens: None takes ``decoding.batch_tokens`` of the bundle.
            max_tokens: None takes ``decoding.max_input_tokens`` of the bundle.

        Raises:
            DataError: The folder is not a valid bundle, or it is a parser.
            ConfigError: A setting is out of bounds, or the device does not exist.
        """
        opened = open_bundle(bundle)
        opened.check_translates("name the bundle of a translation model")
        batch_tokens = opened.decoding.batch_tokens if batch_tokens is None else batch_tokens
        max_tokens = opened.decoding.max_input_tokens if max_tokens is None else max_tokens
        if batch_tokens < 1:
            raise ConfigError(f"--batch-tokens {batch_tokens}: a batch holds at least one token")
        if max_tokens < 0:
            raise ConfigError(f"--max-tokens {max_tokens}: give the most tokens of a sentence, or 0 for no limit")
        chosen = choose_device(device)
        default = "bf16" if chosen.type == "cuda" else "fp32"
        model = opened.build_model(chosen, DTYPES[precision or default])
        return cls(model, opened.tokenizer, batch_tokens=batch_tokens, max_tokens=max_tokens)


class Scorer(PairDecoder):
    """Scores sentence pairs with a model; for arguments see :class:`PairDecoder`.

    The scores are those of the tokens that the tokenizer makes of a text. Beam search may have written the same text
    with other tokens; then the score of its text differs from the score that the search gave.

    Attributes:
        tags: What tells the directions of a model of several apart; None where sentences are taken as they are.
    """

    tags: Tags | None = None

    @classmethod
    def load(cls, bundle: str | Path | Bundle, *, to: str | None = None, **options: Any) -> Self:
        """See :meth:`PairDecoder.load`, and for ``to`` :func:`dstransformer.decoding.commands.load_translator`.

        Raises:
            UserError: The model does not translate into that language.
        """
        opened = open_bundle(bundle)
        tags = build_tags(opened.directions, opened.src_lang, opened.tgt_lang, to)
        scorer = super().load(opened, **options)
        scorer.tags = tags
        return scorer

    def iter_score(
        self, pairs: Iterable[tuple[str, str]], buffer_pairs: int = BUFFER_LINES, progress: Advance | None = None
    ) -> Iterator[PairScore]:
        """Score a stream of pairs of any length in order, holding at most ``buffer_pairs`` at a time.

        Args:
            pairs: Source and target.
            buffer_pairs: Number of pairs that are sorted into batches of similar length.
            progress: Called after each batch with the number of its pairs.
        """
        stream, first = iter(pairs), 1
        while held := list(islice(stream, buffer_pairs)):
            sources, targets = zip(*held, strict=True)
            yield from self.score(sources, targets, progress, first=first)
            first += len(held)

    def score(
        self,
        sources: Sequence[str],
        targets: Sequence[str],
        progress: Advance | None = None,
        *,
        first: int = 1,
    ) -> list[PairScore]:
        """The score of each pair, in order. An empty side counts as a sentence without tokens.

        Args:
            sources: Source sentences.
            targets: The translation of each.
            progress: Called after each batch with the number of its pairs.
            first: Number of the first pair in errors.

        Raises:
            UserError: A source has no tag, but the model needs one; or a tag that the model does not know.
        """
        if self.tags is not None:
            sources = self.tags.join(sources, first)
        return self.score_ids(self.tokenizer.src.encode(sources), self.tokenizer.encode(targets), progress)

    @torch.inference_mode()
    def score_ids(
        self, src: Sequence[Sequence[int]], tgt: Sequence[Sequence[int]], progress: Advance | None = None
    ) -> list[PairScore]:
        """As :meth:`score`, on token ids without begin and end on both sides."""

        def score(batch: Sequence[int]) -> list[float]:
            sources, targets = join_sentences([src[n] for n in batch]), join_sentences([tgt[n] for n in batch])
            pairs = pack_pairs(*sources, *targets).to(self._device)
            found = token_log_probabilities(self.model, pairs).double()
            by_pair = torch.split(found, pairs.tgt_packing.lengths.tolist())
            return torch.stack([part.sum() for part in by_pair]).tolist()

        # plan_batches leaves out what is empty, so the lengths include the end.
        lengths = [max(len(source), len(target)) + 1 for source, target in zip(src, tgt, strict=True)]
        long = {n for n, length in enumerate(lengths) if self.max_tokens and length - 1 > self.max_tokens}
        scores = [PairScore(math.nan, len(target) + 1, n in long) for n, target in enumerate(tgt)]
        if long and progress is not None:
            progress(len(long))
        planned = [0 if n in long else length for n, length in enumerate(lengths)]
        with memory_errors("score", "lower --batch-tokens or --max-tokens"):
            batches = plan_batches(planned, self.batch_tokens)
            for n, log_probability in decode_batches(score, batches, progress):
                scores[n] = scores[n]._replace(log_probability=log_probability)
        return scores


def token_log_probabilities(model: Transformer, batch: PackedBatch) -> Tensor:
    """The log-probability of each token of ``batch.tgt_out`` after those before it, ``(tgt_tokens,)`` fp32.

    At most ``CHUNK_LOGITS`` logits are held at a time.
    """
    hidden = model(batch.src, batch.src_packing, batch.tgt_in, batch.tgt_packing)
    tokens = batch.tgt_out.numel()
    chunk = max(1, CHUNK_LOGITS[hidden.device.type] // model.softmax_weight.shape[0])
    parts = []
    for start in range(0, tokens, chunk):
        end = min(start + chunk, tokens)
        logits = model.logits(hidden[start:end]).float()
        wanted = logits.gather(1, batch.tgt_out[start:end, None]).squeeze(1)
        parts.append(wanted - logits.logsumexp(dim=-1))
    return torch.cat(parts)


def join_sentences(sentences: Sequence[Sequence[int]]) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """Tokens of sentences, one after the other, and their numbers."""
    ids = np.asarray([token for sentence in sentences for token in sentence], dtype=np.int32)
    return ids, np.asarray([len(sentence) for sentence in sentences], dtype=np.int32)


class Totals(NamedTuple):
    """What a file of pairs adds up to.

    Attributes:
        pairs: Number of pairs.
        long: Pairs that are too long for a score.
        first_long: Number of the first of these, from 1; 0 if there is none.
        nan: Pairs for which the model computes NaN.
        first_nan: Number of the first of these.
        log_probability: Sum over the others.
        tokens: Target tokens of the others.
    """

    pairs: int = 0
    long: int = 0
    first_long: int = 0
    nan: int = 0
    first_nan: int = 0
    log_probability: float = 0.0
    tokens: int = 0

    def plus(self, score: PairScore) -> Totals:
        """The totals with one more pair."""
        pairs = self.pairs + 1
        if score.is_long:
            return self._replace(pairs=pairs, long=self.long + 1, first_long=self.first_long or pairs)
        if math.isnan(score.log_probability):
            return self._replace(pairs=pairs, nan=self.nan + 1, first_nan=self.first_nan or pairs)
        log_probability, tokens = self.log_probability + score.log_probability, self.tokens + score.tokens
        return self._replace(pairs=pairs, log_probability=log_probability, tokens=tokens)

    def __str__(self) -> str:
        without = self.long + self.nan
        unscored = f" ({without:,} without a score)" if without else ""
        perplexity = PairScore(self.log_probability, self.tokens).perplexity if self.tokens else math.nan
        pairs, tokens = counted(self.pairs, "pair"), counted(self.tokens, "target token")
        return f"{pairs}{unscored}, {tokens}, perplexity {perplexity:.3f}"


def score_files(
    src: str,
    tgt: str,
    output: str | None,
    load: Callable[[], Scorer],
    *,
    output_format: ScoreFormat = "text",
    overwrite: bool = False,
    progress: Advance | None = None,
) -> Totals:
    """Score two text files, line by line, plain or gzipped, in bounded memory.

    Args:
        src: Source text.
        tgt: Its translation; line n belongs to line n of ``src``.
        output: The file appears once it is complete; None or ``-`` is standard output.
        load: Builds the scorer. It is called after the files have been checked.
        output_format: See :func:`format_score`.
        overwrite: Replace ``output`` if it exists.
        progress: Called with the number of pairs just scored.

    Raises:
        UserError: Both inputs are the same file, or the output exists or is an input.
        DataError: A file cannot be read, is empty or not UTF-8, or the numbers of lines differ.
        StorageError: The output cannot be written.
    """
    totals = Totals()
    with writing_lines(output, overwrite=overwrite, inputs=[src, tgt]) as write:
        pairs = open_pairs(src, tgt)
        scorer = load()
        for number, score in enumerate(scorer.iter_score(pairs, progress=progress), 1):
            write(format_score(number, score, output_format))
            totals = totals.plus(score)
    if totals.long:
        logger.warning(
            "%s of %s pairs have no score, as one side has more than %s tokens (--max-tokens); the first is line %d",
            f"{totals.long:,}", f"{totals.pairs:,}", f"{scorer.max_tokens:,}", totals.first_long,
        )  # fmt: skip
    if totals.nan:
        logger.warning(
            "%s of %s pairs have no score, as the model computes NaN for them; the first is line %d: try another "
            "--precision; if that does not help, the weights are damaged",
            f"{totals.nan:,}", f"{totals.pairs:,}", totals.first_nan,
        )  # fmt: skip
    return totals


def format_score(number: int, score: PairScore, output_format: ScoreFormat) -> str:
    """A score on one line: three columns separated by tabs, or a JSON object with the number of the line.

    A pair without a score has ``nan`` for log-probability and perplexity in the one, null in the other.
    """
    values = score.log_probability, score.perplexity
    if output_format == "text":
        return f"{values[0]:.4f}\t{score.tokens}\t{values[1]:.4f}"
    log_probability, perplexity = (round(value, 6) if math.isfinite(value) else None for value in values)
    return json.dumps(
        {"line": number, "log_probability": log_probability, "tokens": score.tokens, "perplexity": perplexity}
    )


def open_pairs(src: str, tgt: str) -> Iterator[tuple[str, str]]:
    """The pairs of two text files, the first of which is read at once.

    Raises:
        UserError: Both are the same file.
        DataError: A file cannot be read, or one has more lines.
    """
    if is_same_file(src, tgt):
        raise UserError(f"--src and --tgt are the same file, {tgt}: name the translation")
    pairs = iter_file_pairs(src, tgt)
    return chain([next(pairs)], pairs)
