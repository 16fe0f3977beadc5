"""Backends of attention that cannot run are refused, and the message says what they need."""

from __future__ import annotations

import pytest
import torch
from support.models.packed import tiny_config

from dstransformer.errors import ConfigError
from dstransformer.model.ops import Backend, check_backend, varlen

CUDA = torch.device("cuda")


def message(backend: Backend, device: torch.device, dtype: torch.dtype = torch.bfloat16, **changes: float) -> str:
    """Why a backend is refused; empty if it is not."""
    try:
        check_backend(tiny_config(**changes), backend, device, dtype)
    except ConfigError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("backend", ["varlen", "short"])
def test_a_cpu_has_neither_flash_attention_nor_triton(backend: Backend) -> None:
    found = message(backend, torch.device("cpu"))
    assert f"training.attention_backend = {backend} needs a GPU of compute capability 8.0 or more" in found
    assert "set it to auto" in found


@pytest.mark.parametrize("kernels", ["none", "triton 3.7.1"])
def test_short_needs_triton(kernels: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(varlen, "gpu_kernels_name", lambda _: kernels)
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        assert ("the package triton" in message("short", CUDA, dtype)) == (kernels == "none")


def test_dropout_of_weights_and_wide_heads_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(varlen, "gpu_kernels_name", lambda _: "triton 3.7.1")
    monkeypatch.setattr(varlen, "_is_available", lambda *_: True)
    assert "needs model.attention_dropout=0.0:" in message("short", CUDA, attention_dropout=0.1)
    assert "needs model.d_k and d_v of at most 128:" in message("short", CUDA, d_v=129)
    assert "needs model.d_k and d_v of at most 256:" in message("varlen", CUDA, d_v=257)
    assert message("short", CUDA, d_k=128) == message("varlen", CUDA, d_k=256) == ""


def test_auto_and_padded_always_run() -> None:
    for backend in ("auto", "padded"):
        assert message(backend, torch.device("cpu"), attention_dropout=0.1, d_k=999) == ""
