"""How far a figure may be from the recorded one, where something differs that changes the last bits of results.

The same weights, evaluated elsewhere, give results that differ by rounding. Trained elsewhere, the rounding leads to
other weights, as another seed would: then a held-out set cannot tell the models apart if their figures differ by less
than its sampling error.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from dstransformer.config import Precision
from dstransformer.data import Split
from dstransformer.evaluation import Evaluation
from dstransformer.evaluation.task import Task
from dstransformer.evaluation.validation import Validator, covered_rows, score_directions

#: Figures that are means over target tokens, not scores from 0 to 100.
PER_TOKEN = ("loss", "perplexity")

#: The largest relative difference of a loss that the order of sums makes: the one that exports are held to.
_SUMS = 1e-4

#: Unit roundoffs: half the distance from 1 to the next number (bf16 has 8 bits of significand, fp16 has 11).
_ROUNDOFF: dict[Precision, float] = {"fp32": 2.0**-24, "bf16": 2.0**-8, "fp16": 2.0**-11}

#: Sentences in a hundred that may get another output when logits differ by rounding, as two hypotheses nearly tie.
_OTHER_OUTPUTS = 0.01

#: Groups of the jackknife, and Student's t of as many less one for 95%.
_GROUPS, _STUDENT = 20, 2.093


def rounding_bound(name: str, recorded: float, sentences: int, precisions: Sequence[Precision]) -> float:
    """How much a figure of the same weights may differ.

    Args:
        name: The name of the figure.
        recorded: Its recorded value.
        sentences: The number of sentences that the scores cover.
        precisions: The precisions of the two evaluations.

    Returns:
        Of a loss or a perplexity, a share: two unit roundoffs of the lower precision, or 1e-4 if that is more. Of a
        score, what one sentence in a hundred contributes, and at least what one sentence can change.
    """
    if name in PER_TOKEN:
        share = max(_SUMS, 2 * max(_ROUNDOFF[precision] for precision in precisions))
        # The relative error of a perplexity is the absolute one of the loss whose exponential it is.
        return recorded * share * (max(1.0, math.log(recorded)) if name == "perplexity" and recorded > 0 else 1.0)
    others = math.ceil(_OTHER_OUTPUTS * sentences)
    return max(recorded * others, 100.0) / max(1, sentences)


def fewest_sentences(split: Split, sentences: int) -> int:
    """The number of sentences that scores of a held-out set cover; of several directions, the least."""
    return min(map(len, covered_rows(split, sentences).values()))


def sampling_bounds(
    validator: Validator, split: Split, evaluation: Evaluation, task: Task, sentences: int
) -> dict[str, float]:
    """How much the figures of two trainings may differ that a held-out set cannot tell apart.

    The standard error of each figure is estimated by a jackknife that leaves out each of 20 groups of sentences (Kott,
    2001). Two models of equal quality, on sentences drawn for each, differ in 19 of 20 draws by less than t times the
    square root of 2 times that, with Student's t of 19 degrees of freedom. On the same sentences they differ by less.

    Args:
        validator: Holds the weights that were evaluated.
        split: The held-out set.
        evaluation: Its evaluation, with all outputs.
        task: What the model learned.
        sentences: See ``validation.final_sentences``.

    Returns:
        The bounds by figure, of scores at least what one sentence can change; infinite if a direction has fewer
        sentences than there are groups.
    """
    rows = covered_rows(split, sentences)
    if fewest_sentences(split, sentences) < _GROUPS:
        return dict.fromkeys(evaluation.metrics, math.inf)
    groups = [validator.loss_sums(split, range(group, len(split), _GROUPS)) for group in range(_GROUPS)]
    total = sum(groups[1:], groups[0])
    losses = []
    for group in groups:
        loss, nll, tokens = (total - group).tolist()
        losses.append({"loss": loss / tokens, "perplexity": math.exp(min(nll / tokens, 700.0))})
    scores = _scores_without(split, rows, evaluation, task)
    without = [{**one, **other} for one, other in zip(losses, scores, strict=True)]
    bounds = {name: _half_width([figures[name] for figures in without]) for name in without[0]}
    least = 100.0 / fewest_sentences(split, sentences)
    return {name: bound if name in PER_TOKEN else max(bound, least) for name, bound in bounds.items()}


def _half_width(values: Sequence[float]) -> float:
    """The bound of a figure from its values without each group."""
    mean = sum(values) / len(values)
    variance = (len(values) - 1) / len(values) * sum((value - mean) ** 2 for value in values)
    return _STUDENT * math.sqrt(2 * variance)


def _scores_without(
    split: Split, rows: Mapping[str, Sequence[int]], evaluation: Evaluation, task: Task
) -> Iterator[dict[str, float]]:
    """The scores without each group of sentences, under the names that the evaluation gives them."""
    texts = split.tgt_texts()
    references = [texts[row] for own in rows.values() for row in own]
    for group in range(_GROUPS):
        kept = {name: [row for place, row in enumerate(own) if place % _GROUPS != group] for name, own in rows.items()}
        places = [place for own in rows.values() for place in range(len(own))]  # within its direction
        chosen = [index for index, place in enumerate(places) if place % _GROUPS != group]
        outputs, golden = ([side[index] for index in chosen] for side in (evaluation.translations, references))
        found = score_directions(task.score, kept, outputs, golden)
        yield {named.name: score.value for named, score in zip(evaluation.scores, found, strict=False)}
