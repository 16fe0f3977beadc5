"""The picture of runs: the contents of its panels."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from support.training.metrics import write_run

from dstransformer.errors import DataError
from dstransformer.extras.plots.curves import draw_runs, moving_average, read_curves, read_runs
from dstransformer.io.products import write_marker

PANELS = ["loss", "perplexity", "validation BLEU", "learning rate", "gradient norm", "tokens per second"]


def panels(figure: Figure) -> dict[str, Axes]:
    assert [axes.get_title(loc="left")[: len(name)] for axes, name in zip(figure.axes, PANELS, strict=True)] == PANELS
    return dict(zip(PANELS, figure.axes, strict=True))


def points(line: Line2D) -> list[tuple[float, float]]:
    return list(zip(line.get_xdata(), line.get_ydata(), strict=True))


def legend(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.legends[0].get_texts()]


def test_one_run_has_its_curves_in_six_panels(tmp_path: Path) -> None:
    figure = draw_runs(read_runs([write_run(tmp_path / "base")]))
    shown = panels(figure)
    assert {name: len(axes.lines) for name, axes in shown.items()} == dict(zip(PANELS, (2, 1, 1, 1, 1, 1), strict=True))
    train, valid = shown["loss"].lines
    assert points(train) == [(step, pytest.approx(5 / step)) for step in range(10, 101, 10)]
    assert points(valid) == [(step, pytest.approx(5 / step + 1)) for step in range(20, 101, 20)]
    assert points(shown["validation BLEU"].lines[0]) == [(step, step) for step in range(20, 101, 20)]
    assert train.get_color() != valid.get_color()
    assert figure.get_suptitle() == "base"
    assert legend(figure) == ["training", "validation"]


def test_several_runs_differ_in_colour_and_name(tmp_path: Path) -> None:
    folders = [write_run(tmp_path / name, loss=loss) for name, loss in (("a/x", 5.0), ("b/x", 6.0), ("_$y$", 7.0))]
    figure = draw_runs(read_runs(folders))
    shown = panels(figure)
    losses = shown["loss"].lines
    assert [points(line)[0] for line in losses[0::2]] == [(10, 0.5), (10, 0.6), (10, 0.7)]
    colours = [line.get_color() for line in losses]
    assert colours[0::2] == colours[1::2]  # training and validation of a run
    assert len(set(colours)) == 3
    assert [line.get_color() for line in shown["learning rate"].lines] == colours[0::2]
    assert legend(figure) == ["a/x", "b/x", r" _\$y\$", "training", "validation"]
    assert figure.get_suptitle() == ""


def test_smoothing_keeps_the_records_and_the_learning_rate(tmp_path: Path) -> None:
    figure = draw_runs(read_runs([write_run(tmp_path / "base", updates=30)]), smooth=2)
    records, means, _ = panels(figure)["loss"].lines
    assert points(records) == [(10, 0.5), (20, 0.25), (30, pytest.approx(5 / 30))]
    assert points(means) == [(10, 0.5), (20, 0.375), (30, pytest.approx((0.25 + 5 / 30) / 2))]
    assert len(panels(figure)["learning rate"].lines) == 1
    assert legend(figure)[0] == "training, mean of 2 records"


def test_the_bleu_panel_names_the_number_of_sentences(tmp_path: Path) -> None:
    first = write_run(tmp_path / "first", bleu="bleu_first_500")
    everything = write_run(tmp_path / "all")
    titles = [
        panels(draw_runs(read_runs(folders)))["validation BLEU"].get_title(loc="left")
        for folders in ([first], [everything], [first, everything])
    ]
    assert titles == [
        "validation BLEU, first 500 sentences", "validation BLEU", "validation BLEU, all or first 500 sentences"
    ]  # fmt: skip


def test_values_too_large_for_an_axis_are_gaps(tmp_path: Path) -> None:
    figure = draw_runs(read_runs([write_run(tmp_path / "diverged", loss=9000.0)]))  # perplexity 2^900
    shown = panels(figure)["perplexity"].lines[0].get_ydata()
    assert [math.isnan(value) for value in shown] == [True, True] + 8 * [False]
    figure.draw_without_rendering()


def test_a_last_line_that_was_cut_off_is_ignored(tmp_path: Path) -> None:
    path = lines(tmp_path / "metrics.jsonl", train(10, 4.0))
    with path.open("a") as file:
        file.write('{"kind": "train", "st')
    assert read_curves(path)["train/loss"] == ([10], [4.0])


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
    with pytest.raises(DataError, match=r"metrics\.jsonl, line 2") as raised:
        read_curves(path)
    assert len(str(raised.value)) < 250 + len(str(path))


def test_a_run_without_metrics_is_refused(tmp_path: Path) -> None:
    new, begun = tmp_path / "new", write_run(tmp_path / "begun", updates=0)
    new.mkdir()
    write_marker(new, "run")
    for folder in (new, begun):
        with pytest.raises(DataError, match=str(folder)):
            read_runs([folder])


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
    with pytest.raises(DataError, match=r"step 10 .*loss is 'high'"):
        read_curves(path)
