"""Stage four: encode the text in parallel and write the sharded corpus."""

from itertools import chain
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from data_prep.pairs import count_pairs, map_pairs
from dstransformer.corpus import CorpusWriter, SplitInfo, SplitWriter, Tokenizer
from dstransformer.errors import DataError
from dstransformer.progress import Progress


def encode_train(
    path: Path, writer: CorpusWriter, tokenizer: Tokenizer, *, max_tokens: int, workers: int, progress: Progress
) -> tuple[SplitInfo, int]:
    """Write the training split.

    Returns:
        The split, and the number of pairs dropped because a side has more than ``max_tokens`` tokens.

    Raises:
        DataError: Every pair is dropped.
    """
    rows = writer.split("train", has_text=False)
    total = _encode(path, "train", rows, tokenizer, max_tokens=max_tokens, workers=workers, progress=progress)
    info = rows.close()
    return info, total - info.pairs


def encode_held_out(
    path: Path, writer: CorpusWriter, tokenizer: Tokenizer, *, workers: int, progress: Progress
) -> SplitInfo:
    """Write the validation or test split, which ``path`` is named after: every pair, with its raw text."""
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
    with progress.task(f"encode {split}", total) as advance:
        for table in map_pairs(path, encode_pairs, workers, advance, tokenizer=tokenizer, max_tokens=max_tokens):
            rows.write(table)
            written += table.num_rows
    if not written:
        raise DataError(f"all {total} {split} pairs have more than {max_tokens} tokens: raise --max-tokens")
    return total


def encode_pairs(table: pa.Table, tokenizer: Tokenizer, max_tokens: int | None) -> pa.Table:
    """Encode both sides, without BOS and EOS.

    Args:
        table: Pairs.
        tokenizer: The tokenizer.
        max_tokens: Drop pairs with more tokens on either side; None keeps every pair and its raw text.
    """
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
