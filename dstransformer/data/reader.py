"""Reads a corpus: memory-mapped shards, rows gathered by index into flat arrays."""

import hashlib
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dstransformer.data.arrow_stream import check_plain_stream
from dstransformer.data.manifest import MANIFEST_NAME, Manifest, Shard, SplitInfo, TokenizerInfo
from dstransformer.data.tokenizer import SRC_TOKENIZER_NAME, TOKENIZER_NAME, UNK_ID, Tokenizer
from dstransformer.errors import DataError
from dstransformer.io.files import file_sha256

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]


class Corpus:
    """A complete corpus folder. Open it with ``Corpus.open``."""

    def __init__(self, path: Path, manifest: Manifest, tokenizer: Tokenizer) -> None:
        self.path = path
        self.manifest = manifest
        self.tokenizer = tokenizer
        self._splits: dict[str, Split] = {}

    @classmethod
    def open(cls, path: str | Path, *, verify: bool = True) -> "Corpus":
        """Open a corpus and check its manifest and tokenizer; with ``verify`` also every shard, as :meth:`verify` does.

        Raises:
            DataError: The folder is not a corpus, is of a newer format, has another tokenizer, or a shard is missing or
                damaged.
        """
        path = Path(path)
        manifest = Manifest.load(path)
        src = None
        if manifest.src_tokenizer is not None:
            src = _open_tokenizer(path, SRC_TOKENIZER_NAME, manifest.src_tokenizer)
        tokenizer = _open_tokenizer(path, TOKENIZER_NAME, manifest.tokenizer, src)
        for file in (path / name / shard.name for name, info in manifest.splits.items() for shard in info.shards):
            if not file.is_file():
                raise DataError(f"{file} is missing: restore it or build the corpus again")
        corpus = cls(path, manifest, tokenizer)
        if verify:
            corpus.verify()
        return corpus

    def verify(self, *names: str) -> None:
        """Check every shard: its checksum, its ids against the vocabulary, its token counts against the manifest.

        Args:
            names: The splits to check; all if none is given.

        Raises:
            DataError: A shard is damaged or differs from the manifest.
        """
        checked = names or self.splits
        shards = {self.path / name / s.name: s for name in checked for s in self.manifest.splits[name].shards}
        with ThreadPoolExecutor() as pool:
            for (path, shard), sha256 in zip(shards.items(), pool.map(file_sha256, shards), strict=True):
                if sha256 != shard.sha256:
                    raise _damaged(path, f"its sha256 is {sha256[:12]}, the manifest says {shard.sha256[:12]}")
        for name in checked:
            self.split(name).verify(self.tokenizer.vocab_size, self.tokenizer.src.vocab_size)

    @property
    def splits(self) -> tuple[str, ...]:
        """Names of the splits, ``train`` first."""
        return tuple(self.manifest.splits)

    def split(self, name: str) -> "Split":
        """Return the split ``name``.

        Raises:
            DataError: The corpus has no split ``name``; the message lists those that it has.
        """
        if name not in self.manifest.splits:
            raise DataError(f"{self.path} has no split {name!r}; it has {', '.join(self.splits)}")
        if name not in self._splits:
            self._splits[name] = Split(self.path / name, self.manifest.splits[name])
        return self._splits[name]


def _open_tokenizer(folder: Path, name: str, info: TokenizerInfo, src: Tokenizer | None = None) -> Tokenizer:
    """The tokenizer of a corpus, compared with the manifest."""
    path = folder / name
    try:
        sha256 = file_sha256(path) if path.is_file() else None
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from None
    if sha256 is None:
        raise DataError(f"{path} is missing: restore it or build the corpus again")
    if sha256 != info.sha256:
        raise DataError(
            f"{path} is not the tokenizer this corpus was encoded with (sha256 {sha256[:12]}, the manifest says "
            f"{info.sha256[:12]}): restore that file or build the corpus again"
        )
    tokenizer = Tokenizer.load(path, src)
    if tokenizer.vocab_size != info.vocab_size:
        raise DataError(
            f"{folder / MANIFEST_NAME} is damaged (tokenizer.vocab_size: it says {info.vocab_size}, {name} has "
            f"{tokenizer.vocab_size} pieces): restore it or build the corpus again"
        )
    return tokenizer


def text_digest(sources: Iterable[str], targets: Iterable[str]) -> str:
    """A hash of sentence pairs (32 hexadecimal digits) that identifies a test set."""
    digest = hashlib.sha256()
    for src, tgt in zip(sources, targets, strict=True):
        digest.update(f"{src}\n{tgt}\n".encode())
    return digest.hexdigest()[:32]


class Pairs(NamedTuple):
    """Sentence pairs as token ids, laid end to end, without BOS and EOS.

    Attributes:
        src_ids: Source ids, ``(sum of src_lengths,)``.
        src_lengths: Source tokens of each pair, ``(n,)``.
        tgt_ids: Target ids, ``(sum of tgt_lengths,)``.
        tgt_lengths: Target tokens of each pair, ``(n,)``.
    """

    src_ids: Int32
    src_lengths: Int32
    tgt_ids: Int32
    tgt_lengths: Int32

    @property
    def sides(self) -> tuple[tuple[Int32, Int32], tuple[Int32, Int32]]:
        """Ids and lengths of the source, and of the target."""
        return (self.src_ids, self.src_lengths), (self.tgt_ids, self.tgt_lengths)


class Split:
    """Sentence pairs as token ids, without BOS and EOS, memory-mapped."""

    def __init__(self, folder: Path, info: SplitInfo) -> None:
        """Map the shards that ``info`` lists.

        Raises:
            DataError: A shard cannot be read.
        """
        self.folder = folder
        self.info = info
        self._tables = [_map_shard(folder / shard.name, shard, info) for shard in info.shards]
        self._src = [_Ragged(table["src"]) for table in self._tables]
        self._tgt = [_Ragged(table["tgt"]) for table in self._tables]
        self._links = [_Ragged(table["alignment"]) for table in self._tables] if self.is_aligned else []
        self._ends: Int64 = np.cumsum([shard.rows for shard in info.shards], dtype=np.int64)

    def __len__(self) -> int:
        return self.info.pairs

    @property
    def is_aligned(self) -> bool:
        """Whether the pairs have alignments."""
        return self.info.links is not None

    @property
    def directions(self) -> dict[str, range]:
        """The rows of each direction of a held-out split of several, by name; empty if there is one."""
        sizes = self.info.directions or {}
        ends = accumulate(sizes.values())
        return {name: range(end - sizes[name], end) for name, end in zip(sizes, ends, strict=True)}

    def verify(self, vocab_size: int, src_vocab_size: int) -> None:
        """Check ids against the vocabulary, and lengths, token counts and unknown tokens against the manifest.

        Args:
            vocab_size: Number of pieces on the target side.
            src_vocab_size: Number of pieces on the source side.

        Raises:
            DataError: The shards contradict the vocabulary or the manifest. The message names the shard or the field.
        """
        for shard, table, src, tgt in zip(self.info.shards, self._tables, self._src, self._tgt, strict=True):
            path = self.folder / shard.name
            try:
                table.validate(full=True)
            except (pa.ArrowException, UnicodeDecodeError) as error:
                raise _damaged(path, str(error)) from None
            for name, column, pieces in (("src", src, src_vocab_size), ("tgt", tgt, vocab_size)):
                if column.values.size and not 0 <= column.values.min() <= column.values.max() < pieces:
                    raise _damaged(path, f"{name} holds ids outside of the vocabulary of {pieces} pieces")
        for name, columns in (("src", self._src), ("tgt", self._tgt)):
            stats, stated = getattr(self.info, f"{name}_lengths"), getattr(self.info, f"{name}_tokens")
            lengths = [np.diff(column.offsets) for column in columns]
            lowest, highest = min(int(shard.min()) for shard in lengths), max(int(shard.max()) for shard in lengths)
            tokens = sum(int(shard.sum(dtype=np.int64)) for shard in lengths)
            if (lowest, highest, tokens) != (stats.min, stats.max, stated):
                raise self._contradiction(
                    f"{name}_tokens or {name}_lengths say {stated} tokens, {stats.min} to {stats.max} a sentence; the "
                    f"shards hold {tokens}, {lowest} to {highest}"
                )
            stated = getattr(self.info, f"{name}_unknown")
            unknown = sum(int(np.count_nonzero(column.values == UNK_ID)) for column in columns)
            if unknown != stated:
                raise self._contradiction(f"{name}_unknown is {stated}, but the shards hold {unknown} <unk>")
        if self.is_aligned:
            self._verify_links()

    def _verify_links(self) -> None:
        """Check that links are pairs of numbers of words, of which a sentence has at most as many as pieces."""
        for shard, links, *sides in zip(self.info.shards, self._links, self._src, self._tgt, strict=True):
            path = self.folder / shard.name
            counts = np.diff(links.offsets)
            if (counts % 2).any():
                raise _damaged(path, "alignment holds half a link")
            rows = np.repeat(np.arange(len(counts)), counts // 2)
            for name, side, numbers in zip(("source", "target"), sides, links.values.reshape(-1, 2).T, strict=True):
                if (numbers >= np.diff(side.offsets)[rows]).any():
                    raise _damaged(path, f"alignment names a word that a {name} sentence cannot have")
        links_read = sum(links.values.size // 2 for links in self._links)
        if links_read != self.info.links:
            raise self._contradiction(f"links is {self.info.links}, but the shards hold {links_read}")

    def _contradiction(self, reason: str) -> DataError:
        return _damaged(self.folder.parent / MANIFEST_NAME, f"splits.{self.folder.name}: {reason}")

    @cached_property
    def src_lengths(self) -> Int32:
        """Source tokens of each pair, ``(pairs,)``."""
        return np.concatenate([np.diff(shard.offsets) for shard in self._src])

    @cached_property
    def tgt_lengths(self) -> Int32:
        """Target tokens of each pair, ``(pairs,)``."""
        return np.concatenate([np.diff(shard.offsets) for shard in self._tgt])

    def lengths(self, begins: Int64, ends: Int64) -> tuple[Int32, Int32]:
        """Source and target tokens of the pairs in some ranges, one range after the other.

        They are read from the shards and not cached, so the memory is that of the result.

        Args:
            begins: The first pair of each range, ``(ranges,)``.
            ends: The pair after its last, ``(ranges,)``.

        Raises:
            IndexError: A range is not within ``[0, len(self)]``.
        """
        if begins.size and (begins.min() < 0 or ends.max() > len(self) or (begins > ends).any()):
            raise IndexError(f"pairs {begins.min()} to {ends.max()} requested from a split of {len(self)} pairs")
        src, tgt = (np.empty(int((ends - begins).sum()), dtype=np.int32) for _ in range(2))
        place, borders = 0, [0, *self._ends.tolist()]
        for begin, end in zip(begins.tolist(), ends.tolist(), strict=True):
            first = begin
            while first < end:  # the part of the range in the next shard
                shard = bisect_right(borders, first) - 1
                before, stop = borders[shard], min(end, borders[shard + 1])
                filled = slice(place, place + stop - first)
                for column, out in ((self._src[shard], src), (self._tgt[shard], tgt)):
                    offsets = column.offsets[first - before : stop - before + 1]
                    np.subtract(offsets[1:], offsets[:-1], out=out[filled])
                place, first = filled.stop, stop
        return src, tgt

    def gather(self, indices: npt.NDArray[Any]) -> Pairs:
        """Gather the pairs ``indices``, in that order, without padding.

        Returns:
            The ids and lengths of both sides, in the order ``src, src_lengths, tgt, tgt_lengths``.

        Raises:
            IndexError: An index outside ``[0, len(self))``, or none.
        """
        groups, size = self._locate(indices)
        return Pairs(*_gather_column(self._src, groups, size), *_gather_column(self._tgt, groups, size))

    def gather_links(self, indices: npt.NDArray[Any]) -> tuple[Int32, Int32]:
        """Gather the links between words of the pairs ``indices``, in that order.

        Words are those of the stored pieces, see :mod:`dstransformer.data.alignment`.

        Returns:
            Source and target word of each link, ``(links, 2)``, and the links of each pair, ``(n,)``.

        Raises:
            IndexError: An index outside ``[0, len(self))``.
        """
        flat, counts = _gather_column(self._links, *self._locate(indices))
        return flat.reshape(-1, 2), counts // 2

    def _locate(self, indices: npt.NDArray[Any]) -> "tuple[list[_Group], int]":
        """The shards of rows, and the number of rows."""
        numbers = np.asarray(indices)
        if numbers.size and numbers.dtype.kind not in "iu":
            raise IndexError(f"pairs are numbered by whole numbers, not {numbers.dtype}")
        rows = numbers.astype(np.int64)
        if rows.size and (rows.min() < 0 or rows.max() >= len(self)):
            raise IndexError(f"pairs {rows.min()} to {rows.max()} requested from a split of {len(self)} pairs")
        shard_of = np.searchsorted(self._ends, rows, side="right")
        by_shard = np.argsort(shard_of, kind="stable")
        borders = np.flatnonzero(np.diff(shard_of[by_shard])) + 1
        groups = []
        for places in np.split(by_shard, borders) if rows.size else ():
            number = int(shard_of[places[0]])
            first = int(self._ends[number - 1]) if number else 0
            groups.append((number, places, rows[places] - first))
        return groups, rows.size

    @cached_property
    def text_digest(self) -> str:
        """A hash of the raw sentences on both sides (32 hexadecimal digits), the same for every tokenizer and sharding.

        Raises:
            DataError: The split holds token ids only.
        """
        return text_digest(self.src_texts(), self.tgt_texts())

    def src_texts(self) -> list[str]:
        """Return the raw source sentences.

        Raises:
            DataError: The split holds token ids only.
        """
        return self._texts("src_text")

    def tgt_texts(self) -> list[str]:
        """Return the raw target sentences.

        Raises:
            DataError: The split holds token ids only.
        """
        return self._texts("tgt_text")

    def _texts(self, column: str) -> list[str]:
        if not self.info.has_text:
            raise DataError(f"{self.folder} holds token ids only; raw text is kept for validation and test")
        return [text for table in self._tables for text in table[column].to_pylist()]


class _Ragged:
    """A shard's list column as ``offsets`` ``(rows + 1,)`` into flat ``values``, both views of the mapped file."""

    def __init__(self, column: pa.ChunkedArray) -> None:
        chunk = column.chunk(0)
        # Not to_numpy, which would import pandas (0.3 s).
        self.offsets: npt.NDArray[Any] = np.from_dlpack(chunk.offsets)
        self.values: npt.NDArray[Any] = np.from_dlpack(chunk.values)


#: With this many rows of a shard or more, indexing all their tokens is faster than copying row by row.
_MIN_INDEXED_ROWS = 32

# A shard's number, the positions in the result that it fills, and its rows that go there.
_Group = tuple[int, Int64, Int64]


def _gather_column(shards: Sequence[_Ragged], groups: Sequence[_Group], size: int) -> tuple[Int32, Int32]:
    lengths = np.empty(size, dtype=np.int32)
    for number, places, rows in groups:
        offsets = shards[number].offsets
        lengths[places] = offsets[rows + 1] - offsets[rows]
    begins = np.cumsum(lengths, dtype=np.int64) - lengths
    flat = np.empty(int(lengths.sum(dtype=np.int64)), dtype=np.int32)
    for number, places, rows in groups:
        shard, counts = shards[number], lengths[places]
        if len(places) >= _MIN_INDEXED_ROWS:
            flat[_ranges(begins[places], counts)] = shard.values[_ranges(shard.offsets[rows], counts)]
            continue
        for begin, offset, count in zip(
            begins[places].tolist(), shard.offsets[rows].tolist(), counts.tolist(), strict=True
        ):
            flat[begin : begin + count] = shard.values[offset : offset + count]
    return flat, lengths


def _ranges(begins: npt.NDArray[Any], counts: Int32) -> Int64:
    """Concatenate ``range(begin, begin + count)`` over all rows."""
    skipped = np.cumsum(counts, dtype=np.int64) - counts
    return np.repeat(begins - skipped, counts) + np.arange(counts.sum(dtype=np.int64))


_ID_LISTS = (pa.list_(pa.uint16()), pa.list_(pa.int32()))


def _map_shard(path: Path, shard: Shard, info: SplitInfo) -> pa.Table:
    """Map a shard and check its schema, row count and nulls, without reading its ids.

    Raises:
        DataError: The shard is damaged or is not the one in the manifest.
    """
    try:
        check_plain_stream(path)
        table = pa.ipc.open_stream(pa.memory_map(str(path))).read_all()
        table.validate()
        names = table.column_names  # which may not be UTF-8
    except OSError as error:
        raise DataError(f"cannot read {path} ({error}): restore it or build the corpus again") from None
    except (pa.ArrowException, UnicodeDecodeError) as error:
        raise _damaged(path, str(error)) from None
    columns: dict[str, tuple[pa.DataType, ...]] = {"src": _ID_LISTS, "tgt": _ID_LISTS}
    if info.has_text:
        columns |= {"src_text": (pa.string(),), "tgt_text": (pa.string(),)}
    if info.links is not None:
        columns |= {"alignment": (pa.list_(pa.uint16()),)}
    for name, types in columns.items():
        if name not in names or table.schema.field(name).type not in types or table[name].null_count:
            raise _damaged(path, f"no column {name!r} of {types[0]} without nulls")
    if table.num_rows != shard.rows or table["src"].num_chunks != 1:
        raise DataError(
            f"{path} holds {table.num_rows} pairs in {table['src'].num_chunks} batches, the manifest says "
            f"{shard.rows} in 1: restore it or build the corpus again"
        )
    for name in columns.keys() & {"src", "tgt", "alignment"}:
        if table[name].chunk(0).values.null_count:
            raise _damaged(path, f"{name} holds nulls in place of numbers")
    return table


def _damaged(path: Path, reason: str) -> DataError:
    return DataError(f"{path} is damaged ({' '.join(reason.split())}): restore it or build the corpus again")
