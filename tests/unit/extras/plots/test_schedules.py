from __future__ import annotations

from pathlib import Path

import pytest

from dstransformer.extras.figures import label_of
from dstransformer.extras.plots.curves import draw_schedules, load_schedules

OWN = "extends: base\nmodel: {d_model: 256}\nschedule: {warmup_steps: 100, scale: 2.0}\n"


def test_curves_follow_equation_3_and_mark_their_peaks(tmp_path: Path) -> None:
    (tmp_path / "my.yaml").write_text(OWN)
    schedules = load_schedules(["base", "big", str(tmp_path / "my.yaml")])
    axes = draw_schedules(schedules, 10_000).axes[0]
    curves, peaks = axes.lines[0::2], axes.lines[1::2]
    for curve, peak, (d_model, warmup, scale) in zip(
        curves, peaks, [(512, 4000, 1), (1024, 4000, 1), (256, 100, 2)], strict=True
    ):
        steps, rates = curve.get_xdata(), curve.get_ydata()
        assert (steps[0], steps[-1]) == (1, 10_000)
        for step, rate in zip(steps, rates, strict=True):
            assert rate == pytest.approx(scale * d_model**-0.5 * min(step**-0.5, step * warmup**-1.5))
        assert list(peak.get_xdata()) == [warmup]
        assert list(peak.get_ydata()) == [max(rates)]
    assert [str(curve.get_label()).partition(":")[0] for curve in curves] == [
        "base",
        "big",
        label_of(str(tmp_path / "my.yaml")),
    ]
    assert "peak 0.0125 at update 100" in str(curves[2].get_label())


def test_the_range_defaults_to_five_warm_ups() -> None:
    schedules = load_schedules(["base"])
    assert draw_schedules(schedules).axes[0].get_xlim() == (0, 20_001)
    before_the_peak = draw_schedules(schedules, 1_000).axes[0]
    assert len(before_the_peak.lines) == 1
    assert max(before_the_peak.lines[0].get_xdata()) == 1_000
