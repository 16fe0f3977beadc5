"""The protocol of search engines, the engine that searches with PyTorch, and what it decodes at once."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, Self

import torch

from dstransformer.config import DecodingConfig
from dstransformer.data import EOS_ID
from dstransformer.data.packing import Packing
from dstransformer.data.plan import plan_batches
from dstransformer.decoding.beam import Constraint, Hypothesis, beam_search, output_limits
from dstransformer.decoding.devices import choose_device, decode_batches, free_memory, memory_errors
from dstransformer.decoding.formats import Sampling
from dstransformer.decoding.sampling import sample
from dstransformer.errors import DataError, counted
from dstransformer.io.progress import Advance
from dstransformer.model import Bundle, Ensemble, Transformer, ops
from dstransformer.model.ops.caches import FIRST_CAPACITY

logger = logging.getLogger(__name__)

#: More hypotheses per sentence than this take proportionally fewer source tokens at once, so that they need about the
#: same memory.
FULL_BATCH_BEAM = 8

#: A search on a GPU takes up to so many times ``decoding.batch_tokens`` at once: with 4,096 tokens a GPU should wait
#: for the host, which starts more than 100 operators a step. No GPU has measured it.
GPU_FACTOR = 8

#: Share of a GPU's free memory that a batch may need.
MEMORY_SHARE = 0.8


class SearchEngine(Protocol):
    """Searches for the best outputs of sentences, all given as token ids.

    Attributes:
        identity: What identifies the weights; empty if they are from no file.
    """

    identity: tuple[str, ...]

    def max_input_tokens(self, settings: DecodingConfig) -> int:
        """Maximum tokens of a sentence, without its end; 0: any number."""

    def search(
        self,
        src: Sequence[Sequence[int]],
        settings: DecodingConfig,
        *,
        numbers: Sequence[int],
        n_best: int = 1,
        prefixes: Sequence[Sequence[int]] = (),
        progress: Advance | None = None,
    ) -> list[list[Hypothesis]]:
        """The best outputs of each sentence, best first; one that is empty for an empty sentence.

        Args:
            src: The sentences, without begin and end.
            settings: Beam size, length penalty and limits.
            numbers: The number of each sentence in the text, for warnings and errors.
            n_best: Outputs per sentence. A search that finishes fewer returns those.
            prefixes: The tokens that the outputs of each sentence begin with; none if empty.
            progress: Called after each batch with the number of its sentences.

        Raises:
            DataError: A sentence or its prefix has more tokens than the model has positions, or than memory allows.
        """

    def describe(self) -> dict[str, Any]:
        """The device and the precision, as plain data."""


class TorchEngine:
    """Searches and samples with PyTorch.

    Args:
        models: The model, or several with one tokenizer that decode together; on the device and in the precision to
            decode with. They are in eval mode only while they decode.
        vocab_size: Number of pieces of the target's tokenizer.
        keep_nan: Whether a sentence for which the model computes NaN has an output with NaN scores. Otherwise its
            output is empty, and a warning is logged.
    """

    def __init__(self, models: Sequence[Transformer], vocab_size: int, *, keep_nan: bool = False) -> None:
        self.ensemble = Ensemble(models)
        self.vocab_size = vocab_size
        self.keep_nan = keep_nan
        self.identity: tuple[str, ...] = ()

    @classmethod
    def load(
        cls,
        bundles: Sequence[Bundle],
        device: str | torch.device | None = None,
        dtype: torch.dtype | None = None,
        *,
        keep_nan: bool = False,
    ) -> Self:
        """Load the models of bundles.

        Args:
            bundles: The bundles, at least one.
            device: None chooses CUDA if it is available, else the CPU.
            dtype: None chooses bf16 on CUDA, else fp32.
            keep_nan: See the class.

        Raises:
            DataError: The tokenizers differ, or weights are damaged.
            ConfigError: The device does not exist.
        """
        first, *others = [(one.path, one.tokenizer.identity) for one in bundles]
        for path, identity in others:
            if identity != first[1]:
                raise DataError(
                    f"{path} has another tokenizer than {first[0]} ({identity[:12]} and {first[1][:12]}): models "
                    "decode together only with one vocabulary; train them on corpora with the same tokenizer"
                )
        chosen = choose_device(device)
        precision = dtype or (torch.bfloat16 if chosen.type == "cuda" else torch.float32)
        models = [one.build_model(chosen, precision) for one in bundles]
        engine = cls(models, bundles[0].tokenizer.vocab_size, keep_nan=keep_nan)
        engine.identity = tuple(one.weights_sha256 for one in bundles)
        return engine

    @property
    def model(self) -> Transformer:
        """The first model."""
        return self.ensemble.members[0]

    def describe(self) -> dict[str, Any]:
        """The device and the precision, as plain data."""
        return {"device": str(self.ensemble.device), "precision": ops.precision_name(self.ensemble.dtype)}

    def max_input_tokens(self, settings: DecodingConfig) -> int:
        """Maximum tokens of a sentence, without its end: the setting, but no more than the learned positions."""
        limit, learned = settings.max_input_tokens, self.ensemble.max_positions
        return limit if learned is None or not limit else min(limit, learned - 1)

    def search(
        self,
        src: Sequence[Sequence[int]],
        settings: DecodingConfig,
        *,
        numbers: Sequence[int],
        n_best: int = 1,
        prefixes: Sequence[Sequence[int]] = (),
        progress: Advance | None = None,
        constrain: Callable[[Sequence[int]], Constraint] | None = None,
    ) -> list[list[Hypothesis]]:
        """Search as :class:`SearchEngine` says; ``constrain`` builds the constraint of a batch from its indices."""

        def decode(batch: Sequence[int]) -> list[list[Hypothesis]]:
            return beam_search(
                self.ensemble,
                *self._pack([src[index] for index in batch]),
                settings,
                vocab_size=self.vocab_size,
                n_best=n_best,
                prefixes=[prefixes[index] for index in batch] if prefixes else (),
                constraint=None if constrain is None else constrain(batch),
            )

        self._check(src, prefixes, settings, numbers)
        return self._decode(src, self._plan(src, settings, prefixes), decode, numbers, progress)

    def sample(
        self,
        src: Sequence[Sequence[int]],
        settings: DecodingConfig,
        sampling: Sampling,
        *,
        numbers: Sequence[int],
        count: int = 1,
        prefixes: Sequence[Sequence[int]] = (),
        progress: Advance | None = None,
    ) -> list[list[Hypothesis]]:
        """``count`` random outputs of each sentence, in the order of drawing; otherwise like :meth:`search`.

        The number of a sentence decides its random numbers.
        """

        def decode(batch: Sequence[int]) -> list[list[Hypothesis]]:
            return sample(
                self.ensemble,
                *self._pack([src[index] for index in batch]),
                sampling,
                vocab_size=self.vocab_size,
                count=count,
                numbers=[numbers[index] for index in batch],
                settings=settings,
                prefixes=[prefixes[index] for index in batch] if prefixes else (),
            )

        self._check(src, prefixes, settings, numbers, samples=count)
        batches = plan_batches([len(ids) for ids in src], tokens_per_batch(settings.batch_tokens, count))
        return self._decode(src, batches, decode, numbers, progress)

    def _plan(
        self, src: Sequence[Sequence[int]], settings: DecodingConfig, prefixes: Sequence[Sequence[int]] = ()
    ) -> list[list[int]]:
        """The batches of a search, by the places of their sentences.

        A GPU takes more tokens at once, see :data:`GPU_FACTOR`, as far as its memory allows.
        """
        lengths, device = [len(ids) for ids in src], self.ensemble.device
        batch_tokens = tokens_per_batch(settings.batch_tokens, settings.beam_size)
        if device.type != "cuda":
            return plan_batches(lengths, batch_tokens)
        most, free = GPU_FACTOR * batch_tokens, free_memory(device)
        memory = SearchMemory.of(self.ensemble, settings, longest_prefix=max(map(len, prefixes), default=0))
        return plan_batches(lengths, most, lambda tokens: memory.least_tokens(tokens, most, free))

    def _decode(
        self,
        src: Sequence[Sequence[int]],
        batches: Sequence[Sequence[int]],
        decode: Callable[[Sequence[int]], list[list[Hypothesis]]],
        numbers: Sequence[int],
        progress: Advance | None,
    ) -> list[list[Hypothesis]]:
        """Decode batches without empty sentences; a sentence without outputs means that the model computes NaN."""
        results = [[Hypothesis([], 0.0, 0.0)] for _ in src]
        nan_sentences: list[int] = []
        with evaluating(self.ensemble), memory_errors():
            for index, hypotheses in decode_batches(decode, batches, progress):
                if hypotheses:
                    results[index] = hypotheses
                elif self.keep_nan:
                    results[index] = [Hypothesis([], math.nan, math.nan)]
                else:
                    nan_sentences.append(numbers[index])
        if progress is not None and (empty := sum(not ids for ids in src)):
            progress(empty)
        if nan_sentences:
            logger.warning(
                "%d of %d sentences have no output; the first is sentence %d: the model computes NaN for them in "
                "%s; try another --precision; if that does not help, the weights are damaged",
                len(nan_sentences), len(src), min(nan_sentences), str(self.ensemble.dtype).removeprefix("torch."),
            )  # fmt: skip
        return results

    def _pack(self, src: Sequence[Sequence[int]]) -> tuple[torch.Tensor, Packing]:
        packed = torch.tensor([token for ids in src for token in (*ids, EOS_ID)], device=self.ensemble.device)
        return packed, Packing.from_lengths([len(ids) + 1 for ids in src]).to(self.ensemble.device)

    def _check(
        self,
        src: Sequence[Sequence[int]],
        prefixes: Sequence[Sequence[int]],
        settings: DecodingConfig,
        numbers: Sequence[int],
        *,
        samples: int | None = None,
    ) -> None:
        """Refuse what exceeds the learned positions, and a beam or samples that may not fit in memory at the limits."""
        learned = self.ensemble.max_positions
        for side, texts in (("", src), ("the prefix of ", prefixes)):
            for number, ids in zip(numbers, texts, strict=False):
                if learned is not None and len(ids) + 1 > learned:
                    raise DataError(
                        f"{side}sentence {number} has {len(ids) + 1} tokens with its end, the model has learned "
                        f"positions for {learned} (model.max_positions): split the sentence"
                    )
        decoded = [index for index, ids in enumerate(src) if ids]
        if not decoded:
            return
        limits = output_limits(
            Packing.from_lengths([len(src[index]) + 1 for index in decoded]),
            settings,
            max_positions=learned,
            prefixes=[prefixes[index] for index in decoded] if prefixes else (),
        )
        limit, index = max(zip(limits, decoded, strict=True), key=lambda pair: pair[0])
        rows, outputs, option = settings.beam_size, f"a beam of {settings.beam_size}", "--beam"
        if samples is not None:
            rows, outputs, option = samples, counted(samples, "sample"), "--n-best"
        needed, free = rows * limit * self.ensemble.bytes_per_token, free_memory(self.ensemble.device)
        if needed > free:
            raise DataError(
                f"sentence {numbers[index]}: {outputs} and up to {limit:,} output tokens can need "
                f"{needed / 2**30:,.1f} GiB, and {free / 2**30:,.1f} GiB are free: lower {option}, --max-input-tokens "
                f"or --max-extra-tokens{', or shorten the prefix' if prefixes else ''}"
            )


@contextmanager
def evaluating(models: Ensemble) -> Iterator[None]:
    """Set models to eval mode for a while."""
    was_training = [model.training for model in models.members]
    models.eval()
    try:
        yield
    finally:
        for model, mode in zip(models.members, was_training, strict=True):
            model.train(mode)


# How many source tokens are decoded at once


def tokens_per_batch(batch_tokens: int, rows: int) -> int:
    """Source tokens of a batch with ``rows`` hypotheses per sentence; see :data:`FULL_BATCH_BEAM`."""
    return max(1, batch_tokens * FULL_BATCH_BEAM // max(rows, FULL_BATCH_BEAM))


@dataclass(frozen=True)
class SearchMemory:
    """What a search on a GPU keeps in memory.

    Attributes:
        position_bytes: Keys and values of a position, in all layers of all models.
        row_bytes: All that is computed from the logits of a hypothesis.
        beam_size: Hypotheses per sentence.
        extra_tokens: Tokens that an output may have more than its input.
        longest_prefix: Tokens that an output may begin with, however short its input is.
    """

    position_bytes: int
    row_bytes: int
    beam_size: int
    extra_tokens: int
    longest_prefix: int = 0

    @classmethod
    def of(cls, models: Ensemble, settings: DecodingConfig, *, longest_prefix: int = 0) -> SearchMemory:
        """Of these models with these settings."""
        size = models.members[0].softmax_weight.element_size()
        shapes = [model.config for model in models.members]
        # The logits, in fp32 if they are not, and their logarithms; an ensemble stacks and sums those of its models.
        logit_bytes = size + (4 if size < 4 else 0) + 4 if len(shapes) == 1 else 20 * len(shapes)
        return cls(
            position_bytes=size * sum(one.decoder_depth * one.num_heads * (one.d_k + one.d_v) for one in shapes),
            row_bytes=logit_bytes * max(len(model.softmax_weight) for model in models.members),
            beam_size=settings.beam_size,
            extra_tokens=max(settings.max_extra_tokens, settings.min_tokens),
            longest_prefix=longest_prefix,
        )

    def sentence_bytes(self, tokens: int) -> int:
        """Bytes of a sentence in a batch whose longest has ``tokens``, at the longest output; end included."""
        capacity = FIRST_CAPACITY
        while capacity < max(tokens + self.extra_tokens, self.longest_prefix + 1):
            capacity *= 2
        return self.position_bytes * (tokens + self.beam_size * capacity) + self.beam_size * self.row_bytes

    def least_tokens(self, tokens: int, batch_tokens: int, free: int) -> int:
        """How many of a batch's tokens a sentence counts for at least, so that the batch fits in memory.

        Args:
            tokens: Tokens of the longest sentence of the batch, with its end.
            batch_tokens: Maximum tokens of a batch.
            free: Bytes of free memory.
        """
        return -(-self.sentence_bytes(tokens) * batch_tokens // max(1, int(MEMORY_SHARE * free)))
