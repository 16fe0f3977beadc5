"""Building a corpus: encoding compared with the raw SentencePiece encoder on the same cores, and memory of a build.

``python -m benchmarks.corpus --pairs 10000000`` measures the memory of a build of that size, in minutes.
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
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from itertools import chain, islice
from pathlib import Path

import psutil
import sentencepiece

from benchmarks.bars import print_at_least, print_at_most, print_share
from benchmarks.limits import disk_bandwidth, folder_bytes
from benchmarks.memory import tree_peak
from data_prep.options import EncodeOptions
from data_prep.pipeline import run_encode
from data_prep.sources.toy import generate_pairs
from data_prep.workspace import open_workspace
from dstransformer.corpus import Corpus
from dstransformer.progress import LineProgress

ROUNDS = 5
ENCODED_PAIRS = 100_000
BUILT_PAIRS = 500_000
SENTENCES = 20_000
CHUNK = 4_000

Pair = tuple[str, str]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.corpus", description=__doc__)
    parser.add_argument("--pairs", type=int, help="measure one complete build of this many pairs")
    parser.add_argument("--folder", type=Path, help="folder for temporary text and corpora")
    options = parser.parse_args([] if __name__ != "__main__" else None)
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        if options.pairs:
            peak = measure_build(folder, options.pairs)
            print_at_most(f"peak memory of {options.pairs:,} pairs", peak, 2.0, unit=" GB")
        else:
            compare_encoding(folder)
            measure_build(folder, BUILT_PAIRS)


def compare_encoding(folder: Path) -> None:
    """Alternate between the encoding stage of a build and the raw encoder on the same text."""
    cores = len(os.sched_getaffinity(0))
    files = write_text(folder, ENCODED_PAIRS)
    work = folder / "work"
    for command in (["read", *source_options(files)], ["clean"], ["vocab", "--vocab-size", "2000"]):
        run_prep([command[0], "--work", str(work), *command[1:]]).check_returncode()
    model = (work / "vocab" / "tokenizer.model").read_bytes()
    sentences = [line for file in files for line in file.read_text().splitlines()]
    systems: dict[str, Callable[[], int]] = {
        f"SentencePiece, {cores} threads": lambda: encode_raw(model, sentences, cores),
        f"SentencePiece, {cores} processes": lambda: encode_in_processes(model, sentences, cores),
        f"dst-prep encode, {cores} processes": lambda: encode_and_write(work, folder / "corpus", cores),
    }
    rates: dict[str, list[float]] = {name: [] for name in systems}
    costs: dict[str, list[float]] = {name: [] for name in systems}
    for turn in range(ROUNDS + 1):
        for name, encode in systems.items():
            began, busy = time.perf_counter(), processor_seconds()
            tokens = encode()
            if turn:  # the first turn includes imports
                rates[name].append(tokens / (time.perf_counter() - began))
                costs[name].append(1e6 * (processor_seconds() - busy) / tokens)
    for name in systems:
        rate, cost = statistics.median(rates[name]), statistics.median(costs[name])
        print(f"{name:32}: {rate:10,.0f} tokens/s, {cost:.3f} core seconds per million (medians of {ROUNDS})")
    threads, processes, ours = rates.values()
    ratios = [mine / max(raw) for mine, *raw in zip(ours, threads, processes, strict=True)]
    print_at_least("encoding and writing against the faster raw encoder", statistics.median(ratios), 0.85)


def processor_seconds() -> float:
    """CPU seconds used by this process and its finished child processes."""
    times = os.times()
    return sum(times[:4])


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
    with open_workspace(work, SilentProgress()) as space:
        manifest = run_encode(
            space, EncodeOptions(max_tokens=256, shard_rows=1_000_000), out, workers=workers, overwrite=False
        )
    shutil.rmtree(out)
    return sum(split.src_tokens + split.tgt_tokens for split in manifest.splits.values())


def measure_build(folder: Path, pairs: int) -> float:
    """Run a complete build from two text files; print the time per stage and return the peak memory in GB."""
    files = write_text(folder, pairs)
    out = folder / f"corpus-{pairs}"
    command = ["build", *source_options(files), "--vocab-size", "2000", "--out", str(out)]
    log = folder / "build.log"
    began = time.perf_counter()
    with log.open("w") as stderr:
        process = psutil.Popen([sys.executable, "-m", "data_prep", *command], stdout=subprocess.DEVNULL, stderr=stderr)
        pss, rss = tree_peak(process)
    seconds = time.perf_counter() - began
    if process.returncode:
        raise SystemExit(log.read_text())
    train = Corpus.open(out, verify=False).manifest.splits["train"]
    tokens = train.src_tokens + train.tgt_tokens
    print(f"{pairs:,} pairs, {tokens:,} tokens: {seconds:.1f} s, {tokens / seconds:,.0f} tokens/s from text to corpus")
    print_share("  corpus", folder_bytes(out) / seconds / 1e9, disk_bandwidth(folder) / 1e9, "writing to the disk")
    for stage, spent in re.findall(r"^(.+): done,.* ([\d.]+) s$", log.read_text(), re.MULTILINE):
        if float(spent) >= 0.01 * seconds:
            print(f"  {stage:32} {float(spent):6.1f} s {float(spent) / seconds:5.0%}")
    print(f"  peak over all processes {pss / 1e9:.2f} GB (shared pages once), {rss / 1e9:.2f} GB (in every process)")
    shutil.rmtree(out)
    return pss / 1e9


def write_text(folder: Path, pairs: int) -> tuple[Path, Path]:
    """Write two texts of ``pairs`` distinct lines, each with two sentences of the toy grammar."""
    src, tgt = folder / "text.en", folder / "text.de"
    with src.open("w") as src_file, tgt.open("w") as tgt_file:
        for (src_one, tgt_one), (src_two, tgt_two) in line_up(generate_pairs(SENTENCES, seed=1), pairs):
            src_file.write(f"{src_one} {src_two}\n")
            tgt_file.write(f"{tgt_one} {tgt_two}\n")
    return src, tgt


def line_up(sentences: list[Pair], pairs: int) -> Iterator[tuple[Pair, Pair]]:
    """Pair every sentence with the next one, then with the one after that, and so on."""
    count = len(sentences)
    everyone = chain.from_iterable(((i, (i + shift) % count) for i in range(count)) for shift in range(1, count))
    for first, second in islice(everyone, pairs):
        yield sentences[first], sentences[second]


def source_options(files: tuple[Path, Path]) -> list[str]:
    src, tgt = map(str, files)
    return [
        "--source",
        "files",
        "--src",
        src,
        "--tgt",
        tgt,
        "--src-lang",
        "en",
        "--tgt-lang",
        "de",
        "--valid-size",
        "500",
    ]


def run_prep(arguments: list[str]) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([sys.executable, "-m", "data_prep", *arguments], capture_output=True, check=False)


class SilentProgress(LineProgress):
    """Prints nothing."""

    def note(self, text: str) -> None:
        del text


if __name__ == "__main__":
    main()
