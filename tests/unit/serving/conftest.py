from __future__ import annotations

import pytest
from support.models.threads import one_thread  # noqa: F401
from support.services.serving import save_small_bundle

from dstransformer.model import Bundle, open_bundle
from dstransformer.serving.loaded import LoadedModel, ServedTranslator


@pytest.fixture(scope="session")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return open_bundle(save_small_bundle(tmp_path_factory.mktemp("served") / "small"))


@pytest.fixture(scope="session")
def translator(opened: Bundle) -> ServedTranslator:
    return ServedTranslator.load(opened, device="cpu")


@pytest.fixture(scope="session")
def model(opened: Bundle, translator: ServedTranslator) -> LoadedModel:
    return LoadedModel(opened, translator)
