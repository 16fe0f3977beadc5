"""N-best lists in JSON lines, as ``dst translate --n-best N --format jsonl`` writes them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from dstransformer.errors import DataError, shown
from dstransformer.io.json_text import JsonError, parse_json
from dstransformer.io.text import iter_lines

#: The key that reranking adds: the log-probability of the source, given the hypothesis.
REVERSE = "reverse_log_probability"

#: The largest number of a line and of its tokens; beyond it floats leave whole numbers out.
_LARGEST = 1 << 53


@dataclass(frozen=True)
class Candidate:
    """A hypothesis of an n-best list.

    Attributes:
        line: Number of the source sentence, from 1.
        source: The source sentence.
        text: The hypothesis.
        log_probability: Of the hypothesis, given the source, in nats.
        tokens: Its length in tokens.
        reverse: Log-probability of the source, given the hypothesis; None if it is not known.
        fields: The whole JSON object.
    """

    line: int
    source: str
    text: str
    log_probability: float
    tokens: int
    reverse: float | None
    fields: dict[str, Any]


def iter_nbest(path: str) -> Iterator[list[Candidate]]:
    """Iterate over the hypotheses of each source sentence, in the order of the file.

    Raises:
        DataError: The file cannot be read, a line is not a hypothesis, or the sentences are not in order.
    """
    last = 0
    for line, group in groupby(_iter_candidates(path), key=lambda candidate: candidate.line):
        if line < last:
            raise DataError(f"{path}: the hypotheses of source line {line} come after those of line {last}: sort them")
        last = line
        yield list(group)


def _iter_candidates(path: str) -> Iterator[Candidate]:
    for number, line in enumerate(iter_lines(path), 1):
        try:
            fields = parse_json(line, nan=True)
            problem = "" if isinstance(fields, dict) else f"a {type(fields).__name__}"
        except JsonError as error:
            problem = str(error)
        if problem:
            raise DataError(
                f"{path}, line {number}: {shown(line)} is not a JSON object ({problem}); "
                "`dst translate --n-best N --format jsonl` writes such lists"
            )
        yield _read(fields, f"{path}, line {number}")


def _read(fields: dict[str, Any], place: str) -> Candidate:
    reverse = fields.get(REVERSE)
    return Candidate(
        line=_whole(fields, "line", 1, place),
        source=_text(fields, "source", place),
        text=_text(fields, "text", place),
        log_probability=_number(fields, "log_probability", place),
        tokens=_whole(fields, "tokens", 0, place),
        reverse=None if reverse is None else _number(fields, REVERSE, place),
        fields=fields,
    )


def _text(fields: dict[str, Any], name: str, place: str) -> str:
    value = fields.get(name)
    if not isinstance(value, str):
        raise DataError(f"{place}: {name} is {shown(value)}, not a text")
    return value


def _whole(fields: dict[str, Any], name: str, least: int, place: str) -> int:
    value = fields.get(name)
    if type(value) is not int or value < least:
        raise DataError(f"{place}: {name} is {shown(value)}, not a whole number from {least} on")
    if value > _LARGEST:
        raise DataError(f"{place}: {name} is {shown(value)}, more than {_LARGEST:,}")
    return value


def _number(fields: dict[str, Any], name: str, place: str) -> float:
    value = fields.get(name)
    if type(value) not in (int, float) or not abs(value) < math.inf:  # type: ignore[arg-type]
        raise DataError(f"{place}: {name} is {shown(value)}, not a finite number")
    return float(value)  # type: ignore[arg-type]
