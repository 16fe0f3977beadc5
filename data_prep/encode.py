"""Stage four: token ids, in parallel, into the sharded corpus."""

from itertools import chain
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from data_prep.pairs import count_pairs, map_pairs
from data_prep.progress import Progress
from dstransformer.corpus import CorpusWriter, SplitInfo, SplitWriter, Tokenizer
from dstransformer.errors import DataError


def encode_train(
    path: Path, writer: CorpusWriter, tokenizer: Tokenizer, *, max_tokens: int, workers: int, progress: Progress
) -> tuple[SplitInfo, int]:
    """Write the training split; returns it and the number of pairs dropped for more than ``max_tokens`` tokens."""
    rows = writer.split("train", has_text=False)
    total = _encode(path, "train", rows, tokenizer, max_tokens=max_tokens, workers=workers, progress=progress)
    info = rows.close()
    return info, total - info.pairs


def encode_held_out(
    path: Path, writer: CorpusWriter, tokenizer: Tokenizer, *, workers: int, progress: Progress
) -> SplitInfo:
    """Write the validation or test split that ``path`` is named after: every pair, with its raw text."""
    rows = writer.split(path.stem, has_text=True)
    _encode(path, path.stem, rows, tokenizer, max_tokens=None, workers=workers, progress=progress)
    return rows.close()


def _encode(
    path: Path,
    split: str,
    rows: SplitWriter,
    tokenizer: Tokenizer,
    *,
    max_tokens: int | None,
    workers: int,
    progress: Progress,
) -> int:
    total = count_pairs(path)
    written = 0
    with progress.task(f"encode {split}", total) as task:
        for table in map_pairs(path, encode_pairs, workers, task, tokenizer=tokenizer, max_tokens=max_tokens):
            rows.write(table)
            written += table.num_rows
    if not written:
        raise DataError(f"all {total} {split} pairs have more than {max_tokens} tokens: raise --max-tokens")
    return total


def encode_pairs(table: pa.Table, tokenizer: Tokenizer, max_tokens: int | None) -> pa.Table:
    """Ids of both sides without BOS and EOS; with ``max_tokens`` longer pairs are dropped, without it text is kept."""
    src = _encode_column(table["src"], tokenizer)
    tgt = _encode_column(table["tgt"], tokenizer)
    if max_tokens is None:
        return pa.table({"src": src, "tgt": tgt, "src_text": table["src"], "tgt_text": table["tgt"]})
    longer = pc.max_element_wise(pc.list_value_length(src), pc.list_value_length(tgt))
    return pa.table({"src": src, "tgt": tgt}).filter(pc.less_equal(longer, max_tokens))


def _encode_column(texts: pa.ChunkedArray, tokenizer: Tokenizer) -> pa.ListArray:
    ids = tokenizer.encode(texts.to_pylist(), threads=1)
    offsets = np.cumsum([0, *map(len, ids)], dtype=np.int32)
    return pa.ListArray.from_arrays(offsets, np.fromiter(chain.from_iterable(ids), dtype=np.int32, count=offsets[-1]))
