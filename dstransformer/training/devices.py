"""GPUs by name, and the peak of their data sheets."""

from __future__ import annotations

import re

#: Peak FLOP/s of dense bf16 and fp16 matrix products with fp32 accumulation. NVIDIA's data sheets often state twice as
#: much, for sparse matrices. The first name that is a word of the device's name counts.
DENSE_PEAKS = {
    "H100 PCIe": 756e12,
    "H100 NVL": 835e12,
    "H100": 989e12,
    "H200 NVL": 835e12,
    "H200": 989e12,
    "H800": 989e12,
    "GH200": 989e12,
    "H20": 148e12,
    "B200": 2250e12,
    "A100": 312e12,
    "A800": 312e12,
    "L40S": 362e12,
    "L40": 181e12,
    "L4": 121e12,
    "RTX 4090": 165e12,
}


def datasheet_peak(name: str) -> float | None:
    """Peak FLOP/s of dense bf16 products of the device with this name; None if unknown."""
    return next((peak for part, peak in DENSE_PEAKS.items() if re.search(rf"\b{part}\b", name)), None)
