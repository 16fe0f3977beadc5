"""``dst import hf`` of a model of the size that OPUS-MT publishes: seconds, and peak memory.

The model is a ``MarianMTModel`` with random weights in the shape of opus-mt-en-de: six layers a side of width 512, and
two SentencePiece models of 30,000 pieces each, trained on made-up words. Memory is what the command takes beyond a
Python process that has imported PyTorch.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil

from benchmarks.lib.bars import print_at_most
from benchmarks.lib.memory import tree_peak

SHAPE: dict[str, Any] = {
    "d_model": 512, "encoder_layers": 6, "decoder_layers": 6, "encoder_ffn_dim": 2048, "decoder_ffn_dim": 2048,
    "encoder_attention_heads": 8, "decoder_attention_heads": 8, "max_position_embeddings": 512,
}  # fmt: skip
SMOKE_OPTIONS = "--pieces 500"
WORDS = 12
SYLLABLES = [first + vowel + last for first in "bdfgklmnprstvz" for vowel in "aeiouäö" for last in ("", "n", "r", "s")]

#: Targets: seconds, and peak memory as a multiple of the weights.
SECONDS, TIMES_SIZE = 15.0, 2.0
MIB = 2**20


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--pieces", type=int, default=30_000, help="of each vocabulary; default: 30000")


def main(options: argparse.Namespace) -> None:
    sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
    from support.models.opus import opus_folder

    with tempfile.TemporaryDirectory() as place:
        folder = Path(place, "opus")
        texts = list(lines(1, options.pieces)), list(lines(2, options.pieces))
        opus_folder(folder, texts, pieces=options.pieces, **SHAPE)
        size = (folder / "model.safetensors").stat().st_size
        print(f"weights: {size / 4 / 1e6:.1f}M numbers, {size / MIB:.0f} MiB in fp32")
        _, idle = measure([sys.executable, "-c", "import torch, time; time.sleep(1)"])
        command = [sys.executable, "-m", "dstransformer", "import", "hf", str(folder), f"--out={place}/bundle"]
        seconds, peak = measure(command)
        print_at_most("seconds of dst import hf", seconds, SECONDS)
        print(f"resident at its peak: {peak / MIB:.0f} MiB, of which PyTorch {idle / MIB:.0f} MiB")
        print_at_most("memory, times the weights", (peak - idle) / size, TIMES_SIZE)


def lines(seed: int, pieces: int) -> Iterator[str]:
    """Text with enough different words for a vocabulary of so many pieces."""
    draw = random.Random(seed)
    for _ in range(2 * pieces // 3):
        yield " ".join("".join(draw.choices(SYLLABLES, k=draw.randint(1, 3))) for _ in range(WORDS))


def measure(command: Sequence[str]) -> tuple[float, int]:
    """Seconds, and resident bytes at the peak."""
    began = time.perf_counter()
    process = psutil.Popen(command)
    _, resident = tree_peak(process, interval=0.02)
    seconds = time.perf_counter() - began
    if process.returncode:
        raise SystemExit(f"exit status {process.returncode}: {' '.join(command)}")
    return seconds, resident
