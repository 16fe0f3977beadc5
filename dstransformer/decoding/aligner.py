"""Word alignments that a model finds in given translations, by the weights of its encoder-decoder attention."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple, Self

import torch
from torch import Tensor

from dstransformer.data import Tokenizer
from dstransformer.data.alignment import Link, format_links, words_of_output, words_of_pieces
from dstransformer.data.packing import PackedBatch, pack_pairs
from dstransformer.data.plan import plan_batches
from dstransformer.decoding.devices import decode_batches, memory_errors
from dstransformer.decoding.scoring import join_sentences, limit_tokens, load_for_pairs, open_pairs
from dstransformer.errors import DataError
from dstransformer.io.progress import Advance
from dstransformer.io.text import writing_lines
from dstransformer.model import Bundle, Transformer, open_bundle
from dstransformer.model.loss import log_weights

logger = logging.getLogger(__name__)

#: Pairs of a stream that are held at a time.
BUFFER_PAIRS = 1024


class Pieces(NamedTuple):
    """A sentence, encoded.

    Attributes:
        ids: Its pieces, without begin and end.
        words: The number of the word of each piece; -1 for those of a tag that it begins with, which gets no links.
    """

    ids: Sequence[int]
    words: Sequence[int]


class Aligner:
    """Aligns the words of sentence pairs.

    Each target piece is linked to the source piece with the highest weight at the position that predicts it, the end of
    the source excluded. Words are linked if any of their pieces are.

    Args:
        model: The model, in eval mode.
        tokenizer: The tokenizer that it was trained with.
        guided: Whether its first head has learned alignments. If not, the weights are the mean over the heads of that
            layer.
        batch_tokens: Maximum tokens of a batch on its longer side.
        max_tokens: Pairs with a longer side get no links; 0: all do.
    """

    def __init__(
        self, model: Transformer, tokenizer: Tokenizer, *, guided: bool, batch_tokens: int, max_tokens: int = 0
    ) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.batch_tokens = batch_tokens
        self.max_tokens = limit_tokens(model, max_tokens)
        self._heads = 1 if guided else model.config.num_heads
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
        """Load a bundle. Arguments and errors are those of ``Scorer.load``."""
        opened = open_bundle(bundle)
        if opened.directions:
            raise DataError(f"{opened.path} translates in several directions: name the bundle of a model of one")
        model, batch_tokens, max_tokens = load_for_pairs(opened, device, precision, batch_tokens, max_tokens)
        guided = opened.is_guided
        return cls(model, opened.tokenizer, guided=guided, batch_tokens=batch_tokens, max_tokens=max_tokens)

    def align(
        self, sources: Sequence[str], targets: Sequence[str], progress: Advance | None = None
    ) -> list[list[Link]]:
        """The links between the whitespace-separated words of each pair, sorted."""
        src, tgt = (
            list(map(Pieces, tokenizer.encode(texts), words_of_pieces(tokenizer, texts)))
            for tokenizer, texts in ((self.tokenizer.src, sources), (self.tokenizer, targets))
        )
        return self._align(src, tgt, progress)

    def align_outputs(self, sources: Sequence[Pieces], outputs: Sequence[Sequence[int]]) -> list[list[Link]]:
        """As :meth:`align`, for the tokens of outputs, without begin and end, that a search has found."""
        return self._align(sources, [Pieces(ids, words_of_output(self.tokenizer, ids)) for ids in outputs], None)

    def _align(
        self, sources: Sequence[Pieces], targets: Sequence[Pieces], progress: Advance | None
    ) -> list[list[Link]]:
        chosen = self._best_sources(sources, [target.ids for target in targets], progress)
        return [
            sorted({(source.words[piece], word) for piece, word in zip(best, target.words, strict=False)})
            for best, source, target in zip(chosen, sources, targets, strict=True)
        ]

    @torch.inference_mode()
    def _best_sources(
        self, sources: Sequence[Pieces], tgt: Sequence[Sequence[int]], progress: Advance | None
    ) -> list[list[int]]:
        """For each target piece the source piece with the highest weight; none for pairs that are empty or too long."""
        src = [source.ids for source in sources]
        tags = [sum(word < 0 for word in source.words) for source in sources]

        def find(batch: Sequence[int]) -> list[list[int]]:
            packed = pack_pairs(*join_sentences([src[n] for n in batch]), *join_sentences([tgt[n] for n in batch]))
            return self._find(packed, [tags[n] for n in batch])

        lengths = [
            max(len(ids), len(target)) if len(ids) > skipped and target else 0
            for ids, target, skipped in zip(src, tgt, tags, strict=True)
        ]
        planned = [0 if self.max_tokens and length > self.max_tokens else length for length in lengths]
        best: list[list[int]] = [[] for _ in src]
        if progress is not None:
            progress(planned.count(0))
        with memory_errors("align", "lower --batch-tokens or --max-tokens"):
            batches = plan_batches(planned, self.batch_tokens)
            for n, row in decode_batches(find, batches, progress):
                best[n] = row
        return best

    def _find(self, batch: PackedBatch, tags: Sequence[int]) -> list[list[int]]:
        batch = batch.to(self._device)
        with self.model.alignment_layer.recording() as recorded:
            self.model(batch.src, batch.src_packing, batch.tgt_in, batch.tgt_packing)
        queries, keys_values = recorded[0]
        weights = self._weights(queries, keys_values, batch)
        ends = batch.src_packing.lengths - 1
        weights[torch.arange(len(ends), device=ends.device), :, ends] = -1.0
        for own, skipped in zip(weights, tags, strict=True):
            own[:, :skipped] = -1.0
        best = weights.argmax(dim=2).tolist()
        return [row[: length - 1] for row, length in zip(best, batch.tgt_packing.lengths.tolist(), strict=True)]

    def _weights(self, queries: Tensor, keys_values: Tensor, batch: PackedBatch) -> Tensor:
        """The sum of the weights of the heads, ``(n, tgt_packing.max_len, src_packing.max_len)``."""
        d_k = self.model.config.d_k
        rows = [torch.arange(packing.tokens, device=self._device) for packing in (batch.tgt_packing, batch.src_packing)]
        heads = [slice(head * d_k, (head + 1) * d_k) for head in range(self._heads)]
        found = [
            log_weights(
                queries[:, head], keys_values[:, head], rows[0], batch.tgt_packing, rows[1], batch.src_packing
            ).exp()
            for head in heads
        ]
        return torch.stack(found).sum(dim=0)


def iter_file_alignments(
    src: str, tgt: str, load: Callable[[], Aligner], progress: Advance | None = None
) -> Iterator[list[Link]]:
    """The links of the pairs of two text files, plain or gzipped, in bounded memory.

    Args:
        src: Source text.
        tgt: Its translation; line n belongs to line n of ``src``.
        load: Builds the aligner. It is called after the files have been checked.
        progress: Called with the number of pairs just aligned.

    Raises:
        UserError: Both are the same file.
        DataError: A file cannot be read, is empty or not UTF-8, or the numbers of lines differ.
    """
    pairs = open_pairs(src, tgt)
    aligner = load()
    while held := list(islice(pairs, BUFFER_PAIRS)):
        sources, targets = zip(*held, strict=True)
        yield from aligner.align(sources, targets, progress)


def align_files(
    src: str,
    tgt: str,
    output: str | None,
    load: Callable[[], Aligner],
    *,
    overwrite: bool = False,
    progress: Advance | None = None,
) -> Iterator[list[Link]]:
    """Align two text files, line by line; writes the Pharaoh format.

    Args:
        src: See :func:`iter_file_alignments`.
        tgt: See :func:`iter_file_alignments`.
        output: The file appears once it is complete, after the last pair; None or ``-`` is standard output.
        load: See :func:`iter_file_alignments`.
        overwrite: Replace ``output`` if it exists.
        progress: See :func:`iter_file_alignments`.

    Yields:
        The links of each pair, once they are written.

    Raises:
        UserError, DataError: See :func:`iter_file_alignments`; or the output exists or is an input.
        StorageError: The output cannot be written.
    """
    with writing_lines(output, overwrite=overwrite, inputs=[src, tgt]) as write:
        for links in iter_file_alignments(src, tgt, load, progress):
            write(format_links(links))
            yield links
