"""What ``dst evaluate`` does."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from dstransformer.corpus.lines import is_same_file, iter_lines
from dstransformer.errors import DataError, UserError, counted
from dstransformer.evaluation.bleu import Score, compound_split_bleu, score

logger = logging.getLogger(__name__)


class Translates(Protocol):
    """A model that turns sentences into their translations, one for each, in order."""

    def translate(self, sentences: Sequence[str], progress: Callable[[int], None] | None = None) -> list[str]:
        """Translate; ``progress`` is called with a number of sentences whenever so many more are done."""
        ...


@dataclass(frozen=True)
class Report:
    """The scores of a test set.

    Attributes:
        sentences: Pairs scored.
        seconds: Time that the translation took.
        scores: BLEU first.
    """

    sentences: int
    seconds: float
    scores: tuple[Score, ...]

    def as_json(self) -> dict[str, Any]:
        """For ``--json``: the fields, and each score with its signature."""
        return asdict(self)

    def as_text(self) -> str:
        """For people: a line for each score, and one for the speed."""
        lines = [f"{entry.name} {entry.value:.2f} ({entry.signature})" for entry in self.scores]
        return "\n".join([*lines, f"{self.sentences} sentences in {self.seconds:.1f} s"])


def read_test_set(src: str, ref: str) -> tuple[list[str], list[str]]:
    """Source sentences and their reference translations, from two files, plain or gzipped, line by line.

    Raises:
        UserError: The same file twice.
        DataError: Files that cannot be read, are empty or not UTF-8, or are of different length.
    """
    if is_same_file(src, ref):
        raise UserError(f"--src and --ref are the same file, {ref}: name the reference translation")
    sources, references = list(iter_lines(src)), list(iter_lines(ref))
    if len(sources) != len(references):
        raise DataError(
            f"{src} has {counted(len(sources), 'line')} but {ref} has {len(references)}: "
            "line n of one must translate line n of the other"
        )
    return sources, references


def evaluate(
    sources: Sequence[str],
    references: Sequence[str],
    translator: Translates,
    *,
    language: str | None = None,
    write: Callable[[str], None] | None = None,
    progress: Callable[[int], None] | None = None,
) -> Report:
    """Translate a test set and score it against its reference.

    Args:
        sources: Of :func:`read_test_set`.
        references: As many.
        translator: The model.
        language: Code of the target language, to report the paper's compound-split BLEU as well.
        write: Keeps a translation; it is called for each, in order, before any is scored.
        progress: See :meth:`Translates.translate`.
    """
    began = time.perf_counter()
    translations = translator.translate(sources, progress)
    seconds = time.perf_counter() - began
    if write is not None:
        for translation in translations:
            write(translation)
    for what, sentences in (("source", sources), ("reference", references), ("translation", translations)):
        if not any(map(str.strip, sentences)):
            logger.warning("every line of the %s is empty: the scores say nothing", what)
            break
    plain = score(translations, references)
    own = () if language is None else (compound_split_bleu(translations, references, language),)
    return Report(len(sources), seconds, (plain.bleu, plain.chrf, *own))
