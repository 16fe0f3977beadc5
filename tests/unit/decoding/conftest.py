from __future__ import annotations

from pathlib import Path

import pytest
from support.data.corpora import small_tokenizer
from support.models.threads import one_thread  # noqa: F401
from support.services.serving import save_small_bundle, small_experiment, small_model

from dstransformer.config import Config
from dstransformer.decoding import TorchEngine, Translator
from dstransformer.model import Transformer


@pytest.fixture
def config() -> Config:
    return small_experiment()


@pytest.fixture
def model() -> Transformer:
    return small_model()


@pytest.fixture
def translator(model: Transformer, config: Config) -> Translator:
    tokenizer = small_tokenizer()
    return Translator(TorchEngine([model.double()], tokenizer.vocab_size), tokenizer, config.decoding)


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """A bundle with random weights that does not say its languages."""
    return save_small_bundle(tmp_path / "bundle", src_lang=None, tgt_lang=None)
