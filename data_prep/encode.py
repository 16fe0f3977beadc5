"""Stage four: encode the text in parallel and write the sharded corpus."""

from itertools import chain
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from data_prep.pairs import count_pairs, map_pairs
from dstransformer.corpus import UNK_ID, CorpusWriter, SplitInfo, SplitWriter, Tokenizer
from dstransformer.errors import DataError
from dstransformer.parsing.linearise import Linearisation
from dstransformer.parsing.trees import parse_tree
from dstransformer.progress import Progress


def encode_train(
    path: Path,
    writer: CorpusWriter,
    tokenizer: Tokenizer,
    trees: Linearisation | None,
    *,
    max_tokens: int,
    workers: int,
    progress: Progress,
) -> tuple[SplitInfo, int]:
    """Write the training split; ``trees`` says how the trees of the target side are written, if it is no text.

    Returns:
        The split, and the number of pairs dropped because a side has more than ``max_tokens`` tokens.

    Raises:
        DataError: Every pair is dropped.
    """
    rows = writer.split("train", has_text=False)
    total = _encode(path, "train", rows, tokenizer, trees, max_tokens=max_tokens, workers=workers, progress=progress)
    info = rows.close()
    return info, total - info.pairs


def encode_held_out(
    path: Path,
    writer: CorpusWriter,
    tokenizer: Tokenizer,
    trees: Linearisation | None,
    *,
    workers: int,
    progress: Progress,
) -> SplitInfo:
    """Write the validation or test split, which ``path`` is named after: every pair, with its raw text."""
    rows = writer.split(path.stem, has_text=True)
    _encode(path, path.stem, rows, tokenizer, trees, max_tokens=None, workers=workers, progress=progress)
    return rows.close()


def _encode(
    path: Path,
    split: str,
    rows: SplitWriter,
    tokenizer: Tokenizer,
    trees: Linearisation | None,
    *,
    max_tokens: int | None,
    workers: int,
    progress: Progress,
) -> int:
    total = count_pairs(path)
    written = 0
    with progress.task(f"encode {split}", total) as advance:
        given = {"tokenizer": tokenizer, "max_tokens": max_tokens, "trees": trees}
        for table in map_pairs(path, encode_pairs, workers, advance, **given):
            rows.write(table)
            written += table.num_rows
    if not written:
        raise DataError(f"all {total} {split} pairs have more than {max_tokens} tokens: raise --max-tokens")
    return total


def encode_pairs(
    table: pa.Table, tokenizer: Tokenizer, max_tokens: int | None, trees: Linearisation | None = None
) -> pa.Table:
    """Encode both sides, without BOS and EOS.

    Args:
        table: Pairs.
        tokenizer: The tokenizer.
        max_tokens: Drop pairs with more tokens on either side; None keeps every pair and its raw text.
        trees: How the trees of the target side are written, if it is no text.
    """
    sources = table["src"].to_pylist()
    if trees is not None:
        sources = [trees.sentence(source.split(" ")) for source in sources]
    src = _column(tokenizer.encode(sources, threads=1))
    texts = table["tgt"].to_pylist()
    tgt = _column(tokenizer.encode(texts, threads=1) if trees is None else _encode_trees(texts, tokenizer, trees))
    if max_tokens is None:
        return pa.table({"src": src, "tgt": tgt, "src_text": table["src"], "tgt_text": table["tgt"]})
    longer = pc.max_element_wise(pc.list_value_length(src), pc.list_value_length(tgt))
    return pa.table({"src": src, "tgt": tgt}).filter(pc.less_equal(longer, max_tokens))


def _encode_trees(texts: list[str], tokenizer: Tokenizer, trees: Linearisation) -> list[list[int]]:
    """Encode each symbol as its piece; one that is not in the training trees is UNK."""
    symbols = tokenizer.symbols
    return [[symbols.get(symbol, UNK_ID) for symbol in trees.write(parse_tree(text))] for text in texts]


def _column(ids: list[list[int]]) -> pa.ListArray:
    offsets = np.cumsum([0, *map(len, ids)], dtype=np.int32)
    return pa.ListArray.from_arrays(offsets, np.fromiter(chain.from_iterable(ids), dtype=np.int32, count=offsets[-1]))
