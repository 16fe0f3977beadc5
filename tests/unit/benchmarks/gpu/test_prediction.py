"""Predictions of speed for devices that are not there."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from benchmarks.__main__ import main
from benchmarks.gpu.cases import SMOKE, Case, Choice, Work, build_cases
from benchmarks.gpu.changes import CHANGES, attention_work
from benchmarks.gpu.counts import LAYOUTS, VOCABULARY, load_counts, merge
from benchmarks.gpu.device import find_sheet
from benchmarks.gpu.prediction import predict_case, predict_training
from benchmarks.gpu.roofline import KERNEL_SECONDS, Operator, predict
from benchmarks.gpu.roofline import Work as DeviceWork
from benchmarks.gpu.search_prediction import count_step
from benchmarks.gpu.sheets import LAUNCH_SECONDS, SHEETS, WAIT_SECONDS
from dstransformer.config import load_config

SHEET = replace(SHEETS["h100"], products=1e12, bandwidth=1e9, link=1e9, product_share=1.0)
SHEET = replace(SHEET, bandwidth_share=1.0, link_share=1.0)


def test_each_operator_takes_the_longer_of_its_operations_and_its_bytes() -> None:
    operators = [
        Operator("mm", "bfloat16", 2, 1_000_000, 3_000_000_000),  # 3 ms of operations, 1 ms of bytes
        Operator("mm", "bfloat16", 1, 5_000_000, 1_000_000_000),  # 1 ms of operations, 5 ms of bytes
        Operator("add", "bfloat16", 3, 2_000_000, 0),
        Operator("add", "float32", 10, 4, 0),
    ]
    found = predict(DeviceWork(operators, waits=2, attention_flops=1e9, reduced_bytes=4e6), SHEET)
    assert found.products == pytest.approx(2 * 3e-3 + 5e-3 + 1e-3)
    assert found.memory == pytest.approx(3 * 2e-3 + 10 * KERNEL_SECONDS)
    assert found.host == pytest.approx(16 * LAUNCH_SECONDS)
    assert found.waits == 2 * WAIT_SECONDS
    assert found.links == pytest.approx(4e-3)
    assert found.total == pytest.approx(found.products + found.memory + found.waits + found.links)


def test_a_slow_host_decides() -> None:
    found = predict(DeviceWork([Operator("add", "bfloat16", 1000, 4, 0)], waits=0), SHEET)
    assert found.total == found.host == pytest.approx(1000 * LAUNCH_SECONDS)


@pytest.mark.parametrize("gpus", [1, 8])
@pytest.mark.parametrize("device", SHEETS)
def test_the_command_prints_predictions_and_calls_them_so(
    device: str, gpus: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["gpu", "--predict", device, "--gpus", str(gpus)]) == 0
    printed = capsys.readouterr().out
    assert f"PREDICTIONS for {gpus} x {SHEETS[device].name}: nothing here has been measured on a GPU." in printed
    assert len(re.findall(r"^\| (base|big) \| as shipped \|", printed, re.MULTILINE)) == 2
    assert ("Beam search" in printed) == (gpus == 1)


@pytest.mark.parametrize("model", ["base", "big"])
@pytest.mark.parametrize("gpus", [1, 8])
def test_no_change_makes_training_slower_and_each_is_made_once(model: str, gpus: int) -> None:
    rows = predict_training(model, SHEETS["h100"], gpus)
    (unchanged,) = (place for place, row in enumerate(rows) if row.what == "ZeRO 0")
    totals = [row.time.total for row in rows[unchanged:]]
    assert totals == sorted(totals, reverse=True)
    config = load_config(model)
    for _, change in CHANGES:
        once = change(rows[0].work, config, VOCABULARY)
        twice = change(once, config, VOCABULARY)
        assert sorted(twice.operators) == sorted(once.operators)
        assert (twice.waits, twice.launches) == (once.waits, once.launches)


def test_every_layout_is_stored_and_micro_batches_hold_the_update() -> None:
    found = load_counts()
    assert set(found) == set(LAYOUTS)
    for layout, counts in found.items():
        assert 0.8 * 25_000 / layout.gpus < counts.tgt_tokens <= 1.1 * 25_000 / layout.gpus, layout
        assert counts.launches > 500


def test_calls_that_move_nearly_as_much_are_merged() -> None:
    rows = [
        Operator("mm", "bfloat16", 1, 100, 8),
        Operator("mm", "bfloat16", 3, 108, 16),
        Operator("mm", "bf", 1, 4, 8),
    ]
    assert merge([*rows, Operator("mm", "bfloat16", 1, 200, 8)]) == [
        Operator("mm", "bf", 1, 4, 8),
        Operator("mm", "bfloat16", 4, 106, 14),
        Operator("mm", "bfloat16", 1, 200, 8),
    ]


def test_a_step_of_the_search_has_more_operators_in_more_layers() -> None:
    assert count_step("toy") < 100 < count_step("base") < 150


@pytest.mark.parametrize(
    ("name", "key"), [("NVIDIA H100 80GB HBM3, 80 GiB", "h100"), ("NVIDIA H200", "h200"), ("NVIDIA H100 PCIe", None)]
)
def test_predictions_are_for_the_device_that_the_data_sheet_describes(name: str, key: str | None) -> None:
    assert find_sheet(name) == (None if key is None else SHEETS[key])


def test_a_case_has_a_prediction_if_its_like_was_counted() -> None:
    case = Case("train", "base", "bf16", "varlen", micro_batches=8)
    row = predict_training("base", SHEETS["h100"], 1)[0]
    assert predict_case(case, SHEETS["h100"]) == pytest.approx((row.least, row.speed), rel=0.02)
    others = [
        replace(case, precision="fp16"), replace(case, compiled=True), replace(case, micro_batches=2),
        replace(case, loop="bare"), replace(case, backend="padded"), replace(case, work=SMOKE),
    ]  # fmt: skip
    assert [predict_case(other, SHEETS["h100"]) for other in others] == [None] * 6


def test_the_cases_begin_with_the_presets_as_they_are_shipped() -> None:
    choice = Choice(
        ["base", "big"], ["bf16", "fp16"], ["varlen", "padded"], [False, True], ["engine"], None, Work(), None, False
    )
    cases = build_cases(choice)
    assert [(case.model, case.micro_batches, case.backend, case.compiled) for case in cases[:2]] == [
        ("base", 1, "varlen", False), ("big", 1, "varlen", False),
    ]  # fmt: skip
    assert len(cases) == len(set(cases))


def test_attention_in_blocks_moves_and_computes_more_than_its_operands() -> None:
    """Flash attention computes whole blocks: in a batch of short sentences they are mostly empty."""
    rows = {row.what: row for row in predict_training("base", SHEETS["h100"], 1)}
    flash, short = rows["ZeRO 0"], rows["+ attention_backend=short"]
    assert flash.least < flash.speed < short.speed
    config = load_config("base")
    flops, counted = attention_work(config, 1)
    assert flash.work.attention_bytes > 4 * 16 * counted * config.model.d_model
    assert flash.work.attention_flops > short.work.attention_flops > flops
