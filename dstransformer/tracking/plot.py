"""Plots the training curves of a run from its ``metrics.jsonl``. Imports matplotlib."""

from __future__ import annotations

import io
from collections import defaultdict
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from dstransformer.tracking.jsonl import logged_metrics

Curve = list[tuple[int, float]]
COLOURS = {"train": "#4269d0", "valid": "#e8833a"}


def draw_training(metrics: Path, title: str) -> bytes:
    """Plot loss, learning rate, validation BLEU and speed over updates, as a PNG.

    Raises:
        OSError: The file cannot be read.
    """
    curves = _read_curves(metrics)
    figure = Figure(figsize=(11, 7), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title)
    bleu = next((name for name in curves if name.startswith("valid/bleu")), "valid/bleu")
    panels = [
        ("loss (nats per token)", ["train/loss", "valid/loss"]),
        (f"validation BLEU{_sentences(bleu)}", [bleu]),
        ("learning rate", ["train/lr"]),
        ("tokens per second", ["train/tokens_per_second"]),
    ]
    for axes, (label, shown) in zip(figure.subplots(2, 2, sharex=True).flat, panels, strict=True):
        for name in shown:
            points = curves.get(name, [])
            steps, values = [step for step, _ in points], [value for _, value in points]
            kind = name.partition("/")[0]
            marker = "o" if len(points) < 40 else ""
            axes.plot(steps, values, marker=marker, markersize=3, color=COLOURS[kind], label=kind)
        axes.set_title(label, loc="left", fontsize=10)
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
        axes.xaxis.get_major_locator().set_params(integer=True)
        if len(shown) > 1:
            axes.legend(frameon=False)
        if label in ("learning rate", "tokens per second"):
            axes.set_xlabel("update")
            axes.set_ylim(bottom=0)
            axes.margins(y=0.1)
    image = io.BytesIO()
    figure.savefig(image, format="png")
    return image.getvalue()


def _sentences(bleu: str) -> str:
    first = bleu.partition("_first_")[2]
    return f", first {first} sentences" if first else ""


def _read_curves(metrics: Path) -> dict[str, Curve]:
    curves: dict[str, Curve] = defaultdict(list)
    for name, value, _, step in logged_metrics(metrics):
        curves[name].append((step, value))
    return curves
