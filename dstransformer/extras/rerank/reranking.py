"""N-best lists in JSON lines, and reranking: by a model of the other direction, by minimum Bayes risk, by references.

The first is the noisy channel of Yee et al. (2019), the second that of Eikema and Aziz (2020, equation 4), where the
other hypotheses of a list stand for the references that the model considers possible.
"""

from __future__ import annotations

import json
import logging
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, groupby, product
from typing import Annotated, Any, Literal, NamedTuple, NoReturn, Protocol

import numpy as np
import numpy.typing as npt
from pydantic import Field, FiniteFloat, Strict, StrictInt, StrictStr, TypeAdapter, ValidationError
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from dstransformer.data.tokenizer import plain_spaces
from dstransformer.decoding.scoring import PairScore, Scorer
from dstransformer.decoding.texts import BUFFER_LINES
from dstransformer.errors import DataError, counted, shown
from dstransformer.evaluation.bleu import bleu_metric, score
from dstransformer.evaluation.result import Score
from dstransformer.io.json_text import JsonError, parse_json
from dstransformer.io.text import iter_lines

logger = logging.getLogger(__name__)

#: The key that reranking adds: the log-probability of the source, given the hypothesis.
REVERSE = "reverse_log_probability"

#: Lists by which a reverse model of the wrong direction is noticed.
_SAMPLE = 100

#: The maximum line number and token count. Floats do not represent every larger integer.
MAX_INTEGER = 1 << 53


@dataclass(frozen=True)
class Candidate:
    """A hypothesis of an n-best list, by the keys of its JSON object.

    Attributes:
        line: Number of the source sentence, from 1.
        source: The source sentence.
        text: The hypothesis.
        log_probability: Log-probability of the hypothesis, given the source, in nats.
        tokens: Its length in tokens.
        fields: The whole JSON object.
        reverse: Log-probability of the source, given the hypothesis; None if unknown.
    """

    line: Annotated[StrictInt, Field(ge=1, le=MAX_INTEGER)]
    source: StrictStr
    text: StrictStr
    log_probability: Annotated[FiniteFloat, Strict()]
    tokens: Annotated[StrictInt, Field(ge=0, le=MAX_INTEGER)]
    fields: dict[str, Any]
    reverse: Annotated[Annotated[FiniteFloat, Strict()] | None, Field(alias=REVERSE)] = None


_CANDIDATE = TypeAdapter(Candidate)


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
    writes = "`dst translate --n-best N --format jsonl` writes such lists"
    for number, line in enumerate(iter_lines(path), 1):
        where = f"{path}, line {number}"
        try:
            fields = parse_json(line, nan=True)
            problem = "" if isinstance(fields, dict) else f"a {type(fields).__name__}"
        except JsonError as error:
            problem = str(error)
        if problem:
            raise DataError(f"{where}: {shown(line)} is not a JSON object ({problem}); {writes}")
        try:
            candidate = _CANDIDATE.validate_python({**fields, "fields": fields})
        except ValidationError as error:
            first = error.errors()[0]
            name = first["loc"][0]
            if first["type"] == "missing":
                raise DataError(f"{where} has no {name!r}: {writes}") from None
            raise DataError(f"{where}: {name} is {shown(first['input'])}: {first['msg']}") from None
        yield candidate


Group = list[Candidate]


class Criterion(Protocol):
    """What hypotheses are reranked by."""

    def scores(self, group: Sequence[Candidate], /) -> list[float]:
        """The score of each hypothesis of a sentence; the highest is the best."""


class Weights(NamedTuple):
    """Weights of a hypothesis's log-probability, of the source's log-probability given it, and of its token count."""

    forward: float
    reverse: float
    length: float

    def __str__(self) -> str:
        return " ".join(f"{value:g}" for value in self)

    def scores(self, group: Sequence[Candidate]) -> list[float]:
        """``w_forward log p(y|x) + w_reverse log p(x|y) + w_length |y|`` of each, with ``|y|`` in tokens.

        Yee et al. (2019) divide the log-probabilities by lengths instead of adding a length term, and have a language
        model as a third one.
        """
        scored: list[float] = (_terms(group) @ np.array(self)).tolist()
        return scored


#: The weights that are tried. Only their ratios matter, so the forward model's is 1.
GRID = tuple(Weights(1.0, reverse / 10, length / 10) for reverse, length in product(range(21), range(-10, 21)))


def rerank(group: Sequence[Candidate], criterion: Criterion) -> list[tuple[Candidate, float]]:
    """The hypotheses of a sentence with their scores, best first; equal ones keep their order."""
    return sorted(zip(group, criterion.scores(group), strict=True), key=lambda pair: -pair[1])


def with_reverse_scores(
    groups: Iterable[Group], scorer: Scorer | None, path: str, progress: Callable[[int], None] | None = None
) -> Iterator[Group]:
    """Score the source of each hypothesis, given the hypothesis, in bounded memory.

    Args:
        groups: The hypotheses of each sentence.
        scorer: The model of the other direction; None if the list holds its scores.
        path: The list, for messages.
        progress: Called with the number of hypotheses just scored.

    Raises:
        DataError: Without a scorer, a hypothesis has no reverse score; with one, a sentence is too long for a score, or
            the model computes NaN.
    """
    for number, chunk in enumerate(_chunks(groups, BUFFER_LINES)):
        flat = list(chain.from_iterable(chunk))
        if scorer is None:
            missing = next((candidate for candidate in flat if candidate.reverse is None), None)
            if missing is not None:
                raise DataError(
                    f"{path}: a hypothesis of source line {missing.line} has no {REVERSE}: name the model of the other "
                    "direction with --reverse"
                )
            yield from chunk
            continue
        scores = scorer.score(
            [candidate.text for candidate in flat], [candidate.source for candidate in flat], progress
        )
        scored = iter([_with_reverse_score(candidate, score) for candidate, score in zip(flat, scores, strict=True)])
        if number == 0:
            _warn_of_direction(scorer, [group[0] for group in chunk[:_SAMPLE]])
        yield from ([next(scored) for _ in group] for group in chunk)


def _warn_of_direction(scorer: Scorer, sample: Sequence[Candidate]) -> None:
    """Warn if the reverse model finds translations given their sentences more probable than the reverse."""
    if scorer.tags is not None:  # the tag that it needs has named its direction
        return
    sources, texts = [candidate.source for candidate in sample], [candidate.text for candidate in sample]
    means = []
    for sides in ((texts, sources), (sources, texts)):
        scores = [score for score in scorer.score(*sides) if not math.isnan(score.log_probability)]
        tokens = max(1, sum(score.tokens for score in scores))
        means.append(sum(score.log_probability for score in scores) / tokens)
    backward, forward = means
    if forward > backward:
        logger.warning(
            "the model of --reverse finds translations given their sentences more probable (%.2f nats a token) than "
            "sentences given their translations (%.2f): name a model of the other direction",
            forward, backward,
        )  # fmt: skip


def _with_reverse_score(candidate: Candidate, found: PairScore) -> Candidate:
    reverse = found.log_probability
    if math.isnan(reverse) and not found.is_long:
        raise DataError(
            f"source line {candidate.line}: the reverse model computes NaN: try another --precision; if that does not "
            "help, its weights are damaged"
        )
    if math.isnan(reverse):
        raise DataError(
            f"source line {candidate.line}: the sentence or its hypothesis is too long for a score of the reverse "
            "model: raise --max-tokens (0: no limit)"
        )
    return replace(candidate, reverse=reverse, fields={**candidate.fields, REVERSE: round(reverse, 6)})


def _chunks(groups: Iterable[Group], max_hypotheses: int) -> Iterator[list[Group]]:
    """Lists of consecutive groups with at least ``max_hypotheses`` hypotheses; the last may have fewer."""
    chunk: list[Group] = []
    hypotheses = 0
    for group in groups:
        chunk.append(group)
        hypotheses += len(group)
        if hypotheses >= max_hypotheses:
            yield chunk
            chunk, hypotheses = [], 0
    if chunk:
        yield chunk


def best_lines(groups: Iterable[Group], criterion: Criterion) -> Iterator[str]:
    """The best hypothesis of each source line, on one line; empty where the list has none."""
    line = 1
    for group in groups:
        while line < group[0].line:
            yield ""
            line += 1
        yield plain_spaces(rerank(group, criterion)[0][0].text)
        line += 1


def json_lines(groups: Iterable[Group], criterion: Criterion) -> Iterator[str]:
    """All hypotheses with their new ``rank`` and ``score``, best first; ``first_rank`` and ``first_score`` are the old.

    The result is an n-best list again, which needs no reverse model to be reranked with other weights.
    """
    for group in groups:
        for rank, (candidate, value) in enumerate(rerank(group, criterion), 1):
            old = {f"first_{name}": candidate.fields.get(name) for name in ("rank", "score")}
            new = {"rank": rank, "score": round(value, 6)}
            yield json.dumps({**old, **candidate.fields, **new}, ensure_ascii=False)


class TuningResult(NamedTuple):
    """The best weights on a development set.

    Attributes:
        weights: The weights.
        bleu: BLEU of the hypotheses that they choose.
        first_bleu: BLEU of the first hypothesis of each list.
        best_bleu: BLEU of the hypotheses with the best sentence BLEU: the oracle.
    """

    weights: Weights
    bleu: Score
    first_bleu: float
    best_bleu: float


def tune(groups: Sequence[Group], references: Sequence[str], path: str, tokenize: str = "13a") -> TuningResult:
    """Find the weights of :data:`GRID` with the highest BLEU; among equals, the smallest weights.

    The hypotheses have reverse scores, every source line has a reference. ``path`` is their file, for messages.

    Raises:
        DataError: The list has more or fewer lines than the references.
    """
    last = groups[-1][0].line if groups else 0
    if last > len(references) or any(map(str.strip, references[last:])):
        _refuse(path, len(references), last)
    metric = bleu_metric(tokenize, effective_order=True)
    counted_lists = [
        [_counts(metric, candidate.text, references[candidate.line - 1]) for candidate in group] for group in groups
    ]
    listed = {group[0].line for group in groups}
    missing = [reference for line, reference in enumerate(references, 1) if line not in listed]
    fixed = sum((_counts(metric, "", reference)[0] for reference in missing), np.zeros(10, dtype=np.int64))

    def bleu(choice: Sequence[int]) -> float:
        chosen = (counts[index][0] for counts, index in zip(counted_lists, choice, strict=True))
        sums = sum(chosen, fixed).tolist()
        return float(BLEU.compute_bleu(sums[:4], sums[4:8], sums[8], sums[9], smooth_method="exp").score)

    tables = [_terms(group) for group in groups]
    tried = {weights: bleu([int((table @ weights).argmax()) for table in tables]) for weights in GRID}
    best = max(tried, key=lambda weights: (tried[weights], -abs(weights.reverse) - abs(weights.length)))
    lines = list(best_lines(groups, best))
    best_bleu = score([*lines, *[""] * (len(references) - len(lines))], references, tokenize)[0]
    oracle = [int(np.argmax([sentence_bleu for _, sentence_bleu in counts])) for counts in counted_lists]
    return TuningResult(best, best_bleu, bleu([0] * len(groups)), bleu(oracle))


def _terms(group: Sequence[Candidate]) -> npt.NDArray[np.float64]:
    """The terms of each hypothesis that :class:`Weights` weigh, ``(hypotheses, 3)``."""
    return np.array([(each.log_probability, each.reverse, each.tokens) for each in group], dtype=np.float64)


def _counts(metric: BLEU, text: str, reference: str) -> tuple[npt.NDArray[np.int64], float]:
    """The sufficient statistics of BLEU, ``(10,)``: matches and n-grams of four orders, both lengths; sentence BLEU."""
    bleu = metric.sentence_score(text, [reference])
    return np.array([*bleu.counts, *bleu.totals, bleu.sys_len, bleu.ref_len], dtype=np.int64), float(bleu.score)


#: The utilities, and what weights the hypotheses of a list.
Utility = Literal["chrf", "bleu"]
Weighting = Literal["uniform", "model"]


class ExpectedUtility:
    """The expected utility of each hypothesis under the distribution of its list, without approximation.

    Args:
        utility: sacrebleu's chrF, or its sentence BLEU with effective order, of a hypothesis against a reference.
        weighting: ``uniform`` counts every hypothesis of a list once, for lists that were sampled. ``model`` weights
            them with their probabilities, divided by the list's sum, for the lists of a beam.
        tokenize: The tokenizer of BLEU.
    """

    def __init__(self, utility: Utility, weighting: Weighting, tokenize: str = "13a") -> None:
        self._metric = CHRF() if utility == "chrf" else bleu_metric(tokenize, effective_order=True)
        self._weighting = weighting

    def scores(self, group: Sequence[Candidate]) -> list[float]:
        """``sum(p(y') u(y, y'))`` over the hypotheses ``y'`` of the list, itself included, for each ``y``; 0 to 100."""
        weights = np.full(len(group), 1.0)
        if self._weighting == "model":
            log_probabilities = np.array([candidate.log_probability for candidate in group])
            weights = np.exp(log_probabilities - log_probabilities.max())
        mass: dict[str, list[float]] = defaultdict(list)
        for candidate, weight in zip(group, (weights / weights.sum()).tolist(), strict=True):
            mass[candidate.text].append(weight)
        sums = {text: math.fsum(parts) for text, parts in mass.items()}  # exact, so that equal ones stay equal
        expected = {
            text: math.fsum(weight * self._metric.sentence_score(text, [other]).score for other, weight in sums.items())
            for text in sums
        }
        return [expected[candidate.text] for candidate in group]


def oracle_lines(groups: Iterable[list[Candidate]], references: Iterable[str], path: str) -> Iterator[str]:
    """The hypothesis of each source line with the highest chrF2 against its reference; the earlier one of equals.

    Sequence-level interpolation (Kim and Rush, 2016, section 3.3) trains a student on them: they are what the teacher
    finds probable, and close to the reference. Their similarity is sentence BLEU, which is zero for most short texts.

    Every source line has a reference. ``path`` is their file, for messages.

    Yields:
        One text for each reference; empty where the list has none.

    Raises:
        DataError: The list has more lines than the references, or its end is missing.
    """
    metric = CHRF()
    remaining = iter(references)
    line, reference, blank = 0, "", True
    for group in groups:
        while line < group[0].line:
            following = next(remaining, None)
            if following is None:
                _refuse(path, line, group[0].line)
            line, reference = line + 1, following
            if line < group[0].line:
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
