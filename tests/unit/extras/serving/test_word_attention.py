from __future__ import annotations

import pytest
import torch
from support.data.corpora import TEXT

from dstransformer.data import BOS_ID, EOS_ID
from dstransformer.decoding import Translator
from dstransformer.errors import DataError
from dstransformer.extras.serving.loaded_model import word_attention
from dstransformer.model import attention_weights


def test_words_receive_the_sum_of_their_pieces_and_attend_as_the_mean(translator: Translator) -> None:
    found = word_attention(translator, TEXT[0], TEXT[3])
    assert found.source == TEXT[0].split()
    assert found.target == TEXT[3].split()
    src, tgt = translator.tokenizer.encode([TEXT[0], TEXT[3]])
    rows = (torch.tensor([*src, EOS_ID]), torch.tensor([BOS_ID, *tgt]))
    cross = attention_weights(translator.model, *rows).cross.mean(dim=(0, 1))
    pieces = [translator.tokenizer.pieces(ids) for ids in (src, tgt)]
    places = [[sum(p.startswith("▁") for p in row[: i + 1]) - 1 for i in range(len(row))] for row in pieces]
    third, fifth = ([i for i, word in enumerate(row) if word == n] for row, n in zip(places[::-1], (2, 4), strict=True))
    expected = cross[third][:, fifth].sum(dim=1).mean()
    assert found.weights[2][4] == pytest.approx(float(expected), abs=1e-4)


def test_what_is_missing_from_one_goes_to_the_end(translator: Translator) -> None:
    weights = torch.tensor(word_attention(translator, TEXT[2], TEXT[3]).weights)
    assert weights.min() >= 0
    assert (weights.sum(dim=1) < 1).all()
    assert (weights.sum(dim=1) > 0.5).all()


def test_a_text_without_spaces_is_shown_by_pieces(translator: Translator) -> None:
    found = word_attention(translator, "犬犬", "foxdog")
    assert "".join(found.target) == "foxdog"
    assert len(found.target) > 1
    assert len(found.weights[0]) == len(found.source)


def test_nan_is_reported(translator: Translator) -> None:
    weight = translator.model.decoder[0].memory_attention.q.weight
    before = weight.detach().clone()
    try:
        with torch.no_grad():
            weight.fill_(float("nan"))
        with pytest.raises(DataError, match="NaN"):
            word_attention(translator, "dog", "fox")
    finally:
        with torch.no_grad():
            weight.copy_(before)
