from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from support.data.corpora import small_tokenizer
from support.models.packed import tiny_config
from support.models.threads import one_thread  # noqa: F401

from dstransformer.config import Config, load_config
from dstransformer.model import Transformer, save_bundle


def tiny_experiment(**model_changes: Any) -> Config:
    base = load_config("base", ["decoding.max_extra_tokens=6", "decoding.batch_tokens=40"])
    return base.model_copy(update={"model": tiny_config(tie_embeddings="none", **model_changes)})


def random_model(config: Config) -> Transformer:
    """A model with random weights whose output depends on the source."""
    torch.manual_seed(11)
    model = Transformer(config.model, small_tokenizer().vocab_size).eval()
    with torch.no_grad():
        model.softmax.weight.mul_(4.0)
    return model


@pytest.fixture
def config() -> Config:
    return tiny_experiment()


@pytest.fixture
def model(config: Config) -> Transformer:
    return random_model(config)


@pytest.fixture
def bundle(tmp_path: Path, config: Config, model: Transformer) -> Path:
    """A bundle with random weights."""
    save_bundle(tmp_path / "bundle", model.state_dict(), config, small_tokenizer(), {"step": 0})
    return tmp_path / "bundle"
