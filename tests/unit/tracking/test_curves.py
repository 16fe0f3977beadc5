from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from support.training.metrics import write_run

from dstransformer.errors import DataError
from dstransformer.tracking.curves import moving_average, read_curves, read_runs


def lines(path: Path, *records: dict[str, object] | str) -> Path:
    path.write_text("".join((r if isinstance(r, str) else json.dumps(r)) + "\n" for r in records))
    return path


def train(step: int, loss: float | None) -> dict[str, object]:
    return {"kind": "train", "step": step, "time": 1.0, "loss": loss}


def valid(step: int, bleu: float) -> dict[str, object]:
    return {"kind": "valid", "step": step, "time": 1.0, "bleu": bleu, "bleu_signature": "nrefs:1"}


def test_curves_hold_training_and_validation_metrics(tmp_path: Path) -> None:
    path = lines(
        tmp_path / "metrics.jsonl",
        train(10, 3.0),
        {"kind": "checkpoint", "step": 10, "time": 1.0, "path": "x", "score": None},
        train(20, None),
        valid(20, 5.0),
        {"kind": "final_test", "step": 20, "time": 1.0, "bleu": 9.0},
        train(30, 1.0),
    )
    curves = read_curves(path)
    assert set(curves) == {"train/loss", "valid/bleu"}
    assert curves["train/loss"].steps == [10, 20, 30]
    assert curves["train/loss"].values == [3.0, pytest.approx(math.nan, nan_ok=True), 1.0]
    assert curves["valid/bleu"] == ([20], [5.0])


def test_updates_repeated_after_a_resume_count_once(tmp_path: Path) -> None:
    path = lines(
        tmp_path / "metrics.jsonl",
        *(train(10, 4.0), train(20, 3.0), valid(20, 5.0), train(30, 2.0), train(40, 1.0), valid(40, 9.0)),
        *(train(30, 2.5), train(40, 1.5), valid(40, 8.0), train(50, 1.2)),
    )
    curves = read_curves(path)
    assert curves["train/loss"] == ([10, 20, 30, 40, 50], [4.0, 3.0, 2.5, 1.5, 1.2])
    assert curves["valid/bleu"] == ([20, 40], [5.0, 8.0])


def test_a_resume_drops_validations_that_were_not_repeated(tmp_path: Path) -> None:
    path = lines(tmp_path / "metrics.jsonl", train(10, 4.0), valid(15, 5.0), train(20, 3.0), train(10, 4.5))
    assert set(read_curves(path)) == {"train/loss"}
    assert read_curves(path)["train/loss"] == ([10], [4.5])


@pytest.mark.parametrize("damage", [
    '{"kind": "train", "st', "[]", "null", "\0\0", '{"step": 3}', '{"kind": "train", "step": "3"}',
    '{"kind": 3, "step": 3}', '{"kind": "train", "step": true}', '{"kind": "train", "step": -1}', "[" * 100_000,
])  # fmt: skip
def test_a_damaged_line_is_named(tmp_path: Path, damage: str) -> None:
    path = lines(tmp_path / "metrics.jsonl", train(10, 4.0), damage, train(20, 3.0))
    with pytest.raises(DataError, match=r"metrics\.jsonl, line 2 is damaged: .* delete the line") as raised:
        read_curves(path)
    assert len(str(raised.value)) < 250 + len(str(path))
    assert read_curves(path, skip_damaged=True)["train/loss"] == ([10, 20], [4.0, 3.0])


def test_an_incomplete_last_line_is_ignored(tmp_path: Path) -> None:
    path = lines(tmp_path / "metrics.jsonl", train(10, 4.0))
    with path.open("a") as file:
        file.write('{"kind": "train", "st')
    assert read_curves(path)["train/loss"] == ([10], [4.0])


def test_run_names_are_as_short_as_possible(tmp_path: Path) -> None:
    for name in ("a/base", "b/base", "big"):
        write_run(tmp_path / name)
    runs = read_runs([tmp_path / "a/base", tmp_path / "b/base", tmp_path / "big"])
    assert [run.name for run in runs] == ["a/base", "b/base", "big"]
    assert [run.name for run in read_runs([tmp_path / "b/base"])] == ["base"]


def test_folders_without_a_run_are_refused(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    (tmp_path / "link").symlink_to(run)
    (tmp_path / "folder").mkdir()
    new = tmp_path / "new"
    (new / "checkpoints").mkdir(parents=True)
    (new / "config.yaml").touch()
    begun = write_run(tmp_path / "begun", updates=0)
    for folders, message in {
        (run, tmp_path / "folder"): "is not the folder of a run: name a folder that `dst train` wrote",
        (tmp_path / "nowhere",): "nowhere does not exist: name",
        (run / "metrics.jsonl",): "metrics.jsonl is not the folder of a run",
        (run, new): "new has no metrics yet",
        (begun,): "begun has no metrics yet",
        (run, tmp_path / "link"): "is named twice",
    }.items():
        with pytest.raises(DataError, match=message):
            read_runs(folders)


def test_a_moving_average_keeps_gaps() -> None:
    nan = math.nan
    means = moving_average([1.0, 3.0, nan, 5.0, 1e308, 1e308], 2)
    assert means[:2] == [1.0, 2.0]
    assert math.isnan(means[2])
    assert means[3] == 5.0
    assert means[4:] == [pytest.approx(5e307), pytest.approx(1e308)]
    assert moving_average([1.0, 2.0, 6.0], 10**9) == [1.0, 1.5, pytest.approx(3.0)]
    assert moving_average([1.0, 2.0], 1) == [1.0, 2.0]


def test_text_in_the_place_of_a_number_is_named(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"kind": "train", "step": 10, "loss": "high"}\n')
    with pytest.raises(DataError, match=r"the train record of step 10 is damaged: loss is 'high', not a number"):
        read_curves(path)
    assert read_curves(path, skip_damaged=True) == {}
