"""Word alignments that belong to the training text: read beside it, and checked against each pair."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

import pyarrow as pa

from data_prep.sources.finding import Stream
from data_prep.sources.texts import Text, iter_sentences
from dstransformer.data.alignment import format_links, parse_links
from dstransformer.errors import DataError


def with_alignments(stream: Stream, alignments: Sequence[Text]) -> Iterator[pa.Table]:
    """Add a column ``alignment`` to pairs: their links in the Pharaoh format, sorted.

    Args:
        stream: The pairs.
        alignments: Files with the links of all pairs, one after the other: of whitespace-separated words, from 0.

    Raises:
        DataError: A line does not fit its pair, or the number of lines is not that of the pairs.
    """
    lines = ((text, number, line) for text in alignments for number, line in enumerate(iter_sentences(text), 1))
    pairs = 0
    names = ", ".join(map(str, alignments))
    for table in stream():
        found = list(islice(lines, table.num_rows))
        pairs += len(found)
        if len(found) < table.num_rows:
            raise DataError(f"{names}: {pairs:,} alignments, fewer than pairs: line n must align the words of pair n")
        texts = zip(table["src"].to_pylist(), table["tgt"].to_pylist(), strict=True)
        checked = [
            format_links(parse_links(line, (len(src.split()), len(tgt.split())), f"{text}, line {number}"))
            for (text, number, line), (src, tgt) in zip(found, texts, strict=True)
        ]
        yield table.append_column("alignment", pa.array(checked, pa.string()))
    if next(lines, None) is not None:
        raise DataError(f"{names}: more alignments than the {pairs:,} pairs: line n must align the words of pair n")
