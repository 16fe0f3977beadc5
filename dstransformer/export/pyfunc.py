"""MLflow's loader for bundles logged as models: ``mlflow.pyfunc.load_model(uri).predict(["A sentence."])``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import pandas as pd


class TextTranslator(Protocol):
    """The interface of a loaded bundle."""

    def translate(self, sentences: list[str], /) -> list[str]:
        """Translate sentences one to one, in order."""


class BundleModel:
    """A translator or a parser with MLflow's model interface."""

    def __init__(self, translator: TextTranslator) -> None:
        self._translator = translator

    def predict(self, model_input: pd.DataFrame | Sequence[str], params: dict[str, Any] | None = None) -> list[str]:
        """Translate or parse sentences from a list, or a data frame with one column, to which MLflow converts lists."""
        del params
        sentences = model_input if isinstance(model_input, Sequence) else model_input.iloc[:, 0].tolist()
        return self._translator.translate(list(sentences))


def _load_pyfunc(path: str) -> BundleModel:
    """The hook that MLflow calls. ``path`` is the folder of the bundle."""
    from dstransformer.decoding import Parser, Translator
    from dstransformer.decoding.parser import penn_words
    from dstransformer.model import open_bundle

    bundle = open_bundle(Path(path))
    if bundle.trees is None:
        return BundleModel(Translator.load(bundle))
    parser = Parser.load(bundle)
    parser.split = penn_words
    return BundleModel(parser)
