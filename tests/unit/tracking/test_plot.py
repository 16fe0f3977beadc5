"""The picture of runs: the contents of its panels."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from support.services.mlflow_server import evaluation_of
from support.training.metrics import write_run

from dstransformer.tracking import MetricsLog
from dstransformer.tracking.curves import read_runs
from dstransformer.tracking.plot import draw_runs, draw_training

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


def test_many_runs_have_different_colours(tmp_path: Path) -> None:
    figure = draw_runs(read_runs([write_run(tmp_path / str(number), updates=20) for number in range(25)]))
    assert len({line.get_color() for line in figure.axes[3].lines}) == 25


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


def test_a_wide_range_has_a_logarithmic_axis(tmp_path: Path) -> None:
    for loss, scale in ((5.0, "linear"), (90.0, "log"), (2500.0, "log")):
        figure = draw_runs(read_runs([write_run(tmp_path / str(loss), loss=loss)]))
        assert panels(figure)["perplexity"].get_yscale() == scale
        figure.draw_without_rendering()


def test_values_too_large_for_an_axis_are_gaps(tmp_path: Path) -> None:
    figure = draw_runs(read_runs([write_run(tmp_path / "diverged", loss=9000.0)]))  # perplexity 2^900
    shown = panels(figure)["perplexity"].lines[0].get_ydata()
    assert [math.isnan(value) for value in shown] == [True, True] + 8 * [False]
    figure.draw_without_rendering()


def test_incomplete_metrics_are_drawn(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.touch()
    assert draw_training(path, "nothing").startswith(b"\x89PNG")
    log = MetricsLog(path)
    log.log_train(10, {"loss": float("nan"), "lr": 0.1, "tokens_per_second": 3})
    log.log_eval("valid", 10, evaluation_of(loss=1.5, bleu_first_500=20.0, signature="s"))
    with path.open("a") as file:
        file.write('[]\n{"kind": "train", "st')
    assert draw_training(path, "a run").startswith(b"\x89PNG")
