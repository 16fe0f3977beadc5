"""Minimum Bayes risk: the hypothesis with the highest expected utility (Eikema and Aziz, 2020, equation 4).

The other hypotheses of its list stand for the references that the model considers possible.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal

from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from dstransformer.extras.rerank.reranking import Candidate

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
        self._metric = CHRF() if utility == "chrf" else BLEU(tokenize=tokenize, effective_order=True)
        self._weigh: Callable[[Sequence[Candidate]], list[float]] = _uniform if weighting == "uniform" else _by_model

    def scores(self, group: Sequence[Candidate]) -> list[float]:
        """``sum(p(y') u(y, y'))`` over the hypotheses ``y'`` of the list, itself included, for each ``y``; 0 to 100."""
        mass: dict[str, list[float]] = {}
        for candidate, weight in zip(group, self._weigh(group), strict=True):
            mass.setdefault(candidate.text, []).append(weight)
        sums = {text: math.fsum(parts) for text, parts in mass.items()}
        expected = {
            text: math.fsum(weight * self._metric.sentence_score(text, [other]).score for other, weight in sums.items())
            for text in sums
        }
        return [expected[candidate.text] for candidate in group]


def _uniform(group: Sequence[Candidate]) -> list[float]:
    return [1.0 / len(group)] * len(group)


def _by_model(group: Sequence[Candidate]) -> list[float]:
    best = max(candidate.log_probability for candidate in group)
    weights = [math.exp(candidate.log_probability - best) for candidate in group]
    total = math.fsum(weights)
    return [weight / total for weight in weights]
