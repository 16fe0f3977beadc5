"""Building a corpus: encoding compared with the raw SentencePiece encoder on the same cores, and memory of a build.

``--pairs 10000000 --data MULTI30K`` measures the memory of a build of that size from variations of a real text, in
minutes; ``--near 0.8`` drops near duplicates too.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

import psutil
import sentencepiece

from benchmarks.data.text import write_text
from benchmarks.lib.bars import print_at_least, print_at_most, print_share
from benchmarks.lib.limits import disk_bandwidth, folder_bytes
from benchmarks.lib.machine import child_seconds, count_cores
from benchmarks.lib.memory import tree_peak
from benchmarks.lib.multi30k import add_data_option
from benchmarks.lib.processes import run_prep
from benchmarks.lib.turns import take_turns
from data_prep.build import STAGES, run_encode
from data_prep.recipe.options import EncodeOptions
from data_prep.store.workspace import open_workspace
from dstransformer.data import Corpus
from dstransformer.io.progress import Progress

SMOKE_OPTIONS = "--pairs 3000 --vocab-size 400"
ROUNDS = 5
ENCODED_PAIRS = 100_000
BUILT_PAIRS = 500_000
CHUNK = 4_000


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--pairs", type=int, help="measure one complete build of this many pairs")
    add_data_option(parser, "train", required=False)
    parser.add_argument("--near", type=float, help="drop near duplicates too, from this Jaccard index on")
    parser.add_argument("--vocab-size", type=int, default=2000)
    parser.add_argument("--folder", type=Path, help="folder for temporary text and corpora")


def main(options: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        if options.pairs:
            near = ["--near-duplicates", str(options.near)] if options.near else []
            peak = measure_build(folder, options.pairs, options.data, options.vocab_size, near)
            print_at_most(f"peak memory of {options.pairs:,} pairs", peak, 4.0 if near else 2.0, unit=" GB")
        else:
            compare_encoding(folder, options.data, options.vocab_size)
            measure_build(folder, BUILT_PAIRS, options.data, options.vocab_size)


def compare_encoding(folder: Path, data: Path | None, vocab_size: int) -> None:
    """Alternate between the encoding stage of a build and the raw encoder on the same text."""
    cores = count_cores()
    files = write_text(folder, ENCODED_PAIRS, data)
    work = folder / "work"
    for stage in (["read", *source_options(files)], ["clean"], ["vocab", "--vocab-size", str(vocab_size)]):
        run_prep(*stage, "--work", str(work))
    model = (work / "vocab" / "tokenizer.model").read_bytes()
    sentences = [line for file in files for line in file.read_text().splitlines()]
    systems: dict[str, Callable[[], int]] = {
        f"SentencePiece, {cores} threads": lambda: encode_raw(model, sentences, cores),
        f"SentencePiece, {cores} processes": lambda: encode_in_processes(model, sentences, cores),
        f"dst-prep encode, {cores} processes": lambda: encode_and_write(work, folder / "corpus", cores),
    }
    found = take_turns({name: partial(time_encoding, encode) for name, encode in systems.items()}, ROUNDS, warm_up=1)
    rates = {name: [rate for rate, _ in results] for name, results in found.items()}
    costs = {name: statistics.median(cost for _, cost in results) for name, results in found.items()}
    for name, cost in costs.items():
        rate = statistics.median(rates[name])
        print(f"{name:32}: {rate:10,.0f} tokens/s, {cost:.3f} core seconds per million (medians of {ROUNDS})")
    threads, processes, ours = rates.values()
    ratios = [mine / max(raw) for mine, *raw in zip(ours, threads, processes, strict=True)]
    print_at_least("encoding and writing against the faster raw encoder", statistics.median(ratios), 0.85)
    *raw_costs, own_cost = costs.values()
    print(f"in CPU time: {min(raw_costs) / own_cost:.2f} of the cheaper raw encoder")


def time_encoding(encode: Callable[[], int]) -> tuple[float, float]:
    """Tokens per second, and CPU seconds of all processes per million tokens."""
    began, busy = time.perf_counter(), sum(os.times()[:4])
    tokens = encode()
    return tokens / (time.perf_counter() - began), 1e6 * (sum(os.times()[:4]) - busy) / tokens


def encode_raw(model: bytes, sentences: list[str], threads: int) -> int:
    """Encode in threads of one process; return the number of tokens."""
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    parts = cut(sentences, threads * CHUNK)
    return sum(sum(map(len, processor.encode(part, num_threads=threads))) for part in parts)


def encode_in_processes(model: bytes, sentences: list[str], processes: int) -> int:
    """Encode a share in each process, without sending the IDs back; return the number of tokens."""
    share = -(-len(sentences) // processes)
    with ProcessPoolExecutor(processes) as pool:
        shares = [pool.submit(encode_raw, model, part, 1) for part in cut(sentences, share)]
        return sum(part.result() for part in shares)


def cut(sentences: list[str], size: int) -> Iterator[list[str]]:
    return (sentences[begin : begin + size] for begin in range(0, len(sentences), size))


def encode_and_write(work: Path, out: Path, workers: int) -> int:
    """Run the encoding stage, until the corpus is on disk; return the number of tokens."""
    with open_workspace(work, SilentProgress(), STAGES) as space:
        manifest = run_encode(
            space, EncodeOptions(max_tokens=256, shard_rows=1_000_000), out, workers=workers, overwrite=False
        )
    shutil.rmtree(out)
    return sum(split.src_tokens + split.tgt_tokens for split in manifest.splits.values())


def measure_build(folder: Path, pairs: int, data: Path | None, vocab_size: int, more: Sequence[str] = ()) -> float:
    """Run a complete build from two text files; print the time per stage and return the peak memory in GB."""
    files = write_text(folder, pairs, data)
    out = folder / f"corpus-{pairs}"
    command = ["build", *source_options(files), "--vocab-size", str(vocab_size), *more, "--out", str(out)]
    log = folder / "build.log"
    began, busy = time.perf_counter(), child_seconds()
    with log.open("w") as stderr:
        process = psutil.Popen([sys.executable, "-m", "data_prep", *command], stdout=subprocess.DEVNULL, stderr=stderr)
        pss, rss = tree_peak(process)
    seconds = time.perf_counter() - began
    busy = child_seconds() - busy
    if process.returncode:
        raise SystemExit(log.read_text())
    train = Corpus.open(out, verify=False).manifest.splits["train"]
    tokens = train.src_tokens + train.tgt_tokens
    print(f"{pairs:,} pairs, {tokens:,} tokens: {seconds:.1f} s, {tokens / seconds:,.0f} tokens/s from text to corpus")
    print(f"  CPU time {busy:.1f} s, {1e6 * busy / pairs:.1f} µs a pair")
    print_share("  corpus", folder_bytes(out) / seconds / 1e9, disk_bandwidth(folder) / 1e9, "writing to the disk")
    for stage, spent in re.findall(r"^(.+): done,.* ([\d.]+) s$", log.read_text(), re.MULTILINE):
        if float(spent) >= 0.01 * seconds:
            print(f"  {stage:32} {float(spent):6.1f} s {float(spent) / seconds:5.0%}")
    print(f"  peak over all processes {pss / 1e9:.2f} GB (shared pages once), {rss / 1e9:.2f} GB (in every process)")
    shutil.rmtree(out)
    return pss / 1e9


def source_options(files: tuple[Path, Path]) -> list[str]:
    """The options of ``dst-prep`` that read these files."""
    src, tgt = files
    return ["--source=files", f"--src={src}", f"--tgt={tgt}", "--src-lang=en", "--tgt-lang=de", "--valid-size=500"]


class SilentProgress(Progress):
    """Prints nothing."""

    def note(self, text: str) -> None:
        del text
