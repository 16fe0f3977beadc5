from __future__ import annotations

import logging

import pytest
import torch
from support.data.corpora import TEXT

from dstransformer.decoding import Translator
from dstransformer.extras.serving.loaded_model import LoadedModel
from dstransformer.extras.serving.model import Batch, Candidate, Query


def batch(*texts: str, n_best: int = 1, prefix: str = "") -> Batch:
    return Batch([Query(text, 1, prefix) for text in texts], n_best)


def test_it_finds_what_the_translator_finds(model: LoadedModel, translator: Translator) -> None:
    for n_best, prefix in ((1, ""), (3, "Zwei")):
        expected = translator.search(TEXT, n_best=n_best, prefixes=[prefix] * len(TEXT) if prefix else None)
        assert model.search(batch(*TEXT, n_best=n_best, prefix=prefix)) == [
            [Candidate(one.text, one.score, one.log_probability, len(one.tokens)) for one in outputs]
            for outputs in expected
        ]


def test_nan_is_no_translation(model: LoadedModel, translator: Translator, caplog: pytest.LogCaptureFixture) -> None:
    weight = translator.model.decoder[0].memory_attention.q.weight
    before = weight.detach().clone()
    try:
        with torch.no_grad():
            weight.fill_(float("nan"))
        with caplog.at_level(logging.WARNING):
            assert model.search(batch("dog", "fox")) == [None, None]
    finally:
        with torch.no_grad():
            weight.copy_(before)
    assert "the model computes NaN for 2 of 2 sentences" in caplog.text
    assert model.search(batch("dog")) != [None]
