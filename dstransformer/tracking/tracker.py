"""Who listens to a training run. Rank 0 holds listeners, every other rank a ``NullTracker``."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from dstransformer.config import Config
from dstransformer.corpus import Manifest

logger = logging.getLogger(__name__)

RunStatus = Literal["finished", "failed", "killed"]


@dataclass(frozen=True)
class RunStart:
    """What is known when a run begins.

    ``run_name`` is what its user calls it, None where that is left to the listener.
    ``tags`` describe where it runs; ``git_revision`` is also shown as the run's source version.
    ``resume_step`` is the last update of the checkpoint that the run goes on from, None for a run from the start.
    """

    run_name: str | None
    config: Config
    ds_config: Mapping[str, Any]
    manifest: Manifest
    corpus: Path
    tags: Mapping[str, str] = field(default_factory=dict)
    resume_step: int | None = None


@dataclass(frozen=True)
class Sample:
    """One sentence of a held-out set and what the model made of it, as detokenised text."""

    source: str
    reference: str
    translation: str


@dataclass(frozen=True)
class Evaluation:
    """What a model makes of a held-out split.

    A score of the first sentences only says so in its name, for example ``bleu_first_500``.

    Attributes:
        metrics: ``loss`` (smoothed, nats a token), ``perplexity`` (not smoothed), ``bleu``, ``chrf``.
        signatures: How the scores were computed, by name.
        samples: The first sentences.
    """

    metrics: Mapping[str, float]
    signatures: Mapping[str, str]
    samples: Sequence[Sample] = ()

    @property
    def bleu(self) -> tuple[str, float]:
        """The name of the BLEU and its value."""
        name = bleu_name(self.metrics)
        assert name is not None
        return name, self.metrics[name]


def bleu_name(metrics: Mapping[str, float]) -> str | None:
    """``bleu``, or ``bleu_first_500`` where that many sentences were translated; None where there is no BLEU."""
    return next((name for name in metrics if name == "bleu" or name.startswith("bleu_first_")), None)


class Tracker:
    """A listener. Every method of this base does nothing; a listener overrides what it cares about.

    Metric names are short and flat (``loss``, ``lr``, ``tokens_per_second``); steps count updates.
    """

    def start(self, run: RunStart) -> None:
        """The run begins, or goes on."""

    def log_train(self, step: int, metrics: Mapping[str, float]) -> None:
        """Training figures since the last call."""

    def log_eval(
        self,
        split: str,
        step: int,
        metrics: Mapping[str, float],
        *,
        signatures: Mapping[str, str] | None = None,
        samples: Sequence[Sample] = (),
    ) -> None:
        """Figures of a held-out ``split`` (``valid``, ``test``).

        ``signatures`` says how a score was computed, by the score's name: ``{"bleu": "nrefs:1|case:mixed|…"}``.
        """

    def log_checkpoint(self, path: Path, sha256: str, step: int, score: float | None) -> None:
        """A checkpoint is complete; ``sha256`` is the hash of its manifest, ``score`` what it was ranked by."""

    def log_bundle(self, bundle: Path, step: int, evaluations: Mapping[str, Evaluation]) -> None:
        """A bundle is worth keeping as a model.

        ``evaluations`` is all that is said of its scores, by name of the split (``final_validation``, ``final_test``).
        """

    def say(self, line: str) -> None:
        """Something for whoever watches the run."""

    def finish(self, status: RunStatus) -> None:
        """The run ends. Nothing may follow."""


class NullTracker(Tracker):
    """Hears everything and says nothing."""


class FanOut(Tracker):
    """Tells several listeners. One that fails is reported once and never stops the others or the training.

    A listener that fails at the start hears no more of the run.
    """

    def __init__(self, listeners: Sequence[Tracker]) -> None:
        self._listeners = list(listeners)
        self._failed: list[Tracker] = []

    def start(self, run: RunStart) -> None:
        """See ``Tracker.start``."""
        self._tell("start", run)

    def log_train(self, step: int, metrics: Mapping[str, float]) -> None:
        """See ``Tracker.log_train``."""
        self._tell("log_train", step, metrics)

    def log_eval(
        self,
        split: str,
        step: int,
        metrics: Mapping[str, float],
        *,
        signatures: Mapping[str, str] | None = None,
        samples: Sequence[Sample] = (),
    ) -> None:
        """See ``Tracker.log_eval``."""
        self._tell("log_eval", split, step, metrics, signatures=signatures, samples=samples)

    def log_checkpoint(self, path: Path, sha256: str, step: int, score: float | None) -> None:
        """See ``Tracker.log_checkpoint``."""
        self._tell("log_checkpoint", path, sha256, step, score)

    def log_bundle(self, bundle: Path, step: int, evaluations: Mapping[str, Evaluation]) -> None:
        """See ``Tracker.log_bundle``."""
        self._tell("log_bundle", bundle, step, evaluations)

    def say(self, line: str) -> None:
        """See ``Tracker.say``."""
        self._tell("say", line)

    def finish(self, status: RunStatus) -> None:
        """See ``Tracker.finish``."""
        self._tell("finish", status)

    def _tell(self, method: str, *args: object, **kwargs: object) -> None:
        for listener in tuple(self._listeners):
            try:
                getattr(listener, method)(*args, **kwargs)
            except Exception as error:
                if listener not in self._failed:
                    self._failed.append(listener)
                    logger.warning(
                        "%s.%s failed, training goes on without it: %s",
                        type(listener).__name__,
                        method,
                        _reason(error),
                    )
                if method == "start":
                    self._listeners.remove(listener)


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename:
        return f"{error.filename}: {error.strerror}"
    return str(error)
