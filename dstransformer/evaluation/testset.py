"""Evaluates a model on a test set in two text files, for ``dst evaluate``."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from dstransformer.errors import DataError, UserError, counted
from dstransformer.evaluation.bleu import compound_split_bleu, score
from dstransformer.evaluation.result import Evaluation
from dstransformer.textfiles import is_same_file, iter_lines

logger = logging.getLogger(__name__)


class SentenceTranslator(Protocol):
    """A model that translates sentences one to one, in order."""

    def translate(self, sentences: Sequence[str], progress: Callable[[int], None] | None = None) -> list[str]:
        """Translate sentences. ``progress`` is called after each batch with its number of sentences."""
        ...


def read_test_set(src: str, ref: str) -> tuple[list[str], list[str]]:
    """Read source sentences and reference translations from two plain or gzipped files, one sentence per line.

    Raises:
        UserError: Both are the same file.
        DataError: A file cannot be read, is empty or not UTF-8, or the numbers of lines differ.
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


def evaluate_test_set(
    sources: Sequence[str],
    references: Sequence[str],
    translator: SentenceTranslator,
    *,
    language: str | None = None,
    write: Callable[[str], None] | None = None,
    progress: Callable[[int], None] | None = None,
) -> Evaluation:
    """Translate a test set and score it against its reference.

    Args:
        sources: Source sentences.
        references: The reference translation of each source sentence.
        translator: The model.
        language: Code of the target language. If given, the paper's compound-split BLEU is computed as well.
        write: Called with each translation, in order, before scoring.
        progress: See :meth:`SentenceTranslator.translate`.
    """
    began = time.perf_counter()
    translations = translator.translate(sources, progress)
    seconds = time.perf_counter() - began
    if write is not None:
        for translation in translations:
            write(translation)
    for what, sentences in (("source", sources), ("reference", references), ("translation", translations)):
        if not any(map(str.strip, sentences)):
            logger.warning("every line of the %s is empty: the scores are meaningless", what)
            break
    scores = score(translations, references)
    if language is not None:
        scores = (*scores, compound_split_bleu(translations, references, language))
    return Evaluation(scores, sentences=len(sources), seconds=seconds)
