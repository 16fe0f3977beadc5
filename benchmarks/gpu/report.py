"""Formats the measurements of the cases as lines and tables."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.gpu.cases import Case
from benchmarks.gpu.profiling import Profile, Row, format_profile
from benchmarks.lib.tables import format_table

Result = Mapping[str, Any]

_TRAINING_COLUMNS = (
    "model | precision | attention | loop | target tokens/s: | from – to: | ms per update: | host ms: | "
    "MFU, data sheet: | MFU, measured: | peak memory, GiB: | warm-up, s: | graphs: | loss:"
)
_DECODING_COLUMNS = (
    "model | precision | target tokens/s: | from – to: | sentences/s: | target : source: | peak memory, GiB:"
)


def describe_profile(case: Case, result: Result) -> str:
    """The top rows of the profile of a case."""
    plain = result["profile"]
    found = Profile(**plain | {"rows": [Row(**row) for row in plain["rows"]]})
    seconds = statistics.median(result["seconds"]) if case.act == "train" else result["profiled_seconds"]
    work = "an update" if case.act == "train" else "a batch"
    return f"Profile of {case.name}, {work}: {format_profile(found, seconds)}"


def format_limits(done: Sequence[tuple[Case, Result]]) -> str:
    """The measured limits of the device: medians over the cases."""
    lines = []
    for precision in sorted({case.precision for case, _ in done}):
        limits = [result["limits"] for case, result in done if case.precision == precision]
        flops, bandwidth = (statistics.median(limit[name] for limit in limits) for name in ("flops", "bandwidth"))
        lines.append(
            f"measured peaks, {precision}: matrix product {flops / 1e12:,.1f} TFLOP/s, copy {bandwidth / 1e12:.2f} TB/s"
        )
    return "\n".join(lines)


def format_row(case: Case, result: Result, peak: float | None) -> str:
    """The row of a case in its table; ``peak`` is the data sheet's peak of the device in FLOP/s."""
    return _training_row(case, result, peak) if case.act == "train" else _decoding_row(case, result)


def format_tables(done: Sequence[tuple[Case, Result]], peak: float | None) -> str:
    """Tables of training and decoding, in Markdown."""
    tables = []
    for act, columns in (("train", _TRAINING_COLUMNS), ("decode", _DECODING_COLUMNS)):
        if rows := [format_row(case, result, peak) for case, result in done if case.act == act]:
            tables.append(format_table(columns, rows))
    return "\n\n".join(tables)


def _training_row(case: Case, result: Result, peak: float | None) -> str:
    seconds = statistics.median(result["seconds"])
    sheet = None if case.precision == "fp32" else peak  # which applies to bf16 and fp16
    flops = result["flops"] / seconds
    parts = f"{case.micro_batches} part{'s' if case.micro_batches > 1 else ''}"
    of_sheet = "–" if sheet is None else f"{flops / sheet:.1%}"
    return (
        f"{case.model} | {case.precision} | {case.backend}, {parts} | {case.loop} | "
        f"{result['tgt_tokens'] / seconds:,.0f} | {_span(result)} | {1000 * seconds:.1f} | "
        f"{1000 * statistics.median(result['host_seconds']):.1f} | {of_sheet} | "
        f"{flops / result['limits']['flops']:.1%} | {result['peak_bytes'] / 2**30:.1f} | "
        f"{result['warm_up_seconds']:.1f} | {result['graphs']} | "
        f"{result['first_loss']:.2f} to {result['last_loss']:.2f}"
    )


def _decoding_row(case: Case, result: Result) -> str:
    seconds = statistics.median(result["seconds"])
    return (
        f"{case.model} | {case.precision} | {result['tgt_tokens'] / seconds:,.0f} | {_span(result)} | "
        f"{result['sentences'] / seconds:,.0f} | {result['tgt_tokens'] / result['src_tokens']:.2f} | "
        f"{result['peak_bytes'] / 2**30:.1f}"
    )


def _span(result: Result) -> str:
    """Target tokens per second of the slowest and the fastest round."""
    slowest, fastest = (result["tgt_tokens"] / pick(result["seconds"]) for pick in (max, min))
    return f"{slowest:,.0f} – {fastest:,.0f}"
