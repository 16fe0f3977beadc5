"""The weights of a training in 8 bits are those that CTranslate2 stores and computes with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from support.data.corpora import TEXT
from support.models.packed import model_logits
from support.models.random_bundle import random_bundle

from dstransformer.data import BOS_ID, EOS_ID
from dstransformer.exchange.ct2 import build_spec, export_ct2
from dstransformer.exchange.ct2_engine import CT2Engine, open_ct2
from dstransformer.model import Transformer, open_bundle
from dstransformer.model.ops import int8_values

UNTIED = {"tie_embeddings": "none", "positions": "learned", "max_positions": 64, "output_bias": True}


@pytest.mark.parametrize("changes", [{}, UNTIED], ids=["tied", "untied"])
def test_the_export_stores_these_values(tmp_path: Path, changes: dict[str, Any]) -> None:
    bundle = open_bundle(random_bundle(tmp_path / "bundle", **changes))
    weights = bundle.load_weights()
    spec = build_spec(bundle, {name: weight.clone() for name, weight in weights.items()}, 100)
    spec.validate()
    spec.optimize("int8")
    stored = spec.variables()
    found = [
        torch.from_numpy(variable.numpy() / stored[f"{name}_scale"].numpy()[:, None])
        for name, variable in stored.items()
        if f"{name}_scale" in stored and not isinstance(variable, str)
    ]
    names = bundle.build_model().int8_names()
    expected = [int8_values(weights[name]) for name in names]
    assert len(found) == len(expected) == (3 if changes else 1) + 2 * 4 + 2 * 7
    for values in expected:
        assert any(values.shape == other.shape and torch.allclose(values, other, rtol=1e-6, atol=0) for other in found)


@pytest.mark.parametrize("changes", [{}, UNTIED, {"d_k": 6, "d_v": 16}], ids=["tied", "untied", "widened"])
@torch.no_grad()
def test_the_export_computes_what_training_does(tmp_path: Path, changes: dict[str, Any]) -> None:
    """With activations in fp32, so that only weights are quantised."""
    ctranslate2 = pytest.importorskip("ctranslate2")
    bundle = open_bundle(random_bundle(tmp_path / "bundle", **changes))
    export_ct2(bundle.path, tmp_path / "ct2", quantization="int8")
    model = Transformer(bundle.model, bundle.tokenizer.vocab_size, int8_weights=True).eval()
    model.load_state_dict(bundle.load_weights())
    src, tgt = (bundle.tokenizer.encode([text])[0] for text in (TEXT[0], TEXT[3]))
    pair = torch.tensor([*src, EOS_ID]), torch.tensor([BOS_ID, *tgt])
    expected, plain = (
        model_logits(one, [pair]).log_softmax(dim=-1)[range(len(tgt) + 1), [*tgt, EOS_ID]]
        for one in (model, bundle.build_model())
    )
    engine = ctranslate2.Translator(str(tmp_path / "ct2"), compute_type="float32")
    names = [bundle.tokenizer.pieces(ids) for ids in (src, tgt)]
    found = torch.tensor(engine.score_batch([names[0]], [names[1]])[0].log_probs)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-4)
    assert (found - plain).abs().max() > 1e-3, "quantisation shows"


@torch.no_grad()
def test_a_reduced_range_is_exact_on_any_processor(tmp_path: Path) -> None:
    """Without VNNI, oneDNN cuts off sums of two products of 8 bits; log-probabilities would be 0.7 off."""
    bundle = open_bundle(random_bundle(tmp_path / "bundle"))
    export_ct2(bundle.path, tmp_path / "ct2", quantization="int8", reduce_range=True)
    src, tgt = (bundle.tokenizer.encode([text])[0] for text in (TEXT[0], TEXT[3]))
    pair = torch.tensor([*src, EOS_ID]), torch.tensor([BOS_ID, *tgt])
    expected = model_logits(bundle.build_model(), [pair]).log_softmax(dim=-1)[range(len(tgt) + 1), [*tgt, EOS_ID]]
    engine = open_ct2(tmp_path / "ct2").engine
    assert isinstance(engine, CT2Engine)
    names = [bundle.tokenizer.pieces(ids) for ids in (src, tgt)]
    found = torch.tensor(engine.translator.score_batch([names[0]], [names[1]])[0].log_probs)
    assert 1e-3 < (found - expected).abs().max() < 0.15
