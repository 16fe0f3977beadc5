"""What ``dst evaluate`` does."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from dstransformer.corpus.lines import iter_lines, writing_lines
from dstransformer.errors import DataError
from dstransformer.evaluation.bleu import Score, compound_split_bleu, score


class Translates(Protocol):
    """A model that turns sentences into their translations, one for each, in order."""

    def translate(self, sentences: Sequence[str]) -> list[str]:
        """Translate."""
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


def evaluate_files(
    src: str, ref: str, translator: Translates, output: str | None = None, *, language: str | None = None
) -> Report:
    """Translate a test set and score it against its reference.

    Args:
        src: Source text, one sentence a line, plain or gzipped.
        ref: Its reference translation, line by line.
        translator: The model.
        output: A file that keeps the translations.
        language: Code of the target language, to report the paper's compound-split BLEU as well.

    Raises:
        DataError: Files that cannot be read, are empty or not UTF-8, or are of different length.
        StorageError: The output cannot be written.
    """
    sources, references = list(iter_lines(src)), list(iter_lines(ref))
    if len(sources) != len(references):
        raise DataError(
            f"{src} has {len(sources)} lines but {ref} has {len(references)}: "
            "line n of one must translate line n of the other"
        )
    began = time.perf_counter()
    if output is None:
        translations = translator.translate(sources)
    else:
        with writing_lines(output) as write:
            translations = translator.translate(sources)
            for translation in translations:
                write(translation)
    seconds = time.perf_counter() - began
    plain = score(translations, references)
    own = () if language is None else (compound_split_bleu(translations, references, language),)
    return Report(len(sources), seconds, (plain.bleu, plain.chrf, *own))
