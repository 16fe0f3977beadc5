"""What data sheets say of devices."""

from __future__ import annotations

import pytest

from dstransformer.training.devices import datasheet_peak


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
