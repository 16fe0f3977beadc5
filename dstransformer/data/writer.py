"""Writes a corpus in the layout of ``datasets.save_to_disk``. Equal rows give equal bytes.

A shard is an Arrow stream of one record batch, so that a reader can address its ids as one flat array.
"""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from dstransformer.data.manifest import MANIFEST_NAME, LengthStats, Manifest, Shard, SplitInfo
from dstransformer.data.tokenizer import UNK_ID, Tokenizer
from dstransformer.io.files import file_sha256, sync, write_durably
from dstransformer.io.products import write_marker


class SplitWriter:
    """Collects rows and writes them to ``folder`` as shards of ``shard_rows`` rows."""

    def __init__(
        self,
        folder: Path,
        *,
        vocab_size: int,
        shard_rows: int,
        has_text: bool,
        src_vocab_size: int | None = None,
        aligned: bool = False,
    ) -> None:
        """Create ``folder``, which must not exist."""
        folder.mkdir()
        columns = {"src": pa.list_(_id_type(src_vocab_size or vocab_size)), "tgt": pa.list_(_id_type(vocab_size))}
        if has_text:
            columns |= {"src_text": pa.string(), "tgt_text": pa.string()}
        if aligned:
            columns |= {"alignment": pa.list_(pa.uint16())}
        self._features = {name: _feature(kind) for name, kind in columns.items()}
        # `datasets` looks for the features of its columns in this metadata.
        metadata = {"huggingface": json.dumps({"info": {"features": self._features}})}
        self.schema = pa.schema(columns, metadata)
        self._folder = folder
        self._shard_rows = shard_rows
        self._has_text = has_text
        self._pending: list[pa.Table] = []
        self._pending_rows = 0
        self._written: list[tuple[Path, int, str]] = []
        self._sides = {"src": _Side(), "tgt": _Side()}
        self._links: int | None = 0 if aligned else None

    def write(self, table: pa.Table) -> None:
        """Append rows from a table with the columns of ``schema``."""
        table = table.select(self.schema.names).cast(self.schema)
        for name, side in self._sides.items():
            side.add(table[name])
        if self._links is not None:
            self._links += len(pc.list_flatten(table["alignment"])) // 2
        self._pending.append(table)
        self._pending_rows += table.num_rows
        while self._pending_rows >= self._shard_rows:
            self._write_shard(self._shard_rows)

    def close(self) -> SplitInfo:
        """Write the remaining rows and the files that ``datasets`` looks for.

        Raises:
            ValueError: The split has no rows.
        """
        if self._pending_rows:
            self._write_shard(self._pending_rows)
        if not self._written:
            raise ValueError(f"no row was written to {self._folder}")
        shards = []
        for number, (path, rows, sha256) in enumerate(self._written):
            name = f"data-{number:05d}-of-{len(self._written):05d}.arrow"
            path.rename(self._folder / name)
            shards.append(Shard(name=name, rows=rows, sha256=sha256))
        content = hashlib.sha256("".join(shard.sha256 for shard in shards).encode()).hexdigest()
        info = {"citation": "", "description": "", "features": self._features, "homepage": "", "license": ""}
        state: dict[str, Any] = {
            "_data_files": [{"filename": shard.name} for shard in shards],
            "_fingerprint": content[:16],
            "_format_columns": None,
            "_format_kwargs": {},
            "_format_type": None,
            "_output_all_columns": False,
            "_split": self._folder.name,
        }
        write_durably(self._folder / "dataset_info.json", json.dumps(info, indent=2) + "\n")
        write_durably(self._folder / "state.json", json.dumps(state, indent=2) + "\n")
        sync(self._folder)
        src, tgt = self._sides["src"], self._sides["tgt"]
        return SplitInfo(
            pairs=src.count,
            src_tokens=src.tokens,
            tgt_tokens=tgt.tokens,
            src_lengths=src.lengths(),
            tgt_lengths=tgt.lengths(),
            src_unknown=src.unknown,
            tgt_unknown=tgt.unknown,
            has_text=self._has_text,
            links=self._links,
            shards=tuple(shards),
        )

    def _write_shard(self, rows: int) -> None:
        table = pa.concat_tables(self._pending)
        rest = table.slice(rows)
        self._pending, self._pending_rows = [rest], rest.num_rows
        columns = [
            pa.concat_arrays(column.chunks) if column.num_chunks > 1 else column.chunk(0)
            for column in table.slice(0, rows).columns
        ]
        path = self._folder / f"data-{len(self._written):05d}.partial"
        with path.open("wb") as file:
            with pa.ipc.new_stream(file, self.schema) as stream:
                stream.write_batch(pa.record_batch(columns, schema=self.schema))
            file.flush()
            os.fsync(file.fileno())
        self._written.append((path, rows, file_sha256(path)))


def _id_type(vocab_size: int) -> pa.DataType:
    return pa.uint16() if vocab_size <= 1 << 16 else pa.int32()


def _feature(kind: pa.DataType) -> dict[str, Any]:
    """A feature of ``datasets``, as its ``Features.to_dict`` writes it."""
    if pa.types.is_list(kind):
        return {"feature": _feature(kind.value_type), "_type": "List"}
    return {"dtype": str(kind), "_type": "Value"}


class CorpusWriter:
    """Writes a whole corpus into ``folder``, which must not exist; the caller renames it once it is complete."""

    def __init__(self, folder: Path, tokenizer: Tokenizer, *, shard_rows: int) -> None:
        folder.mkdir()
        self._folder = folder
        self._tokenizer = tokenizer
        self._shard_rows = shard_rows

    def split(self, name: str, *, has_text: bool, aligned: bool = False) -> SplitWriter:
        """Create a writer for the split ``name``."""
        return SplitWriter(
            self._folder / name,
            vocab_size=self._tokenizer.vocab_size,
            src_vocab_size=self._tokenizer.src.vocab_size,
            shard_rows=self._shard_rows,
            has_text=has_text,
            aligned=aligned,
        )

    def close(self, manifest: Manifest) -> None:
        """Write the tokenizers, ``dataset_dict.json``, the manifest and ``dst.json``, and flush everything to disk."""
        self._tokenizer.save_in(self._folder)
        write_durably(self._folder / "dataset_dict.json", json.dumps({"splits": list(manifest.splits)}))
        write_durably(self._folder / MANIFEST_NAME, manifest.to_json())
        write_marker(self._folder, "corpus")


class _Side:
    """What the manifest says of one side, summed over the tables."""

    def __init__(self) -> None:
        self.count = self.tokens = self.unknown = 0
        self._shortest, self._longest = 2**31, 0

    def add(self, column: pa.ChunkedArray) -> None:
        if not len(column):
            return
        lengths = pc.list_value_length(column)
        bounds = pc.min_max(lengths).as_py()
        self._shortest = min(self._shortest, bounds["min"])
        self._longest = max(self._longest, bounds["max"])
        self.tokens += pc.sum(lengths).as_py()
        self.unknown += pc.sum(pc.equal(pc.list_flatten(column), UNK_ID)).as_py() or 0
        self.count += len(lengths)

    def lengths(self) -> LengthStats:
        return LengthStats(min=self._shortest, mean=round(self.tokens / self.count, 4), max=self._longest)
