"""How MLflow opens a bundle that was logged as a model: ``mlflow.pyfunc.load_model(uri).predict(["A sentence."])``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import pandas as pd


class TextTranslator(Protocol):
    """What a bundle is opened as."""

    def translate(self, sentences: list[str], /) -> list[str]:
        """A translation for every sentence, in their order."""


class BundleModel:
    """A translator behind MLflow's interface."""

    def __init__(self, translator: TextTranslator) -> None:
        self._translator = translator

    def predict(self, model_input: pd.DataFrame | Sequence[str], params: dict[str, Any] | None = None) -> list[str]:
        """Translate sentences: a list, or the only column of a frame, which MLflow makes of a list."""
        del params
        sentences = model_input if isinstance(model_input, Sequence) else model_input.iloc[:, 0].tolist()
        return self._translator.translate(list(sentences))


def _load_pyfunc(path: str) -> BundleModel:
    """MLflow's hook: ``path`` is the bundle's folder."""
    from dstransformer.decoding import Translator

    return BundleModel(Translator.load(Path(path)))
