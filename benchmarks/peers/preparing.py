"""From text to what training reads: dst-prep, Sockeye and eole.

All encode with the same SentencePiece model. ``dst-prep build`` also cleans, drops repeated pairs and hashes. Sockeye's
``prepare_data`` takes pieces, so what encodes them, SentencePiece on all cores, is timed with it. eole has no such
step: the workers of its training encode the text anew in every epoch; one pass over its batches is timed, without a
model. The vocabulary is there before the clock starts.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import sentencepiece

from benchmarks.data.corpus import source_options
from benchmarks.data.text import write_text
from benchmarks.lib.bars import print_at_least
from benchmarks.lib.machine import count_cores
from benchmarks.lib.multi30k import add_data_option
from benchmarks.lib.processes import run_command, run_prep
from benchmarks.lib.turns import take_turns
from benchmarks.peers.environments import python_of
from benchmarks.peers.recipe import add_cache_option
from benchmarks.peers.systems import DRIVERS
from dstransformer.data import Corpus

MAX_TOKENS = 256
HELD_OUT = 500
CHUNK = 20_000


@dataclass(frozen=True)
class Text:
    """A parallel text, its vocabulary, and what runs: ``cores`` processes or threads."""

    folder: Path
    src: Path
    tgt: Path
    model: Path
    pairs: int
    cores: int
    cache: Path


def add_options(parser: argparse.ArgumentParser) -> None:
    add_data_option(parser, "train", required=True)
    parser.add_argument("--pairs", type=int, default=300_000)
    parser.add_argument("--vocab-size", type=int, default=8000)
    parser.add_argument("--rounds", type=int, default=3)
    add_cache_option(parser)


def main(options: argparse.Namespace) -> None:
    for peer in ("sockeye", "eole"):
        python_of(peer, options.cache)
    systems: dict[str, Callable[[Text, Path], tuple[float, int]]] = {
        "dst-prep": prepare_ours,
        "SentencePiece and Sockeye": prepare_sockeye,
        "eole, every epoch": prepare_eole,
    }
    with tempfile.TemporaryDirectory(prefix="dst-bench-") as name:
        text = make_text(Path(name), options)
        rates = take_turns(
            {system: partial(measure, system, prepare, text) for system, prepare in systems.items()}, options.rounds
        )
    ours, *others = (statistics.median(of) for of in rates.values())
    for system, rate in zip(systems, (ours, *others), strict=True):
        print(f"{system:26}: {rate:10,.0f} tokens/s (median of {options.rounds})")
    print_at_least("dst-prep over the faster peer", ours / max(others), 1.0)


def measure(system: str, prepare: Callable[[Text, Path], tuple[float, int]], text: Text) -> float:
    """Tokens a second."""
    work = text.folder / "work"
    work.mkdir()
    seconds, tokens = prepare(text, work)
    shutil.rmtree(work)
    print(f"{system:26}: {seconds:6.1f} s, {tokens:,} tokens", flush=True)
    return tokens / seconds


def make_text(folder: Path, options: argparse.Namespace) -> Text:
    """Write the text, and train the vocabulary on a part of it."""
    src, tgt = write_text(folder, options.pairs, options.data)
    for side in (src, tgt):
        with side.open() as whole, side.with_name(f"valid{side.suffix}").open("w") as valid:
            valid.writelines(line for line, _ in zip(whole, range(HELD_OUT), strict=False))
    small = folder / "small"
    run_prep("build", *source_options((src, tgt)), "--vocab-size", str(options.vocab_size), "--out", str(small))
    processor = sentencepiece.SentencePieceProcessor(model_file=str(small / "tokenizer.model"))
    pieces = [processor.id_to_piece(number) for number in range(processor.vocab_size())]
    (folder / "vocabulary.txt").write_text("".join(f"{piece}\n" for piece in pieces), encoding="utf-8")
    numbers = {piece: number for number, piece in enumerate(pieces)}
    (folder / "vocabulary.json").write_text(json.dumps(numbers), encoding="utf-8")
    model = small / "tokenizer.model"
    return Text(folder, src, tgt, model, options.pairs, count_cores(), options.cache)


def prepare_ours(text: Text, work: Path) -> tuple[float, int]:
    out = work / "corpus"
    command = [sys.executable, "-m", "data_prep", "build", "--source", "files", "--src-lang", "en", "--tgt-lang", "de"]
    command += ["--src", str(text.src), "--tgt", str(text.tgt), "--tokenizer-model", str(text.model)]
    command += ["--valid-src", str(text.folder / "valid.en"), "--valid-tgt", str(text.folder / "valid.de")]
    command += ["--max-tokens", str(MAX_TOKENS), "--workers", str(text.cores), "--out", str(out)]
    seconds = run(command)
    train = Corpus.open(out, verify=False).manifest.splits["train"]
    return seconds, train.src_tokens + train.tgt_tokens + 2 * train.pairs


def prepare_sockeye(text: Text, work: Path) -> tuple[float, int]:
    began, tokens = time.perf_counter(), 0
    processor = sentencepiece.SentencePieceProcessor(model_file=str(text.model))
    for side in (text.src, text.tgt):
        with side.open() as lines, (work / side.name).open("w") as out:
            chunk: list[str] = []
            for line in lines:
                chunk.append(line.rstrip("\n"))
                if len(chunk) == CHUNK:
                    tokens += _write_pieces(processor, chunk, text.cores, out)
            tokens += _write_pieces(processor, chunk, text.cores, out)
    encoding = time.perf_counter() - began
    vocabulary = str(text.folder / "vocabulary.json")
    command = [str(python_of("sockeye", text.cache)), "-m", "sockeye.prepare_data", "--shared-vocab", "--quiet"]
    command += ["--source", str(work / text.src.name), "--target", str(work / text.tgt.name)]
    command += ["--source-vocab", vocabulary, "--target-vocab", vocabulary, "--max-seq-len", str(MAX_TOKENS)]
    command += ["--max-processes", str(text.cores), "--output", str(work / "prepared")]
    return encoding + run(command), tokens + 2 * text.pairs


def _write_pieces(processor: sentencepiece.SentencePieceProcessor, chunk: list[str], threads: int, out: object) -> int:
    rows = processor.encode(chunk, out_type=str, num_threads=threads)
    out.writelines(f"{' '.join(row)}\n" for row in rows)  # type: ignore[attr-defined]
    chunk.clear()
    return sum(map(len, rows))


def prepare_eole(text: Text, work: Path) -> tuple[float, int]:
    request = {
        "src": str(text.src),
        "tgt": str(text.tgt),
        "model": str(text.model),
        "vocabulary": str(text.folder / "vocabulary.txt"),
        "work": str(work),
        "pairs": text.pairs,
        "max_tokens": MAX_TOKENS,
        "workers": text.cores,
    }
    done = run_command([str(python_of("eole", text.cache)), str(DRIVERS / "prepare_eole.py"), json.dumps(request)])
    measured = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{")))
    return float(measured["seconds"]), int(measured["tokens"])


def run(command: list[str]) -> float:
    """Run a command with one thread; return its seconds."""
    began = time.perf_counter()
    run_command(command, os.environ | {"OMP_NUM_THREADS": "1"})
    return time.perf_counter() - began
