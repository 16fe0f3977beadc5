from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from support.models.packed import VOCAB, tiny_config
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.__main__ import main
from benchmarks.gpu.cases import SMOKE, Case
from benchmarks.gpu.static import common_shape, fill, fill_updates
from benchmarks.gpu.text import build_updates, draw_text
from benchmarks.gpu.training import compile_layers, update_flops
from benchmarks.lib.bare import BareStepper
from dstransformer.data.loader import Update
from dstransformer.data.packing import PackedBatch
from dstransformer.data.plan import Budget
from dstransformer.model import Transformer
from dstransformer.training.devices import datasheet_peak


def draw_updates(micro_batches: int = 4) -> list[Update]:
    return build_updates(Budget(600, 600, micro_batches), 3, VOCAB)


def decoder_output(model: Transformer, batch: PackedBatch) -> torch.Tensor:
    src, tgt = batch.src_packing, batch.tgt_packing
    return model.decode(batch.tgt_in, tgt, model.encode(batch.src, src), src)[: tgt.tokens]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
def test_without_a_gpu_it_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["gpu"]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert "needs a CUDA device" in said.err
    assert said.err.count("\n") == 1


@pytest.mark.slow
@pytest.mark.extended
def test_the_smoke_run_measures_training_and_decoding(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = tmp_path / "report.json"
    status = main(
        ["gpu", "--smoke", "--models", "base", "--precisions", "bf16", "--compile", "no", "--json", str(report)]
    )
    printed = capsys.readouterr().out
    assert status == 0, printed
    training, decoding = json.loads(report.read_text())["cases"]
    assert training["status"] == decoding["status"] == "done"
    assert training["result"]["last_loss"] < training["result"]["first_loss"]
    assert len(training["result"]["seconds"]) == len(decoding["result"]["seconds"]) == SMOKE.rounds
    assert training["result"]["filling"] == 0.0
    assert decoding["result"]["tgt_tokens"] > decoding["result"]["sentences"]
    assert "| base | bf16 | padded, 8 parts | eager | engine |" in printed
    assert "Profile of train-base-bf16-padded-eager-8x-engine, an update:" in printed


def test_each_case_that_times_out_takes_one_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["gpu", "--smoke", "--models", "base", "--precisions", "fp32", "--case-seconds", "0.1"]) == 1
    lines = [line for line in capsys.readouterr().out.splitlines() if "failed" in line]
    assert len(lines) == 3
    assert all("not finished within 0 s" in line for line in lines)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
def test_attention_that_cannot_run_is_a_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = tmp_path / "table.json"
    assert main(["gpu-attention", "--smoke", "--micro-batches", "1", "--json", str(table)]) == 0
    rows = json.loads(table.read_text())["rows"]
    assert [(kind, name) for _, kind, name, *_ in rows] == [
        (kind, name) for kind in ("self", "causal", "memory") for name in ("flash", "efficient", "padded")
    ]
    for _, _, name, error, *times in rows:
        if name == "padded":
            assert float(error) < 0.02
            assert all(float(time) > 0.0 for time in times)
        else:
            assert "Error: " in error
            assert times == ["", ""]
    assert "| padded |" in capsys.readouterr().out


def test_the_text_has_the_lengths_of_wmt() -> None:
    text = draw_text(20_000, 37_000)
    for lengths in (text.src_lengths, text.tgt_lengths):
        assert 27 < lengths.mean() < 29
        assert lengths.min() >= 1
        assert lengths.max() <= 200
    assert 0.9 < np.corrcoef(text.src_lengths, text.tgt_lengths)[0, 1] < 1.0
    pieces = text.draw_pieces(text.src_lengths, 0)
    assert pieces.min() >= 4
    assert pieces.max() < 37_000


def test_updates_stay_within_their_budget_and_nearly_fill_it() -> None:
    updates = build_updates(Budget(5000, 5000, 2), 3, VOCAB)
    for update in updates:
        assert update.src_tokens == sum(batch.src.numel() for batch in update.batches)
        assert update.tgt_tokens == sum(batch.tgt_out.numel() for batch in update.batches)
        assert 4700 < max(update.src_tokens, update.tgt_tokens) <= 5000


def test_all_micro_batches_are_filled_to_one_shape() -> None:
    updates = draw_updates()
    shape = common_shape(updates)
    for batch in (batch for update in fill_updates(updates, shape) for batch in update.batches):
        assert (batch.src.numel(), batch.tgt_in.numel()) == (shape.src_tokens, shape.tgt_tokens)
        assert batch.tgt_out.numel() == shape.tgt_tokens
        src, tgt = batch.src_packing.lengths, batch.tgt_packing.lengths
        assert len(src) == len(tgt) == shape.sentences
        assert int(src.sum()) == shape.src_tokens
        assert int(tgt.sum()) == shape.tgt_tokens
        assert int(src.max()) <= batch.src_packing.max_len == shape.src_max
        assert int(tgt.max()) <= batch.tgt_packing.max_len == shape.tgt_max
        assert torch.equal(src > 0, tgt > 0)


def test_filling_changes_no_sentence() -> None:
    updates = draw_updates()
    shape = common_shape(updates)
    torch.manual_seed(1)
    model = Transformer(tiny_config(), VOCAB).eval()
    for batch in updates[0].batches:
        alone = decoder_output(model, batch)
        filled = decoder_output(model, fill(batch, shape))
        torch.testing.assert_close(filled[: len(alone)], alone, rtol=1e-4, atol=1e-5)


def test_counted_flops_match_those_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DST_CPU_KERNELS", "0")  # the FLOP counter does not see their products
    case = Case("train", "base", "bf16", "padded", micro_batches=16, loop="bare", work=SMOKE)
    config = case.load_config()
    updates = build_updates(Budget(6000, 6000, 16), 1, SMOKE.vocabulary)
    stepper = BareStepper(config, SMOKE.vocabulary, "bf16", torch.device("cpu"))
    with FlopCounterMode(display=False) as counter:
        stepper.step(updates[0])
    # Padding and the masked half of causal attention are computed, but do not count as work of the model.
    assert 0.75 < update_flops(config, SMOKE.vocabulary, updates) / counter.get_total_flops() <= 1.0


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_the_bare_loop_trains(precision: str) -> None:
    config = Case("train", "base", "bf16", "padded", loop="bare", work=SMOKE).load_config()
    update = build_updates(Budget(300, 300, 1), 1, SMOKE.vocabulary)[0]
    stepper = BareStepper(config, SMOKE.vocabulary, precision, torch.device("cpu"))
    losses = [float(stepper.step(update)) for _ in range(10)]
    assert losses[-1] < 0.95 * losses[0]


@pytest.mark.slow
@pytest.mark.extended
def test_compiled_layers_compute_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DST_CPU_KERNELS", "0")  # a GPU does not use them
    case = Case("train", "base", "bf16", "padded", loop="bare", work=SMOKE)
    config = case.load_config().model_copy(update={"model": tiny_config(num_layers=1)})
    updates = draw_updates(micro_batches=2)
    losses = []
    for compiled in (False, True):
        stepper = BareStepper(config, VOCAB, "fp32", torch.device("cpu"))
        if compiled:
            compile_layers(stepper.model, SMOKE.compiler, dynamic=False)
        losses.append([float(stepper.step(update)) for update in fill_updates(updates, common_shape(updates))])
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)


@pytest.mark.parametrize(
    ("name", "peak"),
    [
        ("NVIDIA H100 80GB HBM3", 989e12),
        ("NVIDIA H100 PCIe", 756e12),
        ("NVIDIA H200", 989e12),
        ("NVIDIA A100-SXM4-80GB", 312e12),
        ("NVIDIA L40S", 362e12),
        ("NVIDIA L4", 121e12),
        ("NVIDIA GH200 480GB", 989e12),
        ("NVIDIA RTX A1000", None),
        ("Some other card", None),
    ],
)
def test_datasheet_peaks(name: str, peak: float | None) -> None:
    assert datasheet_peak(name) == peak
