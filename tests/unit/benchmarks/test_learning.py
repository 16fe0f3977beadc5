"""What ``python -m benchmarks learning`` reads and computes."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from benchmarks.lib.intervals import format_mean, mean_interval
from benchmarks.training.learning import (
    VARIANTS,
    Result,
    Run,
    Scale,
    Variant,
    choose_variants,
    format_results,
    updates_to_reach,
)
from dstransformer.config import load_config


def test_an_interval_is_that_of_students_t() -> None:
    mean, half = mean_interval([1.0, 2.0, 3.0])
    assert mean == 2.0
    assert half == pytest.approx(4.303 / 3**0.5)  # a standard deviation of 1
    assert mean_interval([5.0]) == (5.0, None)
    assert format_mean([-0.25, -0.25], "+.2f") == "-0.25 ± 0.00"
    assert format_mean([], "+.2f") == ""


def test_the_update_at_which_a_curve_reaches_a_loss_is_interpolated() -> None:
    curve = [(100, 4.0), (200, 3.0), (300, 3.5), (400, 2.0)]
    assert updates_to_reach(curve, 3.25) == 175
    assert updates_to_reach(curve, 2.0) == 400
    assert updates_to_reach(curve, 4.5) == 100
    assert updates_to_reach(curve, 1.9) is None


def result(*losses: float) -> Result:
    curve = [(100 * number, loss) for number, loss in enumerate(losses, start=1)]
    return Result({"batch": {"tgt_tokens": 2048}}, curve, losses[-1] - 0.1, 10.0, 200.0)


def test_differences_are_to_the_reference_with_the_same_seed() -> None:
    table = format_results({
        "reference": {1: result(4.0, 3.0), 2: result(5.0, 3.5)},
        "better": {1: result(3.0, 2.5), 2: result(3.5, 3.0)},
        "worse": {2: result(5.0, 4.0)},
    })  # fmt: skip
    rows = {
        cells[0]: cells
        for line in table.splitlines()
        if (cells := [cell.strip() for cell in line.strip("|").split("|")])
    }
    assert rows["reference"][1:6] == ["200 x 2,048", "2", "3.250", "", "3.150"]
    assert rows["better"][3:5] == ["2.750", "-0.500 ± 0.000"]
    assert rows["better"][9:] == ["100 ± 0", "204,800", "1.00"]
    assert rows["worse"][4] == "+0.500"
    assert rows["worse"][9] == "not reached in 1 of 1"


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)
def test_every_variant_is_a_configuration_with_as_many_tokens(variant: Variant) -> None:
    scale = Scale("narrow", 400, 2048)
    config = load_config("multi30k", scale.settings(variant, seed=3))
    assert config.training.max_updates * config.batch.tgt_tokens == 400 * 2048
    assert config.training.seed == 3
    assert config.schedule.warmup_steps * 10 == config.training.max_updates


def test_variants_are_chosen_by_name_and_added() -> None:
    added = [["mine", "model.dropout=0.3"]]
    assert [one.name for one in choose_variants(["muon"], added)] == ["adam", "muon", "mine"]
    with pytest.raises(SystemExit, match=r"unknown variant x; there are: adam, adam-0\.0015"):
        choose_variants(["x"], [])
    with pytest.raises(SystemExit, match="two variants are called muon"):
        choose_variants(["muon"], [["muon", "model.dropout=0.3"]])
    with pytest.raises(SystemExit, match="--add a/b: a name has letters"):
        choose_variants([], [["a/b", "model.dropout=0.3"]])


def test_a_result_of_other_values_is_refused(tmp_path: Path) -> None:
    settings = Scale("narrow", 400, 2048).settings(VARIANTS[1], seed=1)
    run = Run("linear", 1, settings, tmp_path)
    assert run.read() is None
    found = Result(run.configuration, [(400, 2.0)], 1.9, 30.0, None)
    run.beside(".json").write_text(json.dumps(asdict(found)))
    assert run.read() == replace(found, curve=[[400, 2.0]])
    other = replace(run, settings=[*settings, "model.dropout=0.3"])
    with pytest.raises(SystemExit, match=r"linear-1\.json is of other values: delete it"):
        other.read()
