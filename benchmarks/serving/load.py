"""A load test of ``dst serve``: many clients at once, and one sentence at a time, beside ``dst translate``.

Each client keeps a connection and sends one sentence after the other. Every answer is compared with what
``dst translate`` prints for the sentence. ``dst translate`` runs before and after, with the same threads; the time of a
run on a single line is taken off, so that neither side counts start-up.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.lib.bars import print_at_least, print_at_most
from benchmarks.lib.machine import watch_others
from benchmarks.lib.processes import environment, free_port, run_command, wait_for_server
from dstransformer.io.text import iter_lines

SMOKE_OPTIONS = "--clients 2 --seconds 1 --single 2"
DST = [sys.executable, "-m", "dstransformer"]

#: Seconds for the server to start.
TIMEOUT = 120.0

#: Least speed over that of ``dst translate``, and greatest median latency in milliseconds.
SPEED_BAR = 0.8
LATENCY_BAR = 150.0


@dataclass
class Answers:
    """What the clients received."""

    seconds: list[float] = field(default_factory=list)
    statuses: Counter[str] = field(default_factory=Counter)
    in_time: int = 0  # answers before the end of the test; those that come later are waited for
    different: int = 0


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--bundle", required=True, help="a trained model")
    parser.add_argument("--text", required=True, help="sentences, plain or gzipped")
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--single", type=int, default=200, help="sentences that are sent one at a time")
    parser.add_argument("extra", nargs="*", help="after --: options of both commands, such as --precision bf16")


def main(options: argparse.Namespace) -> None:
    sentences = [line for line in iter_lines(options.text) if line.strip()]
    with watch_others() as others, tempfile.TemporaryDirectory() as name:
        before, expected = translate(options.bundle, sentences, options.extra, Path(name))
        with serving(options.bundle, options.extra) as port:
            single = asyncio.run(load(port, sentences, expected, 1, count=options.single))
            many = asyncio.run(load(port, sentences, expected, options.clients, seconds=options.seconds))
        after, _ = translate(options.bundle, sentences, options.extra, Path(name))
    report("one client", single)
    report(f"{options.clients} clients", many)
    speed = many.in_time / options.seconds
    print(f"dst serve: {speed:.1f} sentences/s; dst translate: {before:.1f} sentences/s before, {after:.1f} after")
    print_at_most("one sentence at a time, p50", 1000 * quantile(single.seconds, 0.5), LATENCY_BAR, ".0f", " ms")
    print_at_least("dst serve over dst translate", speed / ((before + after) / 2), SPEED_BAR)
    print(f"other processes took {others.share:.0%} of the machine")


def translate(bundle: str, sentences: Sequence[str], options: Sequence[str], folder: Path) -> tuple[float, list[str]]:
    """Sentences a second of ``dst translate`` without its start, and the translations."""
    times, lines = [], []
    for part in (sentences[:1], sentences):
        text = folder / "text"
        text.write_text("".join(f"{sentence}\n" for sentence in part), encoding="utf-8")
        began = time.perf_counter()
        done = run_command([*DST, "translate", bundle, str(text), *options], environment())
        times.append(time.perf_counter() - began)
        lines = done.stdout.split("\n")[:-1]
    return (len(sentences) - 1) / (times[1] - times[0]), lines


@contextmanager
def serving(bundle: str, options: Sequence[str]) -> Iterator[int]:
    """Start ``dst serve``; yields its port."""
    port = free_port()
    with subprocess.Popen([*DST, "serve", bundle, "--port", str(port), *options], env=environment()) as process:
        try:
            wait_for_server(f"http://127.0.0.1:{port}/healthz", process, TIMEOUT)
            yield port
        finally:
            process.terminate()


async def load(
    port: int, sentences: Sequence[str], expected: Sequence[str], clients: int, *, seconds: float = 0.0, count: int = 0
) -> Answers:
    """Send sentences from several clients, for some seconds or ``count`` from each; open requests are finished."""
    answers = Answers()
    deadline = time.perf_counter() + seconds if seconds else float("inf")

    async def client(seed: int) -> None:
        draw = random.Random(seed)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        sent = 0
        while time.perf_counter() < deadline and (not count or sent < count):
            number = draw.randrange(len(sentences))
            began = time.perf_counter()
            status, answer = await _ask(reader, writer, sentences[number])
            answers.statuses[status] += 1
            sent += 1
            if status == "200":
                answers.seconds.append(time.perf_counter() - began)
                answers.in_time += time.perf_counter() < deadline
                answers.different += json.loads(answer)["translations"][0]["text"] != expected[number]
        writer.close()

    await asyncio.gather(*map(client, range(clients)))
    return answers


async def _ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, sentence: str) -> tuple[str, bytes]:
    body = json.dumps({"text": sentence}).encode()
    head = "POST /translate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    answered = (await reader.readuntil(b"\r\n\r\n")).decode().lower().split("\r\n")
    length = next(int(line.partition(":")[2]) for line in answered if line.startswith("content-length:"))
    return answered[0].split()[1], await reader.readexactly(length)


def report(name: str, answers: Answers) -> None:
    """Print statuses and latencies."""
    statuses = ", ".join(f"{count} x {status}" for status, count in sorted(answers.statuses.items()))
    shares = (0.5, 0.9, 0.99)
    times = ", ".join(f"p{100 * share:g} {1000 * quantile(answers.seconds, share):.0f} ms" for share in shares)
    print(f"{name}: {statuses}; {times}; {answers.different} differ from dst translate")


def quantile(seconds: Sequence[float], share: float) -> float:
    """The value below which this share of the values lies."""
    return sorted(seconds)[min(int(share * len(seconds)), len(seconds) - 1)]
