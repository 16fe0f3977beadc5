"""The meter that times every benchmarked system."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

import pytest
from support.processes.launching import run_command

from benchmarks.peers.drivers import harness
from benchmarks.peers.drivers.harness import Complete, Measurement, Meter, Request


def request(seconds: float) -> Request:
    return Request("", "", 1, 8, 8, 1, "fp32", 100, 0.1, 0.1, 1e-3, 10, seconds)


def measure(monkeypatch: pytest.MonkeyPatch, update_seconds: float, seconds: float) -> tuple[Measurement, int]:
    """Time updates of 7 and 11 tokens; return the measurement and the number of updates."""
    now = itertools.count(1)
    monkeypatch.setattr(harness.time, "perf_counter", lambda: update_seconds * next(now))
    meter = Meter(request(seconds))
    for number in itertools.count(1):
        meter.count(7, 11)
        try:
            meter.end_update(lambda _: None)
        except Complete:
            return meter.measurement, number
    raise AssertionError


def test_short_updates_warm_up_for_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    measurement, updates = measure(monkeypatch, update_seconds=0.5, seconds=5.0)
    assert measurement == Measurement(10, 70, 110, 5.0)
    assert updates == 25 + 10  # after the first, 24 updates take 12 s


def test_long_updates_warm_up_for_a_number_of_updates(monkeypatch: pytest.MonkeyPatch) -> None:
    measurement, updates = measure(monkeypatch, update_seconds=20.0, seconds=5.0)
    assert measurement == Measurement(harness.LEAST_UPDATES, 21, 33, 60.0)
    assert updates == harness.WARM_UP_UPDATES + harness.LEAST_UPDATES


@pytest.mark.slow
def test_a_bare_step_runs() -> None:
    done = run_command([sys.executable, "-m", "benchmarks.step", "tiny", "fp32", "1"], cwd=Path(__file__).parents[3])
    assert done.returncode == 0, done.stderr
    assert all(float(figure) > 0 for figure in done.stdout.split())
