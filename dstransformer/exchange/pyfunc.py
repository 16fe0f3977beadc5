"""MLflow's loader for bundles logged as models: ``mlflow.pyfunc.load_model(uri).predict(["A sentence."])``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from dstransformer.errors import shown

if TYPE_CHECKING:
    import pandas as pd

    from dstransformer.decoding import TextDecoder


class BundleModel:
    """A translator, or what else decodes text, with MLflow's model interface."""

    def __init__(self, translator: TextDecoder) -> None:
        self._translator = translator

    def predict(self, model_input: pd.DataFrame | Sequence[str], params: dict[str, Any] | None = None) -> list[str]:
        """Decode sentences from a list, or a data frame with one column, to which MLflow converts lists.

        Raises:
            TypeError: An input is not a text, such as a missing value of a data frame.
        """
        del params
        texts = [model_input] if isinstance(model_input, str) else model_input
        sentences = list(texts) if isinstance(texts, Sequence) else texts.iloc[:, 0].tolist()
        for number, sentence in enumerate(sentences, 1):
            if not isinstance(sentence, str):
                raise TypeError(f"input {number} is {shown(sentence)}, not a text")
        return self._translator.translate(sentences)


def _load_pyfunc(path: str) -> BundleModel:
    """The hook that MLflow calls. ``path`` is the folder of the bundle."""
    from dstransformer.model import open_bundle

    bundle = open_bundle(Path(path))
    return BundleModel(resolve_name(bundle.form.decoder).load(bundle))
