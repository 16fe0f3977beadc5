"""Word alignments that a model finds in given translations, by the weights of its encoder-decoder attention."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, Self

import torch

from dstransformer.data.alignment import Link, format_links, words_of_pieces
from dstransformer.data.packing import PackedBatch, pack_pairs
from dstransformer.data.plan import plan_batches
from dstransformer.decoding.devices import decode_batches, memory_errors
from dstransformer.decoding.scoring import PairDecoder, join_sentences, open_pairs
from dstransformer.errors import DataError
from dstransformer.io.progress import Advance
from dstransformer.io.text import writing_lines
from dstransformer.model import Bundle, open_bundle
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


class Aligner(PairDecoder):
    """Aligns the words of sentence pairs; for arguments see :class:`PairDecoder`.

    Each target piece is linked to the source piece with the highest weight at the position that predicts it, the end of
    the source excluded. Words are linked if any of their pieces are.

    Attributes:
        is_guided: Whether the first head of :attr:`Transformer.alignment_layer` has learned alignments. If not, the
            weights are the mean over the heads of that layer.
    """

    is_guided: bool = False

    @classmethod
    def load(cls, bundle: str | Path | Bundle, **options: Any) -> Self:
        """See :meth:`PairDecoder.load`.

        Raises:
            DataError: The model translates in several directions.
        """
        opened = open_bundle(bundle)
        if opened.directions:
            raise DataError(f"{opened.path} translates in several directions: name the bundle of a model of one")
        aligner = super().load(opened, **options)
        aligner.is_guided = opened.is_guided
        return aligner

    def align(
        self, sources: Sequence[str], targets: Sequence[str], progress: Advance | None = None
    ) -> list[list[Link]]:
        """The links between the whitespace-separated words of each pair, sorted."""
        src, tgt = (
            list(map(Pieces, tokenizer.encode(texts), words_of_pieces(tokenizer, texts)))
            for tokenizer, texts in ((self.tokenizer.src, sources), (self.tokenizer, targets))
        )
        return self.align_pieces(src, tgt, progress)

    def align_pieces(
        self, sources: Sequence[Pieces], targets: Sequence[Pieces], progress: Advance | None = None
    ) -> list[list[Link]]:
        """As :meth:`align`, for sentences that are encoded."""
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
        d_k, packings = self.model.config.d_k, (batch.tgt_packing, batch.src_packing)
        tgt_rows, src_rows = (torch.arange(packing.tokens, device=self._device) for packing in packings)
        heads = [
            log_weights(
                queries[:, start : start + d_k], keys_values[:, start : start + d_k],
                tgt_rows, batch.tgt_packing, src_rows, batch.src_packing,
            ).exp()
            for start in range(0, d_k if self.is_guided else d_k * self.model.config.num_heads, d_k)
        ]  # fmt: skip
        weights = torch.stack(heads).sum(dim=0)
        ends = batch.src_packing.lengths - 1
        weights[torch.arange(len(ends), device=ends.device), :, ends] = -1.0
        for of_pair, skipped in zip(weights, tags, strict=True):
            of_pair[:, :skipped] = -1.0
        best = weights.argmax(dim=2).tolist()
        return [row[: length - 1] for row, length in zip(best, batch.tgt_packing.lengths.tolist(), strict=True)]


def align_files(
    src: str,
    tgt: str,
    output: str | None,
    load: Callable[[], Aligner],
    *,
    overwrite: bool = False,
    progress: Advance | None = None,
) -> Iterator[list[Link]]:
    """Align two text files, line by line, plain or gzipped, in bounded memory; writes the Pharaoh format.

    Args:
        src: Source text.
        tgt: Its translation; line n belongs to line n of ``src``.
        output: The file appears once it is complete, after the last pair; ``-`` is standard output, None no file.
        load: Builds the aligner. It is called after the files have been checked.
        overwrite: Replace ``output`` if it exists.
        progress: Called with the number of pairs just aligned.

    Yields:
        The links of each pair, once they are written.

    Raises:
        UserError: Both are the same file, or the output exists or is an input.
        DataError: A file cannot be read, is empty or not UTF-8, or the numbers of lines differ.
        StorageError: The output cannot be written.
    """
    with nullcontext() if output is None else writing_lines(output, overwrite=overwrite, inputs=[src, tgt]) as write:
        pairs = open_pairs(src, tgt)
        aligner = load()
        while held := list(islice(pairs, BUFFER_PAIRS)):
            sources, targets = zip(*held, strict=True)
            for links in aligner.align(sources, targets, progress):
                if write is not None:
                    write(format_links(links))
                yield links
