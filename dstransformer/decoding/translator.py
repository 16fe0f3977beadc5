"""From sentences to their translations with a trained model, on any device."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import psutil
import torch

from dstransformer.config import DecodingConfig
from dstransformer.corpus import EOS_ID, Tokenizer
from dstransformer.corpus.text import plain_spaces
from dstransformer.decoding.beam import beam_search
from dstransformer.errors import ConfigError, DataError, DstError, shown
from dstransformer.model import Bundle, Packing, Transformer, open_bundle

logger = logging.getLogger(__name__)

#: Lines of a stream that are held at once: enough to sort them into batches of about one length.
BUFFER_LINES = 4096

#: A wider beam than this takes fewer source tokens at once, in proportion, so that it needs about as much memory.
FULL_BATCH_BEAM = 8

Progress = Callable[[int], None]

PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class Translator:
    """A model, its tokenizer and how to search.

    Args:
        model: On the device and in the precision to decode with. It is put into eval mode while it translates only.
        tokenizer: The one it was trained with.
        settings: Beam size, length penalty, limits.
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
        """Load a bundle, given as itself or as its folder.

        Args:
            bundle: What :func:`dstransformer.model.open_bundle` opens, or what it returned.
            device: None takes CUDA where there is some, else the CPU.
            dtype: None takes bf16 on CUDA, else fp32.
            settings: None takes those of the bundle's configuration.

        Raises:
            DataError: The folder is not a sound bundle.
            ConfigError: There is no such device.
        """
        opened = bundle if isinstance(bundle, Bundle) else open_bundle(bundle)
        chosen = choose_device(device)
        half_or_full = dtype or (torch.bfloat16 if chosen.type == "cuda" else torch.float32)
        return cls(opened.build_model(chosen, half_or_full), opened.tokenizer, settings or opened.config.decoding)

    def translate(self, sentences: Sequence[str], progress: Progress | None = None) -> list[str]:
        """The best translation of each sentence, detokenised, one line each; an empty sentence has an empty one.

        ``progress`` is called after each batch with the number of its sentences.

        Raises:
            DataError: A sentence that the model has no positions for, named by its place, from 1.
        """
        return self._translate(sentences, 1, progress)

    def translate_ids(self, src: Sequence[Sequence[int]], progress: Progress | None = None) -> list[list[int]]:
        """The same on token ids, without begin and end on both sides."""
        return self._search(src, 1, progress)

    def iter_translate(
        self, lines: Iterable[str | None], buffer_lines: int = BUFFER_LINES, progress: Progress | None = None
    ) -> Iterator[str]:
        """Translate a stream of any length: each line in turn, at most ``buffer_lines`` of them held at once.

        At a None what is held is translated: the stream pauses.
        """
        held: list[str] = []
        done = 0
        for line in lines:
            if line is not None:
                held.append(line)
            if held and (line is None or len(held) >= buffer_lines):
                yield from self._translate(held, done + 1, progress)
                done += len(held)
                held = []
        if held:
            yield from self._translate(held, done + 1, progress)

    def describe(self) -> dict[str, Any]:
        """How this translates, as plain data: the settings of the search, device and precision."""
        weight = self.model.softmax_weight
        names = {dtype: name for name, dtype in PRECISIONS.items()}
        return {**self.settings.model_dump(), "device": str(weight.device), "precision": names.get(weight.dtype)}

    def _translate(self, sentences: Sequence[str], first: int, progress: Progress | None) -> list[str]:
        translated = self.tokenizer.decode(self._search(self.tokenizer.encode(sentences), first, progress))
        return [plain_spaces(text) for text in translated]  # byte pieces can spell a line feed

    def _search(self, src: Sequence[Sequence[int]], first: int, progress: Progress | None) -> list[list[int]]:
        """Translate sentences, numbered from ``first`` in errors, in batches of about one length."""
        src = self._cut(src, first)
        self._check_lengths(src, first)
        results: list[list[int]] = [[] for _ in src]
        lost: list[int] = []
        batch_tokens = max(
            1, self.settings.batch_tokens * FULL_BATCH_BEAM // max(self.settings.beam_size, FULL_BATCH_BEAM)
        )
        with _evaluating(self.model), memory_errors():
            for batch in plan_batches([len(ids) for ids in src], batch_tokens):
                for number, tokens in zip(batch, self._search_batch([src[number] for number in batch]), strict=True):
                    results[number] = tokens or []
                    if tokens is None:
                        lost.append(first + number)
                if progress is not None:
                    progress(len(batch))
        if progress is not None and (empty := sum(not ids for ids in src)):
            progress(empty)
        if lost:
            logger.warning(
                "%d sentences of %d have no translation, the first is sentence %d: the model computes NaN for them in "
                "%s; try another --precision, or the weights are broken",
                len(lost), len(src), min(lost), str(self.model.softmax_weight.dtype).removeprefix("torch."),
            )  # fmt: skip
        return results

    def _search_batch(self, src: list[Sequence[int]]) -> list[list[int] | None]:
        """The best hypothesis of each sentence, None where the search found none."""
        device = self.model.softmax_weight.device
        lengths = torch.tensor([0, *(len(ids) + 1 for ids in src)])
        packed = torch.tensor([token for ids in src for token in (*ids, EOS_ID)], device=device)
        cu = lengths.cumsum(0).int().to(device)
        packing = Packing(cu, int(lengths.max()), packed.numel())
        found = beam_search(self.model, packed, packing, self.settings, vocab_size=self.tokenizer.vocab_size)
        return [hypotheses[0].tokens if hypotheses else None for hypotheses in found]

    def _cut(self, src: Sequence[Sequence[int]], first: int) -> list[Sequence[int]]:
        """Leave the first ``max_input_tokens`` of each sentence, and say of which there were more."""
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
        """Refuse sentences that the model has no positions for, or the machine no memory."""
        config = self.model.config
        for number, ids in enumerate(src, first):
            if config.positions == "learned" and len(ids) + 1 > config.max_positions:
                raise DataError(
                    f"sentence {number} has {len(ids) + 1} tokens with its end, the model has positions for "
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
    """Turn an allocation that failed into one line.

    Raises:
        DstError: There is not enough memory.
    """
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not isinstance(error, torch.OutOfMemoryError | MemoryError) and "allocate" not in str(error):
            raise
        raise DstError("there is not enough memory to translate: lower --batch-tokens or --beam") from error


def plan_batches(lengths: Sequence[int], batch_tokens: int) -> list[list[int]]:
    """Numbers of the sentences of each batch, the longest first; empty sentences are in none.

    Args:
        lengths: Tokens of each sentence, without its end.
        batch_tokens: Most tokens of a batch, ends included; a longer sentence is a batch of its own.
    """
    longest_first = sorted((number for number, length in enumerate(lengths) if length), key=lambda n: -lengths[n])
    batches: list[list[int]] = []
    room = 0
    for number in longest_first:
        tokens = lengths[number] + 1
        if tokens > room:
            batches.append([])
            room = batch_tokens
        batches[-1].append(number)
        room -= tokens
    return batches


def choose_device(device: str | torch.device | None) -> torch.device:
    """The device to decode on: None takes CUDA where there is some, else the CPU.

    Raises:
        ConfigError: The name is no device, or the device is not there.
    """
    if device is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        chosen = torch.device(device)
    except RuntimeError:
        chosen = None
    if chosen is None or (chosen.type == "cpu" and chosen.index):
        raise ConfigError(
            f"cannot use the device {shown(str(device))}: there is none of this name; give cpu, cuda or cuda:N, or "
            "leave it out to use what there is"
        )
    try:
        torch.zeros(1, device=chosen).item()  # "meta" has tensors, but no values
    except (RuntimeError, AssertionError, NotImplementedError, ImportError) as error:
        unheard = isinstance(error, NotImplementedError) or str(device) == "meta"
        reason = "this PyTorch computes nothing on it" if unheard else str(error).split("\n", 1)[0]
        raise ConfigError(
            f"cannot use the device {shown(str(device))}: {shown(reason, quote=False, limit=120)}; leave it out to use "
            "what there is"
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
