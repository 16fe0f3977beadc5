"""From sentences to their translations with a trained model, on any device."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Self

import torch

from dstransformer.config import DecodingConfig
from dstransformer.corpus import EOS_ID, Tokenizer
from dstransformer.corpus.text import plain_spaces
from dstransformer.decoding.beam import beam_search
from dstransformer.errors import ConfigError, DataError
from dstransformer.model import Bundle, Packing, Transformer, open_bundle

logger = logging.getLogger(__name__)

#: Lines of a stream that are held at once: enough to sort them into batches of about one length.
BUFFER_LINES = 4096

Progress = Callable[[int], None]


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

    def iter_translate(self, lines: Iterable[str], buffer_lines: int = BUFFER_LINES) -> Iterator[str]:
        """Translate a stream of any length: each line in turn, at most ``buffer_lines`` of them held at once."""
        stream = iter(lines)
        first = 1
        while buffered := list(islice(stream, buffer_lines)):
            yield from self._translate(buffered, first, None)
            first += len(buffered)

    def _translate(self, sentences: Sequence[str], first: int, progress: Progress | None) -> list[str]:
        translated = self.tokenizer.decode(self._search(self.tokenizer.encode(sentences), first, progress))
        return [plain_spaces(text) for text in translated]  # byte pieces can spell a line feed

    def _search(self, src: Sequence[Sequence[int]], first: int, progress: Progress | None) -> list[list[int]]:
        """Translate sentences, numbered from ``first`` in errors, in batches of about one length."""
        self._check_lengths(src, first)
        results: list[list[int]] = [[] for _ in src]
        lost: list[int] = []
        with _evaluating(self.model):
            for batch in plan_batches([len(ids) for ids in src], self.settings.batch_tokens):
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
                "%d sentences of %d have no translation, the first is sentence %d: what the model computes for them in "
                "%s is no number; another precision may do, or the weights are broken",
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

    def _check_lengths(self, src: Sequence[Sequence[int]], first: int) -> None:
        config = self.model.config
        if config.positions != "learned":
            return
        for number, ids in enumerate(src, first):
            if len(ids) + 1 > config.max_positions:
                raise DataError(
                    f"sentence {number} has {len(ids) + 1} tokens with its end, the model has positions for "
                    f"{config.max_positions} (model.max_positions): split the sentence"
                )


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
        torch.empty(0, device=chosen)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(
            f"cannot use the device {str(device)!r}: {reason}; leave it out to use what there is"
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
