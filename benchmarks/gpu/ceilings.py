"""What the device can do at best: matrix products, copies, launches and waits; with the versions of the software."""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import time
from pathlib import Path

import torch

from benchmarks.gpu.device import describe
from benchmarks.lib.limits import measure_copy, measure_product, synchronize
from dstransformer.training.devices import datasheet_peak

_PACKAGES = ("torch", "triton", "deepspeed", "numpy")
_LAUNCHES = 2000
_WAITS = 200


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--size", type=int, default=8192, help="side of the square matrices; default: 8192")
    parser.add_argument("--json", type=Path, help="file for the figures")


def main(options: argparse.Namespace) -> int:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    machine = describe(device)
    print(machine)
    print(", ".join(f"{name} {_version(name)}" for name in _PACKAGES))
    figures: dict[str, float] = {}
    for precision in ("bf16", "fp16", "fp32"):
        figures[f"product {precision}, TFLOP/s"] = measure_product(precision, options.size, device) / 1e12
    figures["copy, TB/s"] = measure_copy(2 * options.size**2, device) / 1e12
    figures["launch of an operator, µs"] = 1e6 * _launch_seconds(device)
    figures["wait for the device, µs"] = 1e6 * _wait_seconds(device)
    for name, figure in figures.items():
        print(f"{name}: {figure:,.2f}")
    peak = datasheet_peak(machine)
    if peak is not None:
        print(f"product bf16 by the data sheet, TFLOP/s: {peak / 1e12:,.0f}")
    if options.json is not None:
        options.json.write_text(json.dumps({"machine": machine, **figures}, indent=1), encoding="utf-8")
    return 0


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "missing"


def _launch_seconds(device: torch.device) -> float:
    """Seconds of the host for an operator on a small tensor."""
    x = torch.zeros(8, device=device)
    x.add_(1)
    synchronize(device)
    began = time.perf_counter()
    for _ in range(_LAUNCHES):
        x.add_(1)
    found = (time.perf_counter() - began) / _LAUNCHES
    synchronize(device)
    return found


def _wait_seconds(device: torch.device) -> float:
    """Seconds to start a small operator and to read its result."""
    x = torch.zeros((), device=device)
    began = time.perf_counter()
    for _ in range(_WAITS):
        x.add_(1).item()
    return (time.perf_counter() - began) / _WAITS
