"""The loss of guided alignment equals its formula, computed sentence by sentence."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support.models.packed import tiny_config

from dstransformer.data.links import _pack_links
from dstransformer.data.packing import PackedBatch, pack_pairs
from dstransformer.model import Transformer, attention_weights
from dstransformer.model.loss import Objective, recompute

VOCAB = 23
SRC, TGT = [5, 3, 7], [4, 6, 2]

#: Sentence, source token, target token.
LINKED = [(0, 1, 0), (0, 2, 0), (0, 4, 3), (2, 6, 0), (2, 0, 1), (2, 3, 1), (2, 5, 1)]


def batch() -> PackedBatch:
    random = np.random.default_rng(1)
    src, tgt = (np.array(lengths, dtype=np.int32) for lengths in (SRC, TGT))
    ids = [random.integers(4, VOCAB, lengths.sum()).astype(np.int32) for lengths in (src, tgt)]
    begins = [np.cumsum(lengths) - lengths for lengths in (src, tgt)]
    sentences = np.array([n for n, _, _ in LINKED])
    places = [np.array([link[side + 1] for link in LINKED]) + begins[side][sentences] for side in range(2)]
    return pack_pairs(ids[0], src, ids[1], tgt)._replace(links=_pack_links(*places, sentences, src, tgt))


def objective(weight: float, layers: int = 3) -> Objective:
    torch.manual_seed(1)
    config = tiny_config(num_layers=layers, dropout=0.0, attention_dropout=0.0)
    return Objective(Transformer(config, VOCAB), 0.1, guided_alignment=weight)


@pytest.mark.parametrize(("layers", "guided"), [(3, 1), (2, 0), (1, 0)])
def test_the_loss_is_the_cross_entropy_of_one_head(layers: int, guided: int) -> None:
    one, packed = objective(0.3, layers), batch()
    sums = one(*packed)
    wanted = 0.0
    for sentence in (0, 2):
        src = packed.src[packed.src_packing.cu[sentence] : packed.src_packing.cu[sentence + 1]]
        tgt = packed.tgt_in[packed.tgt_packing.cu[sentence] : packed.tgt_packing.cu[sentence + 1]]
        weights = attention_weights(one.model.eval(), src, tgt).cross[guided, 0]
        for target in {t for n, _, t in LINKED if n == sentence}:
            own = [s for n, s, t in LINKED if (n, t) == (sentence, target)]
            wanted -= sum(weights[target, source].log().item() for source in own) / len(own)
    assert sums.terms["alignment"].item() == pytest.approx(wanted, rel=1e-4)
    plain = objective(0.0, layers)(*packed)
    assert plain.terms.keys() == {"nll"}
    assert sums.loss.item() == pytest.approx(plain.loss.item() + 0.3 * wanted, rel=1e-5)


def test_without_links_in_a_batch_the_loss_is_that_without_guidance() -> None:
    packed = batch()._replace(links=None)
    guided, plain = objective(0.3)(*packed), objective(0.0)(*packed)
    assert torch.equal(guided.loss, plain.loss)
    assert guided.terms["alignment"].item() == 0.0
    assert objective(0.3).eval()(*batch()).terms.keys() == {"nll"}


@pytest.mark.parametrize("recomputed", [False, True])
def test_only_what_the_head_sees_gets_a_gradient_from_it(recomputed: bool) -> None:
    one = objective(0.3)
    if recomputed:
        one.model.call_layer = recompute
    sums = one(*batch())
    reference = objective(0.3)
    expected = reference(*batch())
    sums.loss.backward()
    expected.loss.backward()
    for (name, weight), other in zip(one.named_parameters(), reference.parameters(), strict=True):
        assert torch.allclose(weight.grad, other.grad, atol=1e-6), name
    layer = one.model.alignment_layer
    assert layer.recorded is None
    plain = objective(0.0)
    plain(*batch()).loss.backward()
    d_k, before = layer.shape.d_k, plain.model.alignment_layer.q.weight.grad
    assert not torch.allclose(layer.q.weight.grad[:d_k], before[:d_k], atol=1e-4)
    assert torch.allclose(layer.q.weight.grad[d_k:], before[d_k:], atol=1e-6)
