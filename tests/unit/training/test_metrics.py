"""What a run costs, and how much of its GPUs it uses."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from dstransformer.config import Precision, load_config
from dstransformer.data.plan import LengthSums
from dstransformer.model import training_flops
from dstransformer.training.checkpoints.format import Cost
from dstransformer.training.metrics import CostMeter, DeviceUse, datasheet_peak

CONFIG = load_config("toy")
MODEL = CONFIG.model
SUMS = LengthSums.of(np.array([3, 9], dtype=np.int32), np.array([4, 8], dtype=np.int32))


def test_cost_adds_up_over_updates_and_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    meter = CostMeter(CONFIG, 397, devices=8)
    assert meter.total == Cost()
    now = 200.0  # start-up is not counted
    meter.start_clock()
    meter.add(SUMS)
    meter.add(SUMS)
    now = 210.0
    assert meter.total == Cost(flops=2 * training_flops(MODEL, 400, SUMS), device_seconds=80.0)


def test_a_resumed_run_goes_on_counting_and_its_speed_covers_all_that_it_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 5.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    meter = CostMeter(CONFIG, 400, devices=2)
    meter.resume(Cost(flops=10**18, device_seconds=60.0))
    meter.start_clock()
    now = 7.0  # a validation before the first update
    assert "overall_tokens_per_second" not in meter.totals
    meter.add(SUMS)
    meter.add(SUMS)
    now = 13.0
    assert meter.total == Cost(10**18 + 2 * training_flops(MODEL, 400, SUMS), 60.0 + 2 * 8.0)
    assert meter.totals == {**meter.total.metrics(), "overall_tokens_per_second": 2 * 24 / 8.0}


def test_both_passes_of_r_drop_count() -> None:
    meter = CostMeter(load_config("toy", ["loss.r_drop=5"]), 400, devices=1)
    meter.add(SUMS)
    assert meter.total.flops == 2 * training_flops(MODEL, 400, SUMS)


def test_metrics_are_in_pflop_days_and_device_hours() -> None:
    # 1 PFLOP/s for a day; 24 devices for an hour each.
    totals = Cost(flops=round(8.64e19), device_seconds=24 * 3600).metrics()
    assert totals == {"flops": 8.64e19, "pflop_days": pytest.approx(1.0), "device_hours": pytest.approx(24.0)}


H100 = "NVIDIA H100 80GB HBM3"


@pytest.mark.parametrize(("name", "precision", "mfu"), [
    (H100, "bf16", 989e12), (H100, "fp16", 989e12), ("NVIDIA A100-SXM4-80GB", "bf16", 312e12),
    (H100, "fp32", None), ("Tesla V100-SXM2-16GB", "fp16", None),  # no peak to compare with
])  # fmt: skip
def test_mfu_is_the_share_of_the_peak_of_all_gpus(
    monkeypatch: pytest.MonkeyPatch, name: str, precision: Precision, mfu: float | None
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: name)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (19 * 2**30, 79 * 2**30))
    world: Any = SimpleNamespace(device=torch.device("cuda", 0), world_size=4)
    cost = CostMeter(CONFIG, 400, devices=4)
    cost.resume(Cost(flops=10**18))
    use = DeviceUse(cost, precision, world)
    cost.add(SUMS)
    cost.add(SUMS)
    found = use.metrics(0.5)
    assert found.pop("memory_gib") == 60.0
    flops = 2 * training_flops(MODEL, 400, SUMS)
    assert found == ({} if mfu is None else {"mfu": pytest.approx(flops / 0.5 / (4 * mfu))})
    use.clear()
    assert use.metrics(0.5).get("mfu", 0.0) == 0.0


def test_a_cpu_has_neither() -> None:
    world: Any = SimpleNamespace(device=torch.device("cpu"), world_size=2)
    assert DeviceUse(CostMeter(CONFIG, 400, devices=2), "bf16", world).metrics(1.0) == {}


@pytest.mark.parametrize(
    ("name", "peak"),
    [
        ("NVIDIA H100 80GB HBM3", 989e12),
        ("NVIDIA H100 PCIe", 756e12),
        ("NVIDIA H200", 989e12),
        ("NVIDIA A100-SXM4-80GB", 312e12),
        ("NVIDIA L40S", 362e12),
        ("NVIDIA L4", 121e12),
        ("NVIDIA GH200 480GB", 989e12),
        ("NVIDIA RTX A1000", None),
        ("Some other card", None),
    ],
)
def test_datasheet_peaks(name: str, peak: float | None) -> None:
    assert datasheet_peak(name) == peak
