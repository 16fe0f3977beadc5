"""Scores several systems on several test sets, for ``dst evaluate``."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from dstransformer.errors import DstError, counted
from dstransformer.evaluation.bleu import score_translations
from dstransformer.evaluation.result import Evaluation, Score
from dstransformer.evaluation.significance import Comparison
from dstransformer.evaluation.testset import TestSet, check_lines
from dstransformer.io.progress import Advance
from dstransformer.io.text import iter_lines

if TYPE_CHECKING:
    from dstransformer.decoding import Translator
    from dstransformer.evaluation.learned import LearnedMetric
    from dstransformer.model import Bundle

logger = logging.getLogger(__name__)

#: Version of a result's JSON.
FORMAT_VERSION = 1


@dataclass(frozen=True)
class SystemResult:
    """The scores of a system on a test set.

    Attributes:
        system: The name of the system.
        test_set: The test set.
        evaluation: Scores and translations.
        facts: The origin of the translations, as plain data: path, hashes and step of a bundle, search settings, device
            and precision; otherwise the file.
    """

    system: str
    test_set: TestSet
    evaluation: Evaluation
    facts: dict[str, Any]

    def to_json(self) -> dict[str, Any]:
        """Plain data for ``--json``, for the files of ``--follow`` and for MLflow."""
        return {
            "format_version": FORMAT_VERSION,
            "system": self.system,
            **self.evaluation.to_json(),
            **self.facts,
            "test_set": self.test_set.to_json(),
        }


def bundle_facts(bundle: Bundle, translator: Translator, tokenize: str) -> dict[str, Any]:
    """What identifies a bundle and a search with it, as plain data."""
    return {
        "bundle": str(bundle.path),
        "weights_sha256": bundle.weights_sha256,
        "tokenizer_sha256": bundle.tokenizer.sha256,
        "src_tokenizer_sha256": None if bundle.tokenizer.is_joint else bundle.tokenizer.src.sha256,
        "step": bundle.provenance.get("step"),
        "tokenize": tokenize,
        **translator.describe(),
    }


def target_language(bundle: Bundle, translator: Translator) -> str | None:
    """Code of the language that a translator of a bundle writes; None if each sentence names its own."""
    return bundle.tgt_lang if translator.tags is None else translator.tags.target


def evaluate_bundle(
    bundle: Bundle,
    translator: Translator,
    test_sets: Iterable[TestSet],
    *,
    name: str,
    tokenize: str,
    language: str | None = None,
    learned: Sequence[LearnedMetric] = (),
    is_lenient: bool = False,
    write: Callable[[str], None] | None = None,
    progress: Advance | None = None,
) -> list[SystemResult]:
    """Translate test sets with a bundle and score them.

    Args:
        bundle: The bundle.
        translator: Its translator.
        test_sets: The test sets, all with sources.
        name: The name of the system.
        tokenize: The tokenizer of BLEU.
        language: Code of the target language of a bundle that does not know its own.
        learned: Learned metrics, to add their scores.
        is_lenient: Whether a learned metric that fails is a warning.
        write: Called with each translation, in order, before scoring.
        progress: Called with the number of sentences just translated.
    """
    results = []
    facts = bundle_facts(bundle, translator, tokenize)
    for test_set in test_sets:
        assert test_set.sources is not None
        began = time.perf_counter()
        translations = translator.translate(test_set.sources, progress)
        seconds = time.perf_counter() - began
        if write is not None:
            for translation in translations:
                write(translation)
        target = target_language(bundle, translator) or language
        evaluation = score_translations(translations, test_set.references, target, tokenize)
        evaluation = replace(evaluation, seconds=seconds)
        texts: Sequence[str] = test_set.sources
        tags: set[str] = set()
        if translator.tags is not None:
            begins, texts = translator.tags.split(test_set.sources, 1)
            tags = {begin for begin, text in zip(begins, texts, strict=True) if text.strip()}
        if len(tags) > 1:
            logger.warning(
                "%s has sentences of several directions (%s): each score is one for all of them; for a score of each, "
                "evaluate a file of each",
                test_set.name, ", ".join(sorted(tag.strip() or "no tag" for tag in tags)),
            )  # fmt: skip
        evaluation = _with_learned(evaluation, texts, test_set, learned, is_lenient=is_lenient)
        results.append(SystemResult(name, test_set, evaluation, facts))
    return results


def read_translations(path: str, test_set: TestSet) -> list[str]:
    """Read the translations of a test set from a file, one per line, plain or gzipped.

    Raises:
        DataError: The file cannot be read, or has another number of lines than the reference.
    """
    lines = list(iter_lines(path))
    check_lines(path, len(lines), test_set.ref, len(test_set.references))
    return lines


def evaluate_file(
    path: str,
    lines: Sequence[str],
    test_set: TestSet,
    language: str | None,
    tokenize: str,
    learned: Sequence[LearnedMetric] = (),
) -> SystemResult:
    """Score the ``lines`` of a file, see :func:`read_translations`; other arguments as for :func:`evaluate_bundle`."""
    evaluation = score_translations(lines, test_set.references, language, tokenize)
    evaluation = _with_learned(evaluation, test_set.sources, test_set, learned)
    return SystemResult(path, test_set, evaluation, {"file": path})


def _with_learned(
    evaluation: Evaluation,
    sources: Sequence[str] | None,
    test_set: TestSet,
    learned: Sequence[LearnedMetric],
    *,
    is_lenient: bool = False,
) -> Evaluation:
    """Add the scores of learned metrics; ``sources`` are those of the test set, without tags of directions."""
    for metric in learned:
        assert sources is not None
        try:
            score, of_sentences = metric.score(sources, evaluation.translations, test_set.references)
        except DstError as error:
            if not is_lenient:
                raise
            logger.warning("%s: no %s score for %s", error, metric.name, test_set.name)
            continue
        scores, sentence_scores = (*evaluation.scores, score), {**evaluation.sentence_scores, score.name: of_sentences}
        evaluation = replace(evaluation, scores=scores, sentence_scores=sentence_scores)
    return evaluation


def format_result(result: SystemResult) -> str:
    """A single result as lines of text: the scores with their signatures, and the settings they were computed with."""
    evaluation, facts = result.evaluation, result.facts
    lines = [str(score) for score in evaluation.scores]
    if "bundle" in facts:
        lines.append(
            f"{counted(evaluation.sentences, 'sentence')} in {evaluation.seconds:.1f} s, beam {facts['beam_size']}, "
            f"length penalty {facts['length_penalty']}, {facts['precision']} on {facts['device']}"
        )
    return "\n".join(lines)


def format_line(result: SystemResult) -> str:
    """A result on one line, without signatures, for results that arrive one at a time."""
    step = result.facts.get("step")
    where = f"{result.system:13}" + (f" (step {step:,})" if result.system == "bundle" and step else "")
    scores = "  ".join(f"{score.label} {score.value:.2f}" for score in result.evaluation.scores)
    return f"{where}  {result.test_set.name}  {scores}  ({result.evaluation.seconds:.1f} s)"


def format_table(results: Sequence[SystemResult], comparisons: Mapping[str, Comparison]) -> str:
    """Results as a table, a row for each system on each test set, with the signatures below.

    Args:
        results: The results, test set by test set.
        comparisons: The test of significance of each test set, by its name; empty if there was none.
    """
    columns = {score.name: score for result in results for score in result.evaluation.scores}
    rows = [["test set", "system", *(score.label for score in columns.values())]]
    for result in results:
        scores = {score.name: score for score in result.evaluation.scores}
        cells = [_format_cell(scores.get(name), result, comparisons.get(result.test_set.name)) for name in columns]
        rows.append([result.test_set.name, result.system, *cells])
    footnotes = [f"{score.label}: {score.signature}" for score in columns.values()]
    footnotes += dict.fromkeys(comparison.describe() for comparison in comparisons.values())
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([*lines, "", *footnotes])


def _format_cell(score: Score | None, result: SystemResult, comparison: Comparison | None) -> str:
    if score is None:
        return "-"
    text = f"{score.value:.2f}"
    if comparison is None or score.name not in comparison.differences:
        return text
    difference = comparison.differences[score.name][comparison.systems.index(result.system)]
    if difference.interval is not None:
        text += f" ± {difference.interval:.2f}"
    if difference.p_value is not None:
        text += f" (p {difference.p_value:.4f}{'*' if difference.is_significant else ''})"
    return text
