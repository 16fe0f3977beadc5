"""What every system trains: the models, the recipe, and the environment of its processes."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from pathlib import Path

from benchmarks.lib.machine import count_cores
from benchmarks.lib.processes import allocator_settings
from benchmarks.lib.workload import SIZES, load_sized
from benchmarks.peers.drivers.harness import Request
from benchmarks.peers.text import Text

MODELS = SIZES
PRECISIONS = ("fp32", "bf16")
UPDATE_TOKENS = 4096
DROPOUT = 0.1
LABEL_SMOOTHING = 0.1

#: The learning rate of each model at its highest, and the updates until then. The paper's warm-up of 4,000 updates
#: would outlast a run of a quarter of an hour, which is about 500 updates of the slowest system.
PEAK_RATES = {"tiny": 1.5e-3, "base": 7e-4}
WARMUP = 200

#: How memory is returned to the kernel: as glibc does by default, or with launch/env.sh.
ALLOCATORS = ("plain", "env.sh")


def build_request(model: str, precision: str, text: Text, work: str, seconds: float) -> Request:
    """The recipe of every training here."""
    sizes = load_sized(model, "fp32").model
    return Request(
        text=str(text.pieces),
        work=work,
        layers=sizes.num_layers,
        d_model=sizes.d_model,
        d_ff=sizes.d_ff,
        heads=sizes.num_heads,
        precision=precision,
        tokens=UPDATE_TOKENS,
        dropout=DROPOUT,
        label_smoothing=LABEL_SMOOTHING,
        peak_rate=PEAK_RATES[model],
        warmup=WARMUP,
        seconds=seconds,
    )


def build_environment(allocator: str) -> Mapping[str, str]:
    """The variables of a process that may use all cores, with an allocator of ``ALLOCATORS``."""
    chosen = allocator_settings()
    inherited = {name: value for name, value in os.environ.items() if name not in chosen}
    common = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": str(count_cores())}
    return inherited | common | (chosen if allocator == "env.sh" else {})


def add_cache_option(parser: argparse.ArgumentParser) -> None:
    """Add ``--cache``."""
    parser.add_argument(
        "--cache",
        type=lambda path: Path(path).absolute(),
        default=Path(".bench").absolute(),
        help="folder for the environments of the other systems, created at first use, and for trained models",
    )
