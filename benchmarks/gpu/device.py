"""The device and its peak according to the data sheet."""

from __future__ import annotations

import torch

from dstransformer.training.devices import SHEETS, Sheet

#: Peak FLOP/s of dense bf16 and fp16 matrix products with fp32 accumulation. NVIDIA's data sheets often state twice as
#: much, for sparse matrices. The first name contained in the device's name counts.
DENSE_PEAKS = {
    "H100 PCIe": 756e12,
    "H100 NVL": 835e12,
    "H100": 989e12,
    "H200 NVL": 835e12,
    "H200": 989e12,
    "H800": 989e12,
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
    return next((peak for part, peak in DENSE_PEAKS.items() if part in name), None)


def find_sheet(name: str) -> Sheet | None:
    """The sheet that predictions use for the device with this name; None for devices without one."""
    known = datasheet_peak(name)
    return next((sheet for key, sheet in SHEETS.items() if key.upper() in name and sheet.products == known), None)


def describe(device: torch.device) -> str:
    """Name and memory of the device, and the software versions."""
    if device.type != "cuda":
        return f"CPU, {torch.get_num_threads()} threads, torch {torch.__version__}"
    properties = torch.cuda.get_device_properties(device)
    memory = properties.total_memory / 2**30
    return f"{properties.name}, {memory:.0f} GiB, torch {torch.__version__}, CUDA {torch.version.cuda}"
