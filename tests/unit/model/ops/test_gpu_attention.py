"""The Triton kernels of attention in short sentences, run by Triton's interpreter, and the batches that take them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib.metadata import version
from typing import Any

import numpy as np
import pytest
import torch
from support.processes.interpreter import triton_interpreter

pytest.importorskip("triton", reason="needs triton")

from support.models import gpu_sentences
from support.models.gpu_sentences import Kind
from torch._subclasses.fake_tensor import FakeTensorMode

from dstransformer.data.packing import Packing
from dstransformer.model import ops
from dstransformer.model.ops import gpu_attention, gpu_library, varlen

interpretable = pytest.mark.skipif(
    version("triton") < "3.7" and np.__version__ >= "2.4",  # PyTorch 2.11 brings 3.6
    reason="the interpreter of Triton 3.6 does not run with NumPy 2.4",
)

HALVES = [torch.bfloat16, torch.float16]
KINDS: list[Kind] = ["self", "causal", "memory"]

Call = Callable[..., Any]


@pytest.fixture(scope="module")
def interpreted() -> Iterator[Call]:
    with triton_interpreter() as call:
        yield call


@interpretable
@pytest.mark.parametrize("kind", KINDS)
def test_sentences_of_one_to_three_blocks(interpreted: Call, kind: Kind) -> None:
    interpreted(gpu_sentences.check_attention, torch.float32, kind, [1, 31, 70, 32, 33], 1, 24, 8)


@interpretable
@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_heads_of_odd_widths_in_half_precision(interpreted: Call, dtype: torch.dtype, kind: Kind) -> None:
    interpreted(gpu_sentences.check_attention, dtype, kind, [33, 2], 2, 5, 19)


@interpretable
@pytest.mark.extended
@pytest.mark.parametrize("dtype", [torch.float32, *HALVES], ids=str)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("heads", "d_k", "d_v"), [(3, 16, 16), (2, 128, 96), (1, 64, 64), (2, 1, 3)])
def test_attention(interpreted: Call, dtype: torch.dtype, kind: Kind, heads: int, d_k: int, d_v: int) -> None:
    interpreted(gpu_sentences.check_attention, dtype, kind, [1, 31, 70, 32, 33, 7], heads, d_k, d_v)


@interpretable
@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=pytest.mark.extended)])
@pytest.mark.parametrize("kind", ["self", "memory"])
def test_checkpointing_and_the_compiler_change_nothing(interpreted: Call, kind: Kind, compiled: bool) -> None:
    interpreted(gpu_sentences.check_computed_again, kind, compiled)


@pytest.mark.parametrize("over_memory", [False, True])
def test_fake_tensors_have_the_shapes_of_the_results(over_memory: bool) -> None:
    shape = ops.HeadShape(2, 16, 8, causal=False)
    with FakeTensorMode():
        packing = Packing(torch.empty(3, dtype=torch.int32), 4, 7)
        queries = torch.empty(8, 32 if over_memory else 80, dtype=torch.bfloat16, requires_grad=True)
        memory = torch.empty(8, 48, dtype=torch.bfloat16, requires_grad=True) if over_memory else None
        out = gpu_attention.attention(queries, memory, packing, packing, shape)
        given = [x for x in (queries, memory) if x is not None]
        grads = torch.autograd.grad(out, given, torch.empty_like(out))
        assert (out.dtype, out.shape) == (torch.bfloat16, (8, 16))
        assert [(x.dtype, x.shape) for x in grads] == [(x.dtype, x.shape) for x in given]


@pytest.mark.parametrize(("backend", "length", "d_k", "p", "expected"), [
    ("short", 256, 128, 0.0, "short"), ("short", 257, 128, 0.0, "flash"), ("short", 256, 129, 0.0, "flash"),
    ("short", 9, 64, 0.1, "padded"), ("auto", 9, 64, 0.0, "flash"), ("padded", 9, 64, 0.0, "padded"),
])  # fmt: skip
def test_longer_sentences_and_wider_heads_take_flash_attention(
    backend: ops.Backend, length: int, d_k: int, p: float, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_library, "can_compute", lambda *_: True)
    monkeypatch.setattr(varlen, "_is_available", lambda *_: True)
    monkeypatch.setattr(gpu_attention, "attention", lambda *_: "short")
    monkeypatch.setattr(varlen, "attention", lambda *_: "flash")
    monkeypatch.setattr(ops.dispatch.reference, "attention", lambda *_: "padded")
    queries, sentences = (
        torch.empty(0),
        Packing.from_lengths([3]),
    )
    keys = Packing.from_lengths([length])
    assert ops.attention(queries, None, sentences, keys, ops.HeadShape(2, d_k, 8, causal=False), p, backend) == expected
