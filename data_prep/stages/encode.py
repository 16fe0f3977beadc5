"""Stage four: encode the text in parallel and write the sharded corpus."""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import BaseModel, ConfigDict

from data_prep.stages.words import Counts, count_words, describe_words, no_words
from data_prep.store.chunks import make_piece, open_pieces
from data_prep.store.pairs import Piece, cut_pairs, iter_piece
from data_prep.workers.pool import Workers, run_tasks
from dstransformer.corpus import UNK_ID, CorpusWriter, SplitInfo, SplitWriter, Tokenizer, WordCounts
from dstransformer.corpus.tokenizer import SRC_TOKENIZER_NAME, TOKENIZER_NAME
from dstransformer.errors import DataError
from dstransformer.parsing.linearise import Linearisation
from dstransformer.parsing.trees import parse_tree
from dstransformer.terminal.progress import Progress

#: The token ids in the folder of a piece.
_IDS = "ids.arrow"


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


class Encoded(BaseModel):
    """The pairs of an encoded piece, by part, and its sentences by their words, see :func:`count_words`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    parts: list[int]
    words: list[list[int]]


class Training(NamedTuple):
    """The training split: how many pairs were too long, those of each part that are in it, and the words of all."""

    info: SplitInfo
    too_long: int
    parts: Sequence[int]
    words: WordCounts


@dataclass(frozen=True)
class _Encoding:
    """What a worker must know to encode a piece: ``identity`` is that of the tokenizer in the folder ``vocab``."""

    root: Path
    schema: pa.Schema
    vocab: Path
    identity: str
    form: Form
    max_tokens: int | None


@dataclass(frozen=True)
class Encoder:
    """Encodes the splits of a corpus.

    Attributes:
        folder: Where the pieces go.
        writer: Writes the corpus.
        vocab: The folder of the tokenizer.
        identity: Of the tokenizer.
        form: How sentences are written.
        workers: Who does it.
        progress: Shows what is done.
    """

    folder: Path
    writer: CorpusWriter
    vocab: Path
    identity: str
    form: Form
    workers: Workers
    progress: Progress

    def encode_train(self, path: Path, max_tokens: int) -> Training:
        """Write the training split, without pairs that have more than ``max_tokens`` tokens on either side.

        Raises:
            DataError: Every pair is dropped.
        """
        rows = self.writer.split("train", has_text=False)
        total, parts, words = self._encode(path, rows, max_tokens)
        info = rows.close()
        return Training(info, total - info.pairs, parts, describe_words(words))

    def encode_held_out(self, path: Path) -> SplitInfo:
        """Write the validation or test split, which ``path`` is named after: every pair, with its raw text."""
        rows = self.writer.split(path.stem, has_text=True)
        self._encode(path, rows, None)
        return rows.close()

    def _encode(self, path: Path, rows: SplitWriter, max_tokens: int | None) -> tuple[int, list[int], Counts]:
        pieces = cut_pairs(path)
        total = sum(piece.rows for piece in pieces)
        parts, words = np.zeros(len(self.form.tags), dtype=np.int64), no_words()
        root = open_pieces(self.folder)
        given = _Encoding(root, rows.schema, self.vocab, self.identity, self.form, max_tokens)
        with (
            self.progress.task(f"encode {path.stem}", total) as advance,
            closing(run_tasks(partial(_encode_piece, given), pieces, self.workers)) as results,
        ):
            for piece, report in zip(pieces, results, strict=True):
                with pa.memory_map(str(_encoded_piece(root, piece) / _IDS)) as file:
                    rows.write(pa.ipc.open_stream(file).read_all())
                parts[: len(report.parts)] += np.array(report.parts, dtype=np.int64)
                words += report.words
                advance(piece.rows)
        if not parts.any() and max_tokens is not None:
            raise DataError(f"all {total} {path.stem} pairs have more than {max_tokens} tokens: raise --max-tokens")
        return total, parts.tolist(), words


def _encoded_piece(root: Path, piece: Piece) -> Path:
    return root / f"{piece.path.stem}-{piece.number:06d}"


def _encode_piece(given: _Encoding, piece: Piece) -> Encoded:
    """Write the token ids of a piece."""

    def make(folder: Path) -> Encoded:
        tokenizer = _keep_tokenizer(given.vocab, given.identity)
        parts, words = [np.empty(0, dtype=np.uint16)], no_words()
        with pa.ipc.new_stream(str(folder / _IDS), given.schema) as stream:
            for batch in iter_piece(piece):
                table = encode_pairs(batch, tokenizer, given.max_tokens, given.form)
                stream.write_table(table.select(given.schema.names).cast(given.schema))
                parts.append(table["part"].to_numpy())
                words += count_words(table["src_text"], table["tgt_text"])
        return Encoded(parts=np.bincount(np.concatenate(parts)).tolist(), words=words.tolist())

    return make_piece(_encoded_piece(given.root, piece), Encoded, make)


@lru_cache(maxsize=1)
def _keep_tokenizer(vocab: Path, identity: str) -> Tokenizer:
    """Load the tokenizer. A worker keeps it from one piece to the next."""
    tokenizer = load_tokenizer(vocab)
    if tokenizer.identity != identity:
        raise DataError(f"the tokenizer in {vocab} has changed since the build began: run it again")
    return tokenizer


def load_tokenizer(vocab: Path) -> Tokenizer:
    """Load the tokenizer, with the one of the source side if there is one, that stage three left in a folder.

    Raises:
        DataError: It is gone or damaged.
    """
    src = vocab / SRC_TOKENIZER_NAME
    return Tokenizer.load(vocab / TOKENIZER_NAME, Tokenizer.load(src) if src.exists() else None)


def encode_pairs(table: pa.Table, tokenizer: Tokenizer, max_tokens: int | None, form: Form) -> pa.Table:
    """Encode both sides, without BOS and EOS.

    Args:
        table: Pairs.
        tokenizer: The tokenizer.
        max_tokens: Drop pairs with more tokens on either side; None keeps every pair.
        form: How sentences are written.

    Returns:
        The ids, the part, and the text: ``src_text`` with its tag if every pair is kept, as held-out text is stored.
    """
    sentences, trees = form.tag(table), form.trees
    words = sentences if trees is None else [trees.sentence(sentence.split(" ")) for sentence in sentences]
    src = _column(tokenizer.src.encode(words, threads=1))
    texts = table["tgt"].to_pylist()
    tgt = _column(tokenizer.encode(texts, threads=1) if trees is None else _encode_trees(texts, tokenizer, trees))
    encoded = pa.table({"src": src, "tgt": tgt, "part": table["part"], "tgt_text": table["tgt"]})
    if max_tokens is None:
        return encoded.append_column("src_text", pa.array(sentences, pa.string()))
    encoded = encoded.append_column("src_text", table["src"])
    longer = pc.max_element_wise(pc.list_value_length(src), pc.list_value_length(tgt))
    return encoded.filter(pc.less_equal(longer, max_tokens))


def _encode_trees(texts: list[str], tokenizer: Tokenizer, trees: Linearisation) -> list[list[int]]:
    """Encode each symbol as its piece; one that is not in the training trees is UNK."""
    symbols = tokenizer.symbols
    return [[symbols.get(symbol, UNK_ID) for symbol in trees.write(parse_tree(text))] for text in texts]


def _column(ids: list[list[int]]) -> pa.ListArray:
    offsets = np.cumsum([0, *map(len, ids)], dtype=np.int32)
    return pa.ListArray.from_arrays(offsets, np.fromiter(chain.from_iterable(ids), dtype=np.int32, count=offsets[-1]))
