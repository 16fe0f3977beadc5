"""Pairs from structured records, in the two common layouts.

Either one column per language, named by its code, or the hub's ``{"translation": {"de": …, "en": …}}``.
"""

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from data_prep.pairs import TEXT
from dstransformer.errors import DataError


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


def pairs_of_table(table: pa.Table, src_lang: str, tgt_lang: str, where: str, first_row: int = 0) -> pa.Table:
    """Return the pairs of a table.

    Raises:
        DataError: A column or a value is missing. The message names ``where`` and the row, counted from ``first_row``.
        pyarrow.ArrowInvalid: A text is not UTF-8.
    """
    if "translation" in table.column_names and pa.types.is_struct(table.schema.field("translation").type):
        table = pa.Table.from_struct_array(table["translation"])
    missing = [lang for lang in (src_lang, tgt_lang) if lang not in table.column_names]
    if missing:
        raise DataError(
            f"{where} has no column {missing[0]!r}; it has {', '.join(table.column_names) or 'none'}: "
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
