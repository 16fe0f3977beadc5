"""The library of C++ kernels is compiled once, shared, and not needed where there is no compiler."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from support.models.packed import VOCAB, model_loss, tiny_config

from dstransformer.model import Transformer
from dstransformer.model.ops import library

LOAD = [sys.executable, "-c", "from dstransformer.model.ops import library; assert library.kernels()"]


@pytest.fixture
def quick_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A g++ that does not optimise, for tests of when it is called."""
    (tmp_path / "bin").mkdir()
    compiler = tmp_path / "bin" / "g++"
    compiler.write_text(f'#!/bin/sh\nexec {shutil.which("g++")} "$@" -O0\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("PATH", os.pathsep.join([str(compiler.parent), os.environ["PATH"]]))


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, quick_compiler: None) -> Iterator[Path]:
    """An empty cache of compiled kernels, with nothing loaded yet."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    library._load.cache_clear()
    yield tmp_path / "cache"
    library._load.cache_clear()


def test_an_invalid_cxx_is_reported_and_ignored(
    cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("CXX", "g++ '")
    assert library.can_compute(torch.ones(1))
    assert 'CXX is "g++ \'", which is not a command' in caplog.text


@pytest.mark.parametrize("compiles", [None, False], ids=["none", "fails"])
def test_without_a_compiler_pytorch_replaces_the_kernels(
    compiles: bool | None,
    cache: Path,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    if compiles is not None:
        (tmp_path / "g++").symlink_to("/bin/false")
    with caplog.at_level(logging.WARNING):
        assert not library.can_compute(torch.ones(1))
        assert not library.can_compute(torch.ones(1))
    assert len(caplog.messages) == 1
    assert "slower" in caplog.messages[0]
    model = Transformer(tiny_config(), VOCAB)
    model_loss(model).backward()
    assert not list(cache.rglob("*.so"))


def test_another_compiler_is_tried_if_cxx_fails(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "false -Wall")
    assert library.can_compute(torch.ones(1))
    assert len(list(cache.rglob("*.so"))) == 1


@pytest.mark.slow
def test_a_damaged_library_is_compiled_again(cache: Path) -> None:
    assert library.kernels() is not None
    (compiled,) = cache.rglob("*.so")
    whole = compiled.stat().st_size
    compiled.unlink()  # this process has the file open
    compiled.write_bytes(b"the first bytes before a power cut")
    processes = [subprocess.Popen(LOAD) for _ in range(2)]
    assert [process.wait() for process in processes] == [0, 0]
    assert compiled.stat().st_size == whole
