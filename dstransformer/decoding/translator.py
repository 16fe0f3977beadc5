"""Translation of sentences with a trained model, on any device."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import psutil
import torch

from dstransformer.batching import plan_batches
from dstransformer.config import DecodingConfig
from dstransformer.corpus import EOS_ID, Tokenizer
from dstransformer.corpus.tokenizer import plain_spaces
from dstransformer.decoding.beam import Constraint, beam_search
from dstransformer.errors import ConfigError, DataError, DstError, shown
from dstransformer.model import Bundle, Packing, Transformer, open_bundle, ops

logger = logging.getLogger(__name__)

#: Lines of a stream that are held at once: enough to sort them into batches of similar length.
BUFFER_LINES = 4096

#: A wider beam than this takes proportionally fewer source tokens at once, so that it needs about the same memory.
FULL_BATCH_BEAM = 8

Progress = Callable[[int], None]


class Translator:
    """Translates with a model, its tokenizer and the settings of the search.

    Args:
        model: The model, on the device and in the precision to decode with. It is in eval mode only while it
            translates.
        tokenizer: The tokenizer that the model was trained with.
        settings: Beam size, length penalty and limits.
    """

    def __init__(self, model: Transformer, tokenizer: Tokenizer, settings: DecodingConfig) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.settings = settings

    @classmethod
    def load(
        cls,
        bundle: str | Path | Bundle,
        *,
        device: str | torch.device | None = None,
        dtype: torch.dtype | None = None,
        settings: DecodingConfig | None = None,
    ) -> Self:
        """Load a bundle.

        Args:
            bundle: A folder that :func:`dstransformer.model.open_bundle` opens, or a bundle that it returned.
            device: None chooses CUDA if it is available, else the CPU.
            dtype: None chooses bf16 on CUDA, else fp32.
            settings: None takes the settings of the bundle's configuration.

        Raises:
            DataError: The folder is not a valid bundle.
            ConfigError: The device does not exist.
        """
        opened = bundle if isinstance(bundle, Bundle) else open_bundle(bundle)
        chosen = choose_device(device)
        half_or_full = dtype or (torch.bfloat16 if chosen.type == "cuda" else torch.float32)
        return cls.from_bundle(opened, opened.build_model(chosen, half_or_full), settings or opened.decoding)

    @classmethod
    def from_bundle(cls, opened: Bundle, model: Transformer, settings: DecodingConfig) -> Self:
        """Put a bundle's model and tokenizer together.

        Raises:
            DataError: The bundle is a parser.
        """
        if opened.trees is not None:
            raise DataError(f"{opened.path} is a parser: use `dst parse`, or name the bundle of a translation model")
        return cls(model, opened.tokenizer, settings)

    def translate(self, sentences: Sequence[str], progress: Progress | None = None, *, first: int = 1) -> list[str]:
        """The best translation of each sentence, detokenised and on one line; empty for an empty sentence.

        Args:
            sentences: The sentences.
            progress: Called after each batch with the number of its sentences.
            first: Number of the first sentence in warnings and errors.

        Raises:
            DataError: A sentence is longer than the positions that the model has learned, or than memory allows.
        """
        translated = self.tokenizer.decode(self.translate_ids(self.tokenizer.encode(sentences), progress, first=first))
        return [plain_spaces(text) for text in translated]  # byte pieces can spell a line feed

    def iter_translate(
        self, lines: Iterable[str | None], buffer_lines: int = BUFFER_LINES, progress: Progress | None = None
    ) -> Iterator[str]:
        """Translate a stream of any length in order, holding at most ``buffer_lines`` lines at once.

        A None in the stream means that it pauses: the lines held so far are translated.
        """
        held: list[str] = []
        done = 0
        for line in lines:
            if line is not None:
                held.append(line)
            if held and (line is None or len(held) >= buffer_lines):
                yield from self.translate(held, progress, first=done + 1)
                done += len(held)
                held = []
        if held:
            yield from self.translate(held, progress, first=done + 1)

    def describe(self) -> dict[str, Any]:
        """The settings of the search, the device and the precision, as plain data."""
        weight = self.model.softmax_weight
        precision = ops.precision_name(weight.dtype)
        return {**self.settings.model_dump(), "device": str(weight.device), "precision": precision}

    def translate_ids(
        self,
        src: Sequence[Sequence[int]],
        progress: Progress | None = None,
        *,
        first: int = 1,
        constrain: Callable[[Sequence[int]], Constraint] | None = None,
    ) -> list[list[int]]:
        """As :meth:`translate`, on token ids without begin and end on both sides; in batches of similar length.

        ``constrain`` makes the constraint of a batch from the places of its sentences in ``src``.
        """
        src = self._cut(src, first)
        self._check_lengths(src, first)
        results: list[list[int]] = [[] for _ in src]
        lost: list[int] = []
        batch_tokens = max(
            1, self.settings.batch_tokens * FULL_BATCH_BEAM // max(self.settings.beam_size, FULL_BATCH_BEAM)
        )
        with _evaluating(self.model), memory_errors():
            for batch in plan_batches([len(ids) for ids in src], batch_tokens):
                constraint = None if constrain is None else constrain(batch)
                found = self._search_batch([src[number] for number in batch], constraint)
                for number, tokens in zip(batch, found, strict=True):
                    results[number] = tokens or []
                    if tokens is None:
                        lost.append(first + number)
                if progress is not None:
                    progress(len(batch))
        if progress is not None and (empty := sum(not ids for ids in src)):
            progress(empty)
        if lost:
            logger.warning(
                "%d of %d sentences have no output; the first is sentence %d: the model computes NaN for them in "
                "%s; try another --precision; if that does not help, the weights are damaged",
                len(lost), len(src), min(lost), str(self.model.softmax_weight.dtype).removeprefix("torch."),
            )  # fmt: skip
        return results

    def _search_batch(self, src: list[Sequence[int]], constraint: Constraint | None) -> list[list[int] | None]:
        """The best hypothesis of each sentence; None if the search found none."""
        device = self.model.softmax_weight.device
        packed = torch.tensor([token for ids in src for token in (*ids, EOS_ID)], device=device)
        packing = Packing.from_lengths([len(ids) + 1 for ids in src]).to(device)
        vocab_size = self.tokenizer.vocab_size
        found = beam_search(self.model, packed, packing, self.settings, vocab_size=vocab_size, constraint=constraint)
        return [hypotheses[0].tokens if hypotheses else None for hypotheses in found]

    def _cut(self, src: Sequence[Sequence[int]], first: int) -> list[Sequence[int]]:
        """Cut sentences to their first ``max_input_tokens`` tokens, with one warning."""
        most = self.settings.max_input_tokens
        long = [number for number, ids in enumerate(src) if most and len(ids) > most]
        if not long:
            return list(src)
        config = self.model.config
        kept = min(most, config.max_positions - 1) if config.positions == "learned" else most
        more = len(long) - 1
        others = f", and {more:,} more {'is' if more == 1 else 'are'} cut" if more else ""
        logger.warning(
            "sentence %d has %s tokens: only its first %s are translated (--max-input-tokens)%s; split it",
            first + long[0], f"{len(src[long[0]]):,}", f"{kept:,}", others,
        )  # fmt: skip
        return [ids[:kept] if most and len(ids) > most else ids for ids in src]

    def _check_lengths(self, src: Sequence[Sequence[int]], first: int) -> None:
        """Refuse sentences that exceed the learned positions or the memory."""
        config = self.model.config
        for number, ids in enumerate(src, first):
            if config.positions == "learned" and len(ids) + 1 > config.max_positions:
                raise DataError(
                    f"sentence {number} has {len(ids) + 1} tokens with its end, the model has learned positions for "
                    f"{config.max_positions} (model.max_positions): split the sentence"
                )
        longest = max(range(len(src)), key=lambda number: len(src[number]), default=None)
        if longest is None:
            return
        weight, beam = self.model.softmax_weight, self.settings.beam_size
        limit = len(src[longest]) + 1 + self.settings.max_extra_tokens
        remembered = config.num_layers * config.num_heads * (2 * config.d_k + config.d_v) * weight.element_size()
        needed, free = beam * limit * remembered, _free_memory(weight.device)
        if needed > free:
            raise DataError(
                f"sentence {first + longest}: a beam of {beam} and up to {limit:,} output tokens can need "
                f"{needed / 2**30:,.1f} GiB, and {free / 2**30:,.1f} GiB are free: lower --beam, --max-input-tokens or "
                "--max-extra-tokens"
            )


def _free_memory(device: torch.device) -> int:
    return int(torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else psutil.virtual_memory().available)


@contextmanager
def memory_errors() -> Iterator[None]:
    """Report a failed allocation in one line.

    Raises:
        DstError: Memory ran out.
    """
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not isinstance(error, torch.OutOfMemoryError | MemoryError) and "allocate" not in str(error):
            raise
        raise DstError("not enough memory to translate: lower --batch-tokens or --beam") from error


def choose_device(device: str | torch.device | None) -> torch.device:
    """The device to decode on: None chooses CUDA if it is available, else the CPU.

    Raises:
        ConfigError: The name is not a device, or PyTorch cannot compute on the device.
    """
    if device is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        chosen = torch.device(device)
    except RuntimeError:
        chosen = None
    if chosen is None or (chosen.type == "cpu" and chosen.index):
        raise ConfigError(
            f"cannot use the device {shown(str(device))}: no device has this name; give cpu, cuda or cuda:N, or leave "
            "it out to choose automatically"
        )
    try:
        torch.zeros(1, device=chosen).item()  # "meta" has tensors, but no values
    except (RuntimeError, AssertionError, NotImplementedError, ImportError) as error:
        unsupported = isinstance(error, NotImplementedError) or str(device) == "meta"
        reason = "this PyTorch cannot compute on it" if unsupported else str(error).split("\n", 1)[0]
        raise ConfigError(
            f"cannot use the device {shown(str(device))}: {shown(reason, quote=False, limit=120)}; leave it out to "
            "choose automatically"
        ) from None
    return chosen


@contextmanager
def _evaluating(model: Transformer) -> Iterator[None]:
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)
