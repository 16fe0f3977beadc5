"""Stage four: encode the text in parallel and write the sharded corpus."""

from dataclasses import dataclass
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


@dataclass(frozen=True)
class Form:
    """How sentences are written: the tag of each part, which its source sentences begin with, and trees."""

    tags: tuple[str | None, ...]
    trees: Linearisation | None = None

    def tag(self, table: pa.Table) -> list[str]:
        """The source sentences, each with the tag of its part."""
        sentences: list[str] = table["src"].to_pylist()
        if not any(self.tags):
            return sentences
        begins = [f"{tag} " if tag else "" for tag in self.tags]
        return [begins[part] + text for part, text in zip(table["part"].to_pylist(), sentences, strict=True)]


def encode_train(
    path: Path,
    writer: CorpusWriter,
    tokenizer: Tokenizer,
    form: Form,
    *,
    max_tokens: int,
    workers: int,
    progress: Progress,
) -> tuple[SplitInfo, int, list[int]]:
    """Write the training split.

    Returns:
        The split, the number of pairs dropped because a side has more than ``max_tokens`` tokens, and the pairs of each
        part.

    Raises:
        DataError: Every pair is dropped.
    """
    rows = writer.split("train", has_text=False)
    total, parts = _encode(path, rows, tokenizer, form, max_tokens=max_tokens, workers=workers, progress=progress)
    info = rows.close()
    return info, total - info.pairs, parts


def encode_held_out(
    path: Path,
    writer: CorpusWriter,
    tokenizer: Tokenizer,
    form: Form,
    *,
    workers: int,
    progress: Progress,
) -> SplitInfo:
    """Write the validation or test split, which ``path`` is named after: every pair, with its raw text."""
    rows = writer.split(path.stem, has_text=True)
    _encode(path, rows, tokenizer, form, max_tokens=None, workers=workers, progress=progress)
    return rows.close()


def _encode(
    path: Path,
    rows: SplitWriter,
    tokenizer: Tokenizer,
    form: Form,
    *,
    max_tokens: int | None,
    workers: int,
    progress: Progress,
) -> tuple[int, list[int]]:
    total = count_pairs(path)
    parts = np.zeros(len(form.tags), dtype=np.int64)
    with progress.task(f"encode {path.stem}", total) as advance:
        given = {"tokenizer": tokenizer, "max_tokens": max_tokens, "form": form}
        for table in map_pairs(path, encode_pairs, workers, advance, **given):
            rows.write(table)
            parts += np.bincount(table["part"].to_numpy(), minlength=len(parts))
    if not parts.any():
        raise DataError(f"all {total} {path.stem} pairs have more than {max_tokens} tokens: raise --max-tokens")
    return total, parts.tolist()


def encode_pairs(table: pa.Table, tokenizer: Tokenizer, max_tokens: int | None, form: Form) -> pa.Table:
    """Encode both sides, without BOS and EOS.

    Args:
        table: Pairs.
        tokenizer: The tokenizer.
        max_tokens: Drop pairs with more tokens on either side; None keeps every pair and its raw text.
        form: How sentences are written.
    """
    sentences, trees = form.tag(table), form.trees
    words = sentences if trees is None else [trees.sentence(sentence.split(" ")) for sentence in sentences]
    src = _column(tokenizer.src.encode(words, threads=1))
    texts = table["tgt"].to_pylist()
    tgt = _column(tokenizer.encode(texts, threads=1) if trees is None else _encode_trees(texts, tokenizer, trees))
    if max_tokens is None:
        raw = {"src_text": pa.array(sentences, pa.string()), "tgt_text": table["tgt"]}
        return pa.table({"src": src, "tgt": tgt, "part": table["part"], **raw})
    longer = pc.max_element_wise(pc.list_value_length(src), pc.list_value_length(tgt))
    return pa.table({"src": src, "tgt": tgt, "part": table["part"]}).filter(pc.less_equal(longer, max_tokens))


def _encode_trees(texts: list[str], tokenizer: Tokenizer, trees: Linearisation) -> list[list[int]]:
    """Encode each symbol as its piece; one that is not in the training trees is UNK."""
    symbols = tokenizer.symbols
    return [[symbols.get(symbol, UNK_ID) for symbol in trees.write(parse_tree(text))] for text in texts]


def _column(ids: list[list[int]]) -> pa.ListArray:
    offsets = np.cumsum([0, *map(len, ids)], dtype=np.int32)
    return pa.ListArray.from_arrays(offsets, np.fromiter(chain.from_iterable(ids), dtype=np.int32, count=offsets[-1]))
