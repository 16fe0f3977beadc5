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

from dstransformer.model.ops import gpu_loss, gpu_norm

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
