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


def test_a_cpu_has_no_flash_attention() -> None:
    found = message("varlen", torch.device("cpu"))
    assert "training.attention_backend = varlen needs a GPU of compute capability 8.0 or more" in found
    assert "set it to auto" in found


def test_dropout_of_weights_and_wide_heads_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(varlen, "_is_available", lambda *_: True)
    assert "needs model.attention_dropout=0.0:" in message("varlen", CUDA, attention_dropout=0.1)
    assert "needs model.d_k and d_v of at most 256:" in message("varlen", CUDA, d_v=257)
    assert message("varlen", CUDA, d_k=256) == ""


def test_auto_and_padded_always_run() -> None:
    for backend in ("auto", "padded"):
        assert message(backend, torch.device("cpu"), attention_dropout=0.1, d_k=999) == ""
