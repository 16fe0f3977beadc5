from __future__ import annotations

import pytest
from support.models.threads import one_thread  # noqa: F401
from support.services.serving import save_small_bundle

from dstransformer.decoding import Translator
from dstransformer.extras.serving.loaded_model import LoadedModel
from dstransformer.model import Bundle, open_bundle


@pytest.fixture(scope="session")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return open_bundle(save_small_bundle(tmp_path_factory.mktemp("served") / "small"))


@pytest.fixture(scope="session")
def translator(opened: Bundle) -> Translator:
    return Translator.load(opened, device="cpu", keep_nan=True)


@pytest.fixture(scope="session")
def model(opened: Bundle, translator: Translator) -> LoadedModel:
    return LoadedModel(opened, translator)
