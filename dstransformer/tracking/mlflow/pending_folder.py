"""Reads the tracking records of a run that a version before 0.1.0 wrote, for :class:`Outbox` to take over.

It kept those to send in a folder, one file each, and those sent in one file, except metrics.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from dstransformer.tracking.metrics_log import EVENTS, read_records
from dstransformer.tracking.mlflow.records import METRICS_PER_BATCH, Record, parse_record, point_stride

PENDING_NAME = "tracking-pending"
SENT_NAME = "tracking-sent.jsonl"


def read_sent(run_folder: Path) -> list[Record]:
    """The sent records of a version before 0.1.0, without metrics, in order."""
    try:
        text = (run_folder / SENT_NAME).read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return []
    return [record for line in text.splitlines() if (record := parse_record(line)) is not None]


def read_pending(run_folder: Path) -> dict[Path, Record | str]:
    """The pending records of a version before 0.1.0 by file, in order; the text of one that is damaged."""
    found: dict[Path, Record | str] = {}
    for path in sorted((run_folder / PENDING_NAME).glob("*.json")):
        with suppress(FileNotFoundError):  # another process moved it
            text = path.read_text(encoding="utf-8", errors="replace")
            found[path] = parse_record(text) or " ".join(text.split())
    return found


def with_metrics(sent: Sequence[Record], metrics: Path, pending: Iterable[Record | str]) -> list[Record]:
    """Insert the metrics that were sent, which are in ``metrics.jsonl`` only, after the record that creates the run."""
    waiting = {
        (metric[0], metric[3])
        for record in pending
        if not isinstance(record, str) and record["op"] == "metrics"
        for metric in record["metrics"]
    }
    logged = [metric for metric in logged_metrics(metrics) if (metric[0], metric[3]) not in waiting]
    parts = [logged[at : at + METRICS_PER_BATCH] for at in range(0, len(logged), METRICS_PER_BATCH)]
    return [sent[0], *({"op": "metrics", "metrics": part} for part in parts), *sent[1:]]


def logged_metrics(path: Path) -> list[tuple[str, float, int, int]]:
    """Read the metrics of a run; none if there is no file.

    The scores of the final bundle are left out, because MLflow has them as metrics of its model. A curve of too many
    points is thinned.

    Returns:
        Name (``train/loss``), value, time (Unix milliseconds) and step of every finite value.
    """
    if not path.exists():
        return []
    found = []
    for record in read_records(path, skip_damaged=True):
        kind, step, when = record["kind"], record["step"], record.get("time")
        if kind in EVENTS or kind.startswith("final_") or not isinstance(when, int | float):
            continue
        found += [
            (f"{kind}/{name}", float(value), int(when * 1000), step)
            for name, value in record.items()
            if name not in ("step", "time") and isinstance(value, int | float)
        ]
    counts = Counter(name for name, *_ in found)
    numbers: Counter[str] = Counter()
    kept = []
    for metric in found:
        numbers[metric[0]] += 1
        if numbers[metric[0]] % point_stride(counts[metric[0]]) == 0:
            kept.append(metric)
    return kept
