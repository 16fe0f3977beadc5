"""The reference, compiled by PyTorch as for a GPU but in C++ for a CPU, against the reference as it is.

Triton instead of C++ is what only a GPU can show.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator, Sequence

import pytest
import torch
from support.models.compiled import FUNCTIONS, PIECES, WIDTH, check, differentiate, draw, draw_targets, flat
from support.models.packed import VOCAB, draw_pairs, pack, tiny_config
from torch import Tensor
from torch._dynamo.utils import counters
from torch._inductor import config as inductor

from dstransformer.model import Transformer, ops
from dstransformer.model.loss import Objective, recompute
from dstransformer.model.ops import dispatch, reference

pytestmark = pytest.mark.slow

PRECISIONS = [torch.float32, pytest.param(torch.bfloat16, marks=pytest.mark.extended)]

#: Numbers of rows, as batches have them.
LENGTHS = [7, 64, 513, 48, 41, 100, 2, 33, 1000, 3, 17, 250, 96, 12, 77, 300, 5, 640, 128, 31]


@pytest.fixture(autouse=True)
def compiled(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Compile on a CPU what is compiled on a GPU, without the kernels of a CPU."""
    monkeypatch.setattr(dispatch, "COMPILED", ("cpu",))
    monkeypatch.setattr(dispatch, "can_compute", lambda *_: False)
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize("dtype", PRECISIONS, ids=str)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_twenty_lengths_compile_once_and_compute_what_the_reference_does(name: str, dtype: torch.dtype) -> None:
    assert len(set(LENGTHS)) == 20
    for rows in LENGTHS:
        check(name, dtype, rows)
    assert 1 <= counters["stats"]["unique_graphs"] <= 2


def masks(rows: int, seed: int) -> tuple[Tensor, Tensor]:
    """The dropout mask of a residual sum as its gradient shows it, and what is left of its result with that mask."""
    torch.manual_seed(seed)
    x, y, gain = draw(rows, WIDTH), draw(rows, WIDTH, seed=2), torch.ones(WIDTH)
    out, grad_x, grad_y, *_ = differentiate(ops.residual_norm, (x, y, gain, torch.zeros_like(gain)), 1e-6, 0.3)
    mask = (grad_y / grad_x).nan_to_num()
    return mask, out - reference.residual_norm(x, y * mask, gain, torch.zeros_like(gain), 1e-6, 0.0)


def test_dropout_is_a_function_of_the_seed() -> None:
    """Whatever was computed before, and whatever the length for which it was compiled."""
    mask, rest = masks(300, seed=7)
    assert mask.isfinite().all()
    torch.testing.assert_close(mask[mask > 0], torch.full_like(mask[mask > 0], 1 / 0.7), rtol=1e-3, atol=0.0)
    torch.testing.assert_close(rest, torch.zeros_like(rest), rtol=0.0, atol=1e-3)
    assert float((mask > 0).float().mean()) == pytest.approx(0.7, abs=0.02)
    others = [masks(rows, seed)[0] for rows, seed in ((40, 7), (300, 8))]
    assert not torch.equal(others[1] > 0, mask > 0)
    torch._dynamo.reset()
    masks(40, seed=1)
    assert torch.equal(masks(300, seed=7)[0] > 0, mask > 0)


def train(model: Transformer, micro_batches: Sequence[int]) -> dict[int, list[Tensor]]:
    """The gradients of micro-batches, seeded by their number as the engine does."""
    found = {}
    for number in micro_batches:
        pairs = draw_pairs(((5, 7), (1, 3), (9, 2), (1, 4))[number:])
        src, src_packing = pack([src for src, _ in pairs])
        tgt, tgt_packing = pack([tgt for _, tgt in pairs])
        torch.manual_seed(number)
        loss = Objective(model, 0.1)(src, src_packing, tgt, tgt.roll(-1), tgt_packing).loss
        found[number] = list(torch.autograd.grad(loss, list(model.parameters())))
    return found


def test_an_update_is_the_same_in_any_layout() -> None:
    """One process computes all micro-batches, or each only its own, and a layer is computed again with its mask."""
    torch.manual_seed(1)
    model = Transformer(tiny_config(dropout=0.3), VOCAB)
    whole = train(model, (0, 1, 2))
    for call_layer, parts in ((model.call_layer, (2, 0)), (recompute, (1,))):
        torch._dynamo.reset()
        model.call_layer = call_layer
        for number, gradients in train(model, parts).items():
            for found, expected in zip(gradients, whole[number], strict=True):
                torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_without_a_compiler_the_reference_runs_and_says_so_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(inductor.cpp, "cxx", ("no-such-compiler",))
    dispatch._warn_of_compiler.cache_clear()
    functions = [dispatch.compiled_on_cuda(one) for one in (reference.cross_entropy, reference.best_pieces)]
    logits = draw(9, PIECES)
    with caplog.at_level(logging.WARNING):
        for _, (function, arguments) in itertools.product(
            range(2), zip(functions, ((draw_targets(9), 0.1, None), (2, PIECES, 4)), strict=True)
        ):
            expected = function.__wrapped__(logits, *arguments)  # type: ignore[attr-defined]
            for found, plain in zip(flat(function(logits, *arguments)), flat(expected), strict=True):
                assert torch.equal(found, plain)
    (message,) = [message for message in caplog.messages if "no longer compiles for the GPU" in message]
    assert "no-such-compiler" in message
