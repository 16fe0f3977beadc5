"""Memory and MFU of a GPU, as PyTorch reports the memory and the data sheet the peak."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from dstransformer.config import Precision, load_config
from dstransformer.data.plan import LengthSums
from dstransformer.model import training_flops
from dstransformer.training.device_use import DeviceUse

CONFIG = load_config("base")
SUMS = LengthSums.of(np.array([30, 90], dtype=np.int32), np.array([40, 80], dtype=np.int32))


def build(
    monkeypatch: pytest.MonkeyPatch, name: str = "NVIDIA H100 80GB HBM3", precision: Precision = "bf16", *changes: str
) -> DeviceUse:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: name)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (19 * 2**30, 79 * 2**30))
    world: Any = SimpleNamespace(device=torch.device("cuda", 0), world_size=4)
    return DeviceUse(load_config("base", changes), 37_000, precision, world)


@pytest.mark.parametrize(("name", "peak"), [("NVIDIA H100 80GB HBM3", 989e12), ("NVIDIA A100-SXM4-80GB", 312e12)])
def test_mfu_is_the_share_of_the_peak_of_all_gpus(monkeypatch: pytest.MonkeyPatch, name: str, peak: float) -> None:
    use = build(monkeypatch, name)
    use.add(SUMS)
    use.add(SUMS)
    flops = 2 * training_flops(CONFIG.model, 37_000, SUMS)
    assert use.metrics(0.5) == {"memory_gib": 60.0, "mfu": pytest.approx(flops / 0.5 / (4 * peak))}
    use.clear()
    assert use.metrics(0.5)["mfu"] == 0.0


def test_both_passes_of_r_drop_count(monkeypatch: pytest.MonkeyPatch) -> None:
    once, twice = build(monkeypatch), build(monkeypatch, "NVIDIA H100 80GB HBM3", "fp16", "loss.r_drop=5")
    for use in (once, twice):
        use.add(SUMS)
    assert twice.metrics(1.0)["mfu"] == 2 * once.metrics(1.0)["mfu"]


@pytest.mark.parametrize(("name", "precision"), [("NVIDIA H100 80GB HBM3", "fp32"), ("Tesla V100-SXM2-16GB", "fp16")])
def test_without_a_peak_to_compare_with_there_is_only_memory(
    monkeypatch: pytest.MonkeyPatch, name: str, precision: Precision
) -> None:
    use = build(monkeypatch, name, precision)
    use.add(SUMS)
    assert use.metrics(1.0) == {"memory_gib": 60.0}


def test_a_cpu_has_neither() -> None:
    world: Any = SimpleNamespace(device=torch.device("cpu"), world_size=2)
    use = DeviceUse(CONFIG, 37_000, "bf16", world)
    use.add(SUMS)
    assert use.metrics(1.0) == {}
