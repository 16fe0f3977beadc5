"""Pairs from structured records, in the two common layouts: JSON lines, Parquet and Arrow.

Either one column per language, named by its code, or the hub's ``{"translation": {"de": …, "en": …}}``.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from data_prep.sources.texts import Text
from data_prep.store.pairs import TEXT
from dstransformer.data.arrow_stream import check_batches
from dstransformer.errors import DataError, shown

_BATCH_ROWS = 10_000

#: Maximum bytes that a compressed batch of an Arrow file may state.
_MAX_BATCH_BYTES = 2**30

#: The first bytes of an Arrow file. An Arrow stream and a table of contents follow them.
_ARROW_MAGIC = b"ARROW1\0\0"


def pair_of_record(record: Any, src_lang: str, tgt_lang: str, where: str) -> tuple[str, str]:
    """Return both sentences of a decoded JSON record.

    Raises:
        DataError: A sentence is missing or is not text. The message names ``where``.
    """
    sides = record.get("translation", record) if isinstance(record, dict) else None
    src, tgt = (sides.get(src_lang), sides.get(tgt_lang)) if isinstance(sides, dict) else (None, None)
    if not isinstance(src, str) or not isinstance(tgt, str):
        raise DataError(
            f"{where}: wanted an object with the strings {src_lang!r} and {tgt_lang!r}, "
            f'or {{"translation": …}} around it; found {str(record)[:60]}'
        )
    return src, tgt


def read_parquet(text: Text, src_lang: str, tgt_lang: str) -> Iterator[pa.Table]:
    """Read the pairs of a Parquet file.

    Raises:
        DataError: The file is damaged, or a column or a value is missing.
    """
    first = 0
    with _reading(text, "Parquet"):
        for batch in pq.ParquetFile(text.path).iter_batches(batch_size=_BATCH_ROWS):
            yield pairs_of_table(pa.Table.from_batches([batch]), src_lang, tgt_lang, str(text), first)
            first += batch.num_rows


def read_arrow(text: Text, src_lang: str, tgt_lang: str) -> Iterator[pa.Table]:
    """Read the pairs of an Arrow file, such as Feather writes it (version 2), or of an Arrow stream. It is mapped.

    Raises:
        DataError: The file is damaged, or a column or a value is missing.
    """
    first = 0
    with _reading(text, "Arrow"), pa.memory_map(str(text.path)) as file:
        begin = len(_ARROW_MAGIC) if file.read(len(_ARROW_MAGIC)) == _ARROW_MAGIC else 0
        file.seek(begin)
        check_batches(file, _MAX_BATCH_BYTES)
        file.seek(begin)
        for batch in pa.ipc.open_stream(file):
            batch.validate(full=True)
            for part in pa.Table.from_batches([batch]).to_batches(max_chunksize=_BATCH_ROWS):
                yield pairs_of_table(pa.Table.from_batches([part]), src_lang, tgt_lang, str(text), first)
                first += part.num_rows


@contextmanager
def _reading(text: Text, kind: str) -> Iterator[None]:
    """Refuse a member of an archive, which is a stream, and explain why a file cannot be read."""
    if text.member:
        raise DataError(f"{text} cannot be read inside an archive: unpack the archive, or convert the file to .jsonl")
    try:
        yield
    except (pa.ArrowException, OSError, UnicodeError) as error:
        reason = shown(error, quote=False, limit=300)
        advice = "write the text as UTF-8" if "UTF8" in reason or isinstance(error, UnicodeError) else "copy it again"
        raise DataError(f"{text} cannot be read as {kind} ({reason}): {advice}, or convert it to .jsonl") from None


def pairs_of_table(table: pa.Table, src_lang: str, tgt_lang: str, where: str, first_row: int = 0) -> pa.Table:
    """Return the pairs of a table.

    Raises:
        DataError: A column or a value is missing. The message names ``where`` and the row, counted from ``first_row``.
        pyarrow.ArrowInvalid: A text is not UTF-8.
    """
    if "translation" in table.column_names and pa.types.is_struct(table.schema.field("translation").type):
        table = pa.Table.from_struct_array(table["translation"])
    wrong = [lang for lang in (src_lang, tgt_lang) if table.column_names.count(lang) != 1]
    if wrong:
        has = "several columns" if wrong[0] in table.column_names else "no column"
        names = shown(", ".join(table.column_names) or "none", quote=False)
        raise DataError(
            f"{where} has {has} {wrong[0]!r}; it has {names}: "
            "correct --src-lang and --tgt-lang, or name the columns by language code"
        )
    pairs = table.select([src_lang, tgt_lang]).rename_columns(TEXT.names)
    for name, lang in (("src", src_lang), ("tgt", tgt_lang)):
        if not (pa.types.is_string(pairs[name].type) or pa.types.is_large_string(pairs[name].type)):
            raise DataError(f"{where}: column {lang!r} holds {pairs[name].type}, wanted text")
        if pairs[name].null_count:
            row = first_row + pc.index(pc.is_null(pairs[name]), True).as_py() + 1
            raise DataError(f"{where}, row {row}: column {lang!r} is null; remove that row")
    pairs = pairs.cast(TEXT)
    pairs.validate(full=True)  # text that is not UTF-8
    return pairs
