"""A model that does not read the end of a sentence (``model.source_end``), wherever models read sentences."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from support.data.corpora import TEXT
from support.models.packed import VOCAB, draw_pairs, pack, tiny_config
from support.models.random_bundle import random_bundle

from dstransformer.config import load_config
from dstransformer.data.packing import pack_pairs
from dstransformer.decoding import Translator
from dstransformer.decoding.aligner import Aligner
from dstransformer.decoding.scoring import Scorer, join_sentences
from dstransformer.errors import ConfigError
from dstransformer.extras.paper.attention import read_weights
from dstransformer.extras.serving.loaded_model import word_attention
from dstransformer.model import Transformer
from dstransformer.model.objective import Objective

PAIRS = draw_pairs(((5, 7), (2, 3), (9, 2)))


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return random_bundle(tmp_path / "bundle", norm="pre", source_end=False)


def test_search_and_scores_are_the_models(bundle: Path) -> None:
    translator, scorer = Translator.load(bundle), Scorer.load(bundle)
    found = [outputs[0] for outputs in translator.search(TEXT)]
    src = translator.tokenizer.src.encode(TEXT)
    scores = scorer.score_ids(src, [one.tokens for one in found])
    for one, score in zip(found, scores, strict=True):
        assert one.log_probability == pytest.approx(score.log_probability, abs=1e-3)
    with torch.no_grad():
        pairs = pack_pairs(*join_sentences(src), *join_sentences([one.tokens for one in found]))
        nll = float(Objective(translator.model)(*pairs).terms["nll"])
    assert -sum(score.log_probability for score in scores) == pytest.approx(nll, rel=1e-5)


def test_empty_sentences_have_a_score(bundle: Path) -> None:
    (score,) = Scorer.load(bundle).score_ids([[]], [[5, 6]])
    assert score.log_probability < 0


def test_training_does_not_read_it() -> None:
    torch.manual_seed(1)
    reads, model = (Transformer(tiny_config(source_end=end), VOCAB) for end in (True, False))
    model.load_state_dict(reads.state_dict())
    tgt, tgt_packing = pack([tgt for _, tgt in PAIRS])
    sources = [src for src, _ in PAIRS]
    found, expected = (
        Objective(one)(*pack(src), tgt, tgt.roll(-1), tgt_packing).loss
        for one, src in ((model, sources), (reads, [src[:-1] for src in sources]))
    )
    torch.testing.assert_close(found, expected)
    found.backward()
    assert model.embedding.weight.grad is not None


def test_links_and_attention_are_of_words(bundle: Path) -> None:
    translator, aligner = Translator.load(bundle), Aligner.load(bundle)
    (links,) = aligner.align([TEXT[0]], [TEXT[1]])
    assert {target for _, target in links} == set(range(len(TEXT[1].split())))
    assert {source for source, _ in links} <= set(range(len(TEXT[0].split())))
    weights = torch.tensor(word_attention(translator, TEXT[0], TEXT[1]).weights)
    torch.testing.assert_close(weights.sum(dim=1), torch.ones(len(weights)), atol=1e-3, rtol=0)
    src, tgt = (translator.tokenizer.encode([text])[0] for text in TEXT[:2])
    _, found = read_weights(translator, src, tgt)
    assert found["encoder"].shape[2:] == (len(src), len(src))
    assert found["cross"].shape[2:] == (len(tgt) + 1, len(src))


def test_guided_alignment_needs_it() -> None:
    with pytest.raises(ConfigError, match="links the ends of sentences"):
        load_config("base", ["model.source_end=false", "loss.guided_alignment=0.05"])
