"""The device, and the data sheet that predictions use for it."""

from __future__ import annotations

import torch

from benchmarks.gpu.sheets import SHEETS, Sheet
from dstransformer.training.devices import datasheet_peak


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
