"""The Triton kernels of a GPU, run by Triton's interpreter, which shows what they compute but not how fast."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib.metadata import version
from typing import Any

import numpy as np
import pytest
import torch
from support.processes.interpreter import triton_interpreter

pytest.importorskip("triton", reason="needs triton")

from support.models import gpu_rows
from torch._subclasses.fake_tensor import FakeTensorMode

from dstransformer.model import ops
from dstransformer.model.ops import gpu_best, gpu_library, gpu_loss, gpu_norm, reference

pytestmark = pytest.mark.skipif(
    version("triton") < "3.7" and np.__version__ >= "2.4",  # PyTorch 2.11 brings 3.6
    reason="the interpreter of Triton 3.6 does not run with NumPy 2.4",
)

PRECISIONS = [torch.float32, torch.bfloat16, torch.float16]

Call = Callable[..., Any]


@pytest.fixture(scope="module")
def interpreted() -> Iterator[Call]:
    with triton_interpreter() as call:
        yield call


@pytest.mark.parametrize("dtype", PRECISIONS, ids=str)
@pytest.mark.parametrize(
    ("rows", "tokens", "pieces"),
    [(3, 2, 37_000), (2, 2, 40_960), (5, 3, 4_097), (3, 3, 101), (1, 1, 17), (4, 0, 100), (0, 0, 40)],
)
def test_cross_entropy(interpreted: Call, dtype: torch.dtype, rows: int, tokens: int, pieces: int) -> None:
    for scale in (1024.0 if dtype == torch.float16 else 1.0, None):
        interpreted(gpu_rows.check_cross_entropy, dtype, rows, tokens, pieces, scale)


@pytest.mark.parametrize("dtype", PRECISIONS, ids=str)
@pytest.mark.parametrize(("rows", "pieces"), [(2, 37_000), (3, 2_049), (1, 17), (0, 40)])
def test_r_drop(interpreted: Call, dtype: torch.dtype, rows: int, pieces: int) -> None:
    for scale in (200.0 if dtype == torch.float16 else 1.0, None):
        interpreted(gpu_rows.check_r_drop, dtype, rows, pieces, scale)


def test_nan_stays_in_its_row(interpreted: Call) -> None:
    interpreted(gpu_rows.check_nan_stays_in_its_row)


@pytest.mark.parametrize("dtype", PRECISIONS, ids=str)
@pytest.mark.parametrize(
    ("rows", "pieces", "first", "end", "count"),
    [
        (6, 8_192, 2, 8_192, 8),
        (5, 9_001, 3, 8_999, 5),
        (5, 4_100, 4_090, 4_099, 9),
        (5, 101, 0, 101, 64),
        (4, 37, 36, 37, 1),
        (0, 40, 2, 40, 8),
    ],
)
def test_best_pieces(
    interpreted: Call, dtype: torch.dtype, rows: int, pieces: int, first: int, end: int, count: int
) -> None:
    interpreted(gpu_rows.check_best_pieces, dtype, rows, pieces, first, end, count)


def test_nan_is_the_best_piece_of_its_row(interpreted: Call) -> None:
    interpreted(gpu_rows.check_best_pieces_of_nan)


def test_a_search_finds_the_same_with_the_kernel(interpreted: Call) -> None:
    interpreted(gpu_rows.check_search)


@pytest.mark.parametrize("p", [0.0, 0.5])
@pytest.mark.parametrize(
    ("dtype", "weight_dtype"),
    [
        (torch.float32, torch.float32),
        (torch.bfloat16, torch.float32),
        (torch.float16, torch.float32),
        (torch.bfloat16, torch.bfloat16),
    ],
    ids=str,
)
@pytest.mark.parametrize(("rows", "width"), [(5, 512), (3, 100), (1, 33), (0, 64)])
def test_residual_norm(
    interpreted: Call, dtype: torch.dtype, weight_dtype: torch.dtype, rows: int, width: int, p: float
) -> None:
    interpreted(gpu_rows.check_residual_norm, dtype, weight_dtype, rows, width, p)


def test_dropout(interpreted: Call) -> None:
    interpreted(gpu_rows.check_dropout)


@pytest.mark.parametrize("precision", [None, torch.float16], ids=str)
def test_a_model_computes_the_same_with_the_kernels(interpreted: Call, precision: torch.dtype | None) -> None:
    interpreted(gpu_rows.check_model, precision)


@pytest.mark.extended
def test_compiled_layers(interpreted: Call) -> None:
    interpreted(gpu_rows.check_compiled_layers)


@pytest.mark.parametrize("p", [0.0, 0.1])
def test_fake_tensors_have_the_shapes_of_the_results(p: float) -> None:
    with FakeTensorMode():
        x, y = (torch.empty(5, 64, dtype=torch.bfloat16, requires_grad=True) for _ in range(2))
        gain = torch.empty(64, requires_grad=True)
        out = gpu_norm.residual_norm(x, y, gain, gain, 1e-6, p)
        grads = torch.autograd.grad(out, (x, y, gain), torch.empty_like(out))
        assert [(tensor.dtype, tensor.shape) for tensor in (out, *grads)] == [
            (tensor.dtype, tensor.shape) for tensor in (x, x, y, gain)
        ]
        logits, targets = torch.empty(5, 40, dtype=torch.bfloat16), torch.empty(3, dtype=torch.int64)
        loss, nll, grad = gpu_loss.cross_entropy_(logits, targets, 0.1, 1.0)
        assert grad is logits
        assert loss.shape == nll.shape == ()
        assert loss.dtype == nll.dtype == torch.float32
        best, pieces, log_sums = gpu_best.best_pieces(logits, 2, 39, 8)
        assert best.shape == pieces.shape == (5, 8)
        assert log_sums.shape == (5,)
        assert (best.dtype, pieces.dtype, log_sums.dtype) == (torch.float32, torch.int64, torch.float32)


@pytest.mark.parametrize(("rows", "count", "expected"), [(200, 8, "kernel"), (200, 65, "plain"), (100, 8, "plain")])
def test_few_logits_and_many_choices_take_the_operators_of_pytorch(
    rows: int, count: int, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_library, "_can_run_on", lambda _: True)
    monkeypatch.setattr(gpu_best, "best_pieces", lambda *_: "kernel")
    monkeypatch.setattr(reference, "best_pieces_in_few_kernels", lambda *_: "plain")
    with FakeTensorMode():
        logits = torch.empty(rows, 37_000, dtype=torch.bfloat16, device="cuda")
        assert ops.best_pieces(logits, 2, 37_000, count) == expected
