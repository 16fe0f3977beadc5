"""What the Triton kernels compute, compared with the reference: in Triton's interpreter on a CPU, or on a GPU.

Memory is filled with NaN before the kernels write to it, so what they leave out shows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

import torch
from torch import Tensor

from dstransformer.config import load_config
from dstransformer.decoding import beam_search
from dstransformer.model import Ensemble, Transformer, ops
from dstransformer.model.ops import Backend, gpu_attention, gpu_best, gpu_library, gpu_loss, gpu_norm, reference
from support.models.numerics import assert_near
from support.models.packed import VOCAB, draw_pairs, pack, tiny_config

#: What rounding a result once may cost, relative, on a GPU; in fp32, what another order of sums and another exponential
#: cost. The interpreter has the order and the functions of the reference, and cuts off bf16.
ROUNDING = {torch.float32: 1e-5, torch.bfloat16: 2**-8, torch.float16: 2**-10}
INTERPRETED = {**ROUNDING, torch.float32: 2e-6, torch.bfloat16: 2**-7}
EPSILON, ALPHA = 0.1, 5.0


@contextmanager
def poisoned_memory() -> Iterator[None]:
    """Have PyTorch fill what ``torch.empty`` returns with NaN."""
    torch.use_deterministic_algorithms(True)
    try:
        assert torch.empty(3).isnan().all()
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def draw_logits(dtype: torch.dtype, rows: int, tokens: int, pieces: int, device: str) -> tuple[Tensor, Tensor, Tensor]:
    """Logits of two passes, ``(rows, pieces)``, and targets, ``(tokens,)``."""
    generator = torch.Generator().manual_seed(rows + pieces)
    first, second = (3.0 * torch.randn(2, rows, pieces, generator=generator)).to(dtype).to(device)
    targets = torch.randint(pieces, (tokens,), generator=generator)
    targets[:1] = pieces - 1
    return first, second, targets.to(device)


def _order(*addends: int) -> float:
    """What another order of fp32 sums, of so many terms each, may cost, relative: errors that add up at random."""
    return 2e-6 + 2**-24 * sum(math.sqrt(count) for count in addends)


def check_cross_entropy(
    dtype: torch.dtype, rows: int, tokens: int, pieces: int, scale: float | None, device: str = "cpu"
) -> None:
    """Loss, likelihood and gradient equal those of the reference, and filler rows are 0."""
    logits, _, targets = draw_logits(dtype, rows, tokens, pieces, device)
    loss, nll, grad = reference.cross_entropy(logits.float(), targets, EPSILON, scale)
    given = logits.clone()
    with poisoned_memory():
        found_loss, found_nll, found = gpu_loss.cross_entropy_(given, targets, EPSILON, scale)
    torch.testing.assert_close((found_loss, found_nll), (loss, nll), rtol=_order(tokens, pieces), atol=1e-5)
    if scale is None:
        assert found is None
        assert torch.equal(given, logits)
    else:
        assert found is not None
        assert grad is not None
        _assert_rounded(found, grad, dtype, scale)
        assert found is given
        assert not found[tokens:].any()


def check_r_drop(dtype: torch.dtype, rows: int, pieces: int, scale: float | None, device: str = "cpu") -> None:
    """Loss, likelihood and both gradients equal those of the reference."""
    first, second, targets = draw_logits(dtype, rows, rows, pieces, device)
    loss, nll, grads = reference.r_drop_cross_entropy((first.float(), second.float()), targets, EPSILON, ALPHA, scale)
    given = first.clone(), second.clone()
    with poisoned_memory():
        found_loss, found_nll, found = gpu_loss.r_drop_cross_entropy_(given, targets, EPSILON, ALPHA, scale)
    torch.testing.assert_close((found_loss, found_nll), (loss, nll), rtol=3 * _order(rows, pieces), atol=1e-5)
    if scale is None:
        assert found is None
        assert torch.equal(given[0], first)
    else:
        assert found is not None
        assert grads is not None
        for found_grad, grad in zip(found, grads, strict=True):
            _assert_rounded(found_grad, grad, dtype, scale)


def check_nan_stays_in_its_row(device: str = "cpu") -> None:
    """A row with a NaN has no loss and no gradient; the others are as without it."""
    logits, _, targets = draw_logits(torch.bfloat16, 3, 3, 5000, device)
    sound = logits.clone()
    gpu_loss.launch_cross_entropy(sound, targets, EPSILON, 1.0)
    logits[1, 4999] = torch.nan
    sums = gpu_loss.launch_cross_entropy(logits, targets, EPSILON, 1.0)
    assert sums.isnan().tolist() == [[False, True, False]] * 2
    assert logits[1].isnan().all()
    assert torch.equal(logits[[0, 2]], sound[[0, 2]])


def check_best_pieces(
    dtype: torch.dtype, rows: int, pieces: int, first: int, end: int, count: int, device: str = "cpu"
) -> None:
    """Logits and pieces are those of a stable sort, so that the first of equal ones win; the sums are the reference's.

    Rows differ: one ascends, one is all equal, one begins with a block of minus infinity, one has only that; the others
    are random numbers, of which many are equal in half precision.
    """
    logits, _, _ = draw_logits(dtype, rows, 0, pieces, device)
    for row, kind in enumerate(logits[1:5], start=1):
        kind.copy_(logits[row].sort().values if row == 1 else torch.full_like(kind, (0.0, -torch.inf)[row > 2]))
    logits[3:4, -3:] = -2.0
    best, places = logits.float()[:, first:end].sort(dim=1, descending=True, stable=True)
    _, _, log_sums = reference.best_pieces(logits, first, end, count)
    with poisoned_memory():
        found = gpu_best.best_pieces(logits, first, end, count)
    assert [one.dtype for one in found] == [torch.float32, torch.int64, torch.float32]
    assert torch.equal(found[0], best[:, :count])
    assert torch.equal(found[1], places[:, :count] + first)
    torch.testing.assert_close(found[2], log_sums, rtol=_order(pieces), atol=1e-6)


def check_best_pieces_of_nan(device: str = "cpu") -> None:
    """NaN of either sign is better than infinity, as in the reference, and stays in its row."""
    logits, _, _ = draw_logits(torch.float32, 4, 0, 5000, device)
    _, _, sound = gpu_best.best_pieces(logits, 2, 4999, 4)
    logits[1, 4500:4502] = torch.tensor([torch.nan, -torch.nan], device=device)
    logits[1, 7] = torch.inf
    logits[2, 4999] = torch.nan  # not a choice
    best, places, log_sums = gpu_best.best_pieces(logits, 2, 4999, 4)
    assert places[1, :3].tolist() == [4500, 4501, 7]
    assert best.isnan().sum(dim=1).tolist() == [0, 2, 0, 0]
    assert torch.equal(best[2], reference.best_pieces(logits, 2, 4999, 4)[0][2])
    assert log_sums.isnan().tolist() == [False, True, True, False]
    assert torch.equal(log_sums[[0, 3]], sound[[0, 3]])
    logits[:] = torch.nan
    best, places, log_sums = gpu_best.best_pieces(logits, 2, 4999, 4)
    assert best.isnan().all()
    assert log_sums.isnan().all()
    assert places.tolist() == [[2, 3, 4, 5]] * 4


def check_search(device: str = "cpu") -> None:
    """Beam search finds the same with the kernel, also with prefixes and where the end may not be chosen yet."""
    torch.manual_seed(1)
    model = Transformer(tiny_config(), VOCAB).to(device).eval()
    src, packing = pack([src.to(device) for src, _ in draw_pairs()])
    settings = load_config("base").decoding.model_copy(update={"max_extra_tokens": 6, "min_tokens": 2})
    found = []
    for kernels in (False, True):
        with (
            patch.object(ops.dispatch, "can_compute", lambda *_: False),  # the kernels of a CPU
            patch.object(gpu_library, "can_choose", lambda *_, on=kernels: on),
            patch.object(gpu_best, "best_pieces", wraps=gpu_best.best_pieces) as best_pieces,
        ):
            found.append(
                beam_search(Ensemble([model]), src, packing, settings, vocab_size=VOCAB, prefixes=[[7], [], [], [9, 8]])
            )
        assert bool(best_pieces.call_count) == kernels
    for (plain,), (one,) in zip(*found, strict=True):
        assert one.tokens == plain.tokens
        assert abs(one.score - plain.score) < 1e-4


def check_compiled_layers(device: str = "cpu") -> None:
    """``torch.compile`` sees the residual norm as two operators, and computes the same."""

    def normed(x: Tensor, y: Tensor, p: float) -> Tensor:
        assert gpu_library._can_run_on(x.device)
        return gpu_norm.residual_norm(x, y, gain, bias, 1e-6, p)

    compiled = torch.compile(normed, backend="aot_eager", fullgraph=True)
    x, y = torch.randn(2, 5, 64, device=device).unbind()
    x.requires_grad_()
    gain, bias = torch.randn(2, 64, device=device).unbind()
    with patch.object(gpu_library, "_supports", lambda _: True):
        outs = [function(x, y, 0.0) for function in (normed, compiled)]
        assert torch.equal(*outs)
        assert torch.equal(*(torch.autograd.grad((out * y).sum(), x)[0] for out in outs))
        assert compiled(x, y, 0.3).shape == x.shape


def _rounding(found: Tensor) -> float:
    return (ROUNDING if found.is_cuda else INTERPRETED)[found.dtype]


def _assert_rounded(found: Tensor, exact: Tensor, dtype: torch.dtype, scale: float) -> None:
    assert found.dtype == dtype
    torch.testing.assert_close(found.float(), exact, rtol=_rounding(found), atol=2e-6 * scale)


def check_residual_norm(
    dtype: torch.dtype, weight_dtype: torch.dtype, rows: int, width: int, p: float, device: str = "cpu"
) -> None:
    """Output and gradients equal those of the reference in fp64 for the same mask, whose seed is PyTorch's.

    ``x + Dropout(y)`` is exact in every precision for these numbers and ``p`` 0 or 0.5, so only results are rounded.
    """
    generator = torch.Generator().manual_seed(rows + width)
    x, y = (0.25 * torch.randint(-8, 9, (2, rows, width + 1), generator=generator)).to(dtype).to(device)[..., :width]
    grad = torch.randn(rows, width, generator=generator).to(dtype).to(device)
    gain, bias = (1.0 + torch.randn(2, width, generator=generator)).to(weight_dtype).to(device)
    given = x.clone(), y.clone(), gain.clone(), bias.clone()
    exact = x.double(), y.double(), gain.double(), bias.double()
    for tensor in (*given, *exact):
        tensor.requires_grad_()
    with poisoned_memory():
        torch.manual_seed(3)
        out = gpu_norm.residual_norm(*given, 1e-6, p)
        found_grads = torch.autograd.grad(out, given, grad)
    torch.manual_seed(3)
    factors = draw_factors(rows, width, p, device).double()
    expected = reference.residual_norm(exact[0], exact[1] * factors, exact[2], exact[3], 1e-6, 0.0)
    grads = torch.autograd.grad(expected, exact, grad.double())
    kinds = (dtype, dtype, dtype, weight_dtype, weight_dtype)
    for found, true, kind in zip((out, *found_grads), (expected, *grads), kinds, strict=True):
        assert found.dtype == kind
        if rows:
            assert_near(found.double(), true, _rounding(found))
    assert not found_grads[1][factors == 0.0].any()
    assert not found_grads[2].isnan().any()


def draw_factors(rows: int, width: int, p: float, device: str) -> Tensor:
    """The factors of dropout that the next ``residual_norm`` of this shape draws."""
    seed = torch.randint(gpu_norm.MAX_SEED, (), device=device) if p else None
    ones = torch.ones(rows, width, device=device)
    _, factors, _ = gpu_norm.launch_residual_norm(torch.zeros_like(ones), ones, ones[:1], ones[:1], seed, 1e-6, p)
    return factors


def check_dropout(device: str = "cpu") -> None:
    """Elements are dropped with the probability, independently of their place and of the seed."""
    torch.manual_seed(1)
    first, second = (draw_factors(24, 512, 0.3, device) for _ in range(2))
    kept = first > 0.0
    torch.testing.assert_close(first[kept], torch.full_like(first[kept], 1.0 / 0.7))
    for part in (kept, *kept.view(-1, 8).unbind(dim=1), *kept.chunk(4)):
        deviation = (0.3 * 0.7 / part.numel()) ** 0.5
        assert abs(float(part.float().mean()) - 0.7) < 5 * deviation
    assert 0.4 < float(kept.eq(second > 0.0).float().mean()) < 0.65  # 0.58 if they are independent
    assert len({tuple(row) for row in kept.tolist()}) == 24
    torch.manual_seed(1)
    assert torch.equal(draw_factors(24, 512, 0.3, device), first)
    state = torch.cuda.get_rng_state if device == "cuda" else torch.get_rng_state
    before = state()
    draw_factors(2, 8, 0.0, device)
    assert torch.equal(state(), before)


def check_model(precision: torch.dtype | None, device: str = "cpu") -> None:
    """Loss and gradients of a model are the same with the kernels, that of attention included, and without them."""
    sources, targets = zip(*draw_pairs(), strict=True)
    (src, src_packing), (tgt, tgt_packing) = pack(list(sources)), pack(list(targets))
    src, tgt = src.to(device), tgt.to(device)
    src_packing, tgt_packing = src_packing.to(device), tgt_packing.to(device)
    found = []
    for kernels in (False, True):
        torch.manual_seed(1)
        backend: Backend = "short" if kernels else "padded"
        model = Transformer(tiny_config(num_layers=1), VOCAB, EPSILON, backend, dtype=precision).to(device)
        with (
            patch.object(gpu_library, "can_compute", lambda *_, on=kernels: on),
            patch.object(gpu_library, "can_norm", lambda *_, on=kernels: on),
            patch.object(gpu_attention, "attention", wraps=gpu_attention.attention) as attention,
        ):
            sums = model(src, src_packing, tgt, tgt.roll(-1), tgt_packing)
            grads = torch.autograd.grad(sums.loss / len(tgt), list(model.parameters()))
        assert attention.call_count == (3 if kernels else 0)
        found.append((sums, grads))
    (plain, expected), (sums, grads) = found
    tolerance = 1e-5 if precision is None else 2e-2
    torch.testing.assert_close(tuple(sums), tuple(plain), rtol=tolerance, atol=0.0)
    for (name, _), grad, true in zip(model.named_parameters(), grads, expected, strict=True):
        assert grad.dtype == torch.float32
        assert (grad - true).norm() <= 2 * tolerance * true.norm() + 1e-7, name
