from __future__ import annotations

from pathlib import Path

import pytest
import torch
from support.data.corpora import small_tokenizer
from support.models.packed import tiny_config

from dstransformer.config import load_config
from dstransformer.model import Transformer, save_bundle


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """A bundle with random weights."""
    base = load_config("base", ["decoding.max_extra_tokens=4", "decoding.beam_size=2"])
    config = base.model_copy(update={"model": tiny_config(tie_embeddings="none")})
    torch.manual_seed(11)
    model = Transformer(config.model, small_tokenizer().vocab_size)
    provenance = {"step": 7, "src_lang": "en", "tgt_lang": "de"}
    save_bundle(tmp_path / "bundle", model.state_dict(), config, small_tokenizer(), provenance)
    return tmp_path / "bundle"
