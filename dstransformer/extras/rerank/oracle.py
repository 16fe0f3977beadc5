"""The best hypothesis of each n-best list by a reference: the texts of sequence-level interpolation."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NoReturn

from sacrebleu.metrics.chrf import CHRF

from dstransformer.data.tokenizer import plain_spaces
from dstransformer.errors import DataError, counted
from dstransformer.extras.rerank.reranking import Candidate


def oracle_lines(groups: Iterable[list[Candidate]], references: Iterable[str], path: str) -> Iterator[str]:
    """The hypothesis of each source line with the highest chrF2 against its reference; the earlier one of equals.

    Sequence-level interpolation (Kim and Rush, 2016, section 3.3) trains a student on them: they are what the teacher
    finds probable, and close to the reference. Their similarity is sentence BLEU, which is zero for most short texts.

    Args:
        groups: The hypotheses of each source line, in the order of the lines.
        references: The reference of each source line.
        path: The file of the references, for messages.

    Yields:
        One text for each reference; empty where the list has none.

    Raises:
        DataError: The list has more lines than the references, or its end is missing.
    """
    metric = CHRF()
    remaining = iter(references)
    line, reference, blank = 0, "", True
    for group in groups:
        wanted = group[0].line
        while line < wanted:
            found = next(remaining, None)
            if found is None:
                _refuse(path, line, wanted)
            line, reference = line + 1, found
            if line < wanted:
                yield ""
        scores = [metric.sentence_score(candidate.text, [reference]).score for candidate in group]
        yield plain_spaces(group[scores.index(max(scores))].text)
    listed = line
    for rest in remaining:
        line, blank = line + 1, blank and not rest.strip()
        yield ""
    if not blank:
        _refuse(path, line, listed)


def _refuse(path: str, lines: int, listed: int) -> NoReturn:
    what = "goes on to" if listed > lines else "ends at"
    raise DataError(
        f"{path} has {counted(lines, 'line')} but the n-best list {what} source line {listed}: line n of one must "
        "translate line n of the other"
    )
