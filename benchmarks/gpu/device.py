"""The device that is measured."""

from __future__ import annotations

import torch


def describe(device: torch.device) -> str:
    """Name and memory of the device, and the software versions."""
    if device.type != "cuda":
        return f"CPU, {torch.get_num_threads()} threads, torch {torch.__version__}"
    properties = torch.cuda.get_device_properties(device)
    memory = properties.total_memory / 2**30
    return f"{properties.name}, {memory:.0f} GiB, torch {torch.__version__}, CUDA {torch.version.cuda}"
