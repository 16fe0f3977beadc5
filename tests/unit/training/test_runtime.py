"""What is prepared for DeepSpeed: waiting for operators that are built, and the sections that the engine reads."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from dstransformer.errors import ConfigError
from dstransformer.training.runtime import _mark_nonfinite, check_sections, wait_for_operator_builds


def lock_in(folder: Path, age: float) -> Path:
    lock = folder / "py311_cpu" / "deepspeed_operator" / "lock"
    lock.parent.mkdir(parents=True)
    lock.touch()
    made = time.time() - age
    os.utime(lock, (made, made))
    return lock


def test_a_stale_lock_is_removed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    lock = lock_in(tmp_path, age=3600)
    wait_for_operator_builds(tmp_path)
    assert not lock.exists()
    assert str(lock.parent) in caplog.text


def test_it_waits_for_a_build_in_progress(tmp_path: Path) -> None:
    lock = lock_in(tmp_path, age=0)
    waiting = threading.Thread(target=wait_for_operator_builds, args=(tmp_path,))
    waiting.start()
    waiting.join(timeout=0.5)
    assert waiting.is_alive()
    assert lock.exists()
    lock.unlink()
    waiting.join()


@pytest.mark.parametrize("norm", [0.0, 1.5, 3e38, float("inf"), float("-inf"), float("nan")])
def test_a_norm_is_marked_as_deepspeed_marks_it(norm: float) -> None:
    from deepspeed.runtime.utils import mask_nan_or_inf_with_val_inplace

    expected, found = torch.tensor(norm), torch.tensor(norm)
    mask_nan_or_inf_with_val_inplace(expected, device=expected.device)
    _mark_nonfinite(found, device=found.device)
    assert torch.equal(found, expected)


@pytest.mark.parametrize(("content", "key"), [
    ({"fp16": {"enabled": True, "init_scale": 4}}, "init_scale"), ({"bf16": {"enable": True}}, "enable"),
    ({"fp16": {"hysteresis": "two"}}, "hysteresis"),
    ({"zero_optimization": {"stage": 1, "reduce_size": 4}}, "reduce_size"),
])  # fmt: skip
def test_sections_are_checked_by_deepspeed(content: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError, match=key):
        check_sections(content)
