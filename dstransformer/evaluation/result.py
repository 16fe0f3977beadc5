"""The result of an evaluation, for trackers, JSON and the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple


class Metric(NamedTuple):
    """How the scores of a metric are shown, and which of two is better."""

    label: str
    lower_is_better: bool = False


#: The metrics by their names in logs.
METRICS = {
    "loss": Metric("loss", lower_is_better=True),  # in nats
    "bleu_compound_split": Metric("BLEU (compound-split)"),  # before the metric that its name begins with
    "bleu": Metric("BLEU"),
    "chrf": Metric("chrF2"),
    "ter": Metric("TER", lower_is_better=True),  # can exceed 100
    "comet": Metric("COMET"),
    "cometkiwi": Metric("COMETKiwi"),
    "cometqe": Metric("COMET-QE"),
    "metricx": Metric("MetricX", lower_is_better=True),  # from 0 to 25 errors
    "f1": Metric("F1"),
    "precision": Metric("precision"),
    "recall": Metric("recall"),
    "complete_match": Metric("complete match"),
    "tagging_accuracy": Metric("tagging accuracy"),
}


def _divide(name: str) -> tuple[Metric, str, str]:
    """The metric, the direction and the number of sentences in the name of a score; empty where it has none.

    Of a metric that is not in the table, higher scores are better. Its name may begin with that of another one.
    """
    name, _, sentences = name.partition("_first_")
    for known, metric in METRICS.items():
        direction = name.removeprefix(f"{known}_")
        if direction != name and "-" in direction:
            return metric, direction, sentences
    return METRICS.get(name, Metric(name)), "", sentences


@dataclass(frozen=True)
class Score:
    """A corpus-level score, of which a higher one is better unless :data:`METRICS` says otherwise.

    Attributes:
        name: Name of the metric in logs: ``bleu``, ``chrf``; ``bleu_first_500`` covers the first 500 sentences only,
            ``bleu_en-de`` one of several directions.
        value: The score.
        signature: How it was computed. Only scores with equal signatures are comparable.
    """

    name: str
    value: float
    signature: str = ""

    @property
    def metric(self) -> str:
        """The metric for display, without the number of sentences: ``BLEU``, ``F1``."""
        metric, direction, _ = _divide(self.name)
        return f"{metric.label} {direction}".rstrip()

    @property
    def label(self) -> str:
        """The name for display: ``BLEU``, ``chrF2``, ``BLEU (first 500 sentences)``."""
        *_, sentences = _divide(self.name)
        return f"{self.metric} (first {sentences} sentences)" if sentences else self.metric

    @property
    def rank(self) -> float:
        """The value by which scores of equal names and signatures are ordered; more is better."""
        metric, *_ = _divide(self.name)
        return -self.value if metric.lower_is_better else self.value

    @property
    def number(self) -> str:
        """The value for display."""
        return f"{self.value:.4f}" if self.name == "loss" else f"{self.value:.2f}"

    def __str__(self) -> str:
        return f"{self.label} {self.number} ({self.signature})"


@dataclass(frozen=True)
class Sample:
    """One sentence of a held-out set, its reference and the model's output, each on one line."""

    source: str
    reference: str
    translation: str


@dataclass(frozen=True)
class Evaluation:
    """The scores of a model on a held-out set.

    Attributes:
        scores: Scores of the outputs.
        sentences: Number of sentences translated.
        seconds: Translation time.
        loss: Label-smoothed cross-entropy in nats per target token; None if not computed.
        perplexity: Perplexity of the references without label smoothing; None if not computed.
        samples: The first sentences with their outputs.
        drawing: The samples as a text, if a table of their lines does not show them well.
        digest: Hash of the held-out set, with which scores of different models can be compared; empty if unknown.
        translations: All outputs, for scores that are computed later; empty if they were not kept.
        sentence_scores: Sentence-level scores by name, in the order of the sentences.
        ranked_by: Name of the metric that ranks checkpoints: ``bleu``, ``chrf``, ``loss``, ``f1``; empty: the first.
        loss_signature: How the loss was computed.
    """

    scores: tuple[Score, ...]
    sentences: int = 0
    seconds: float = 0.0
    loss: float | None = None
    perplexity: float | None = None
    samples: tuple[Sample, ...] = ()
    drawing: str = ""
    digest: str = ""
    translations: tuple[str, ...] = field(default=(), repr=False)
    sentence_scores: Mapping[str, Sequence[float]] = field(default_factory=dict, repr=False)
    ranked_by: str = ""
    loss_signature: str = ""

    @property
    def main(self) -> Score:
        """The score that ranks checkpoints, of all sentences or of the first ones."""
        if self.ranked_by == "loss" and self.loss is not None:
            return Score("loss", self.loss, self.loss_signature)
        ranking = (score for score in self.scores if score.name.partition("_first_")[0] == self.ranked_by)
        return next(ranking, self.scores[0])

    @property
    def paper_bleu(self) -> Score | None:
        """BLEU as in the paper's tables, of all sentences or of the first ones; None if not computed."""
        return next((score for score in self.scores if score.name.startswith("bleu_compound_split")), None)

    @property
    def metrics(self) -> dict[str, float]:
        """Loss, perplexity and scores, by name."""
        computed = {"loss": self.loss, "perplexity": self.perplexity}
        known = {name: value for name, value in computed.items() if value is not None}
        return known | {score.name: score.value for score in self.scores}

    @property
    def signatures(self) -> dict[str, str]:
        """The signatures of the scores, by name."""
        return {score.name: score.signature for score in dict.fromkeys((*self.scores, self.main))}

    def to_json(self) -> dict[str, Any]:
        """Plain data for ``--json``, without samples and translations."""
        known: dict[str, Any] = {
            "sentences": self.sentences,
            "seconds": self.seconds,
            "metrics": self.metrics,
            "signatures": self.signatures,
        }
        each = {name: [round(score, 4) for score in scores] for name, scores in self.sentence_scores.items()}
        return {**known, "sentence_scores": each} if each else known
