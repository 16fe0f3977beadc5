"""``tracking.also``: the curves of TensorBoard and of Weights & Biases are those of the metrics."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest
from support.processes.launching import run_dst
from support.training.runs import plain_options, records


def read_tensorboard(run: Path) -> dict[str, dict[int, float]]:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = accumulator.EventAccumulator(str(run / "tensorboard"), size_guidance={"scalars": 0})
    events.Reload()
    return {name: {point.step: point.value for point in events.Scalars(name)} for name in events.Tags()["scalars"]}


def read_wandb(file: Path) -> list[dict[str, Any]]:
    """The points in the file of an offline run, a log of LevelDB behind a header of seven bytes."""
    from wandb.proto.wandb_internal_pb2 import Record

    content, place, data, points = file.read_bytes(), 7, b"", []
    assert content.startswith(b":W&B")
    while place + 7 <= len(content):
        if 32768 - place % 32768 < 7:  # no header fits at the end of a block
            place += 32768 - place % 32768
            continue
        size, kind = struct.unpack_from("<HB", content, place + 4)
        data += content[place + 7 : place + 7 + size]
        place += 7 + size
        if kind in (1, 4):  # whole, or the last part
            record = Record()
            record.ParseFromString(data)
            data = b""
            if record.WhichOneof("record_type") == "history":
                items = record.history.item
                points.append({item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items})
    return points


@pytest.mark.slow
def test_the_curves_are_those_of_the_metrics_also_after_resuming(toy_corpus: Path, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    pytest.importorskip("wandb")
    run = tmp_path / "run"
    options = [*plain_options(toy_corpus, run), "tracking.enabled=false", "tracking.also=[tensorboard, wandb]"]
    for updates in (6, 12):
        done = run_dst(*options, f"training.max_updates={updates}", extra={"WANDB_API_KEY": ""})
        assert done.returncode == 0, done.stderr
        assert "wandb" not in done.stderr.lower()
    train = records(run, "train")
    curves = read_tensorboard(run)
    assert curves["train/loss"] == {line["step"]: pytest.approx(line["loss"]) for line in train}
    assert curves["final_test/bleu"][12] == pytest.approx(records(run, "final_test")[-1]["bleu"])
    files = sorted((run / "wandb").glob("offline-run-*/*.wandb"))
    points = [point for file in files for point in read_wandb(file)]
    logged = {point["update"]: point["train/loss"] for point in points if "train/loss" in point}
    assert logged == {line["step"]: pytest.approx(line["loss"]) for line in train}
    assert len({file.stem.rpartition("-")[2] for file in files}) == 1
    assert len(files) == 2
