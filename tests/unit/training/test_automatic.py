"""What a run leaves to its devices: its precision, its number of micro-batches, and what is said of emulation."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from dstransformer.config import Precision, compose, load_config, precision_of
from dstransformer.data import Corpus
from dstransformer.errors import ConfigError
from dstransformer.training import automatic
from dstransformer.training.automatic import ALL, choose, emulation_warning, native_precisions
from dstransformer.training.checkpoints.resume import Resumed
from dstransformer.training.setup import Setup

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)


def build(corpus: Path, *changes: str, ranks: int = 1, preset: str = "base", ds: Collection[str] = ()) -> Setup:
    config = load_config(preset, changes, list(ds) or ["zero1", "bf16"])
    return Setup(config, compose(config, ranks), Corpus.open(corpus, verify=False), Path("run"), ranks)


def stored(precision: Precision = "bf16", micro_batches: int = 1) -> Resumed:
    """What a run with these values resumes from."""
    checkpoint: Any = SimpleNamespace(state=SimpleNamespace(precision=precision))
    return Resumed(checkpoint, load_config("base", [f"batch.micro_batches={micro_batches}"]), {})


def set_flags(monkeypatch: pytest.MonkeyPatch, *flags: str) -> None:
    monkeypatch.setattr(automatic, "processor_flags", lambda: frozenset(flags))


@pytest.mark.parametrize(("flags", "native"), [
    (["avx2", "f16c"], []), (["avx2", "avx512f"], []), ([], []),
    (["avx512f", "avx512_bf16"], ["bf16"]), (["amx_tile", "amx_bf16"], ["bf16"]), (["asimd", "bf16"], ["bf16"]),
    (["avx512_bf16", "avx512_fp16"], ["bf16", "fp16"]), (["asimdhp"], ["fp16"]),
])  # fmt: skip
def test_what_a_processor_has_instructions_for(
    monkeypatch: pytest.MonkeyPatch, flags: list[str], native: list[str]
) -> None:
    set_flags(monkeypatch, *flags)
    assert native_precisions(CPU) == {"fp32", *native}


@pytest.mark.parametrize(("capability", "expected"), [((9, 0), ALL), ((8, 0), ALL), ((7, 5), ALL - {"bf16"})])
def test_what_a_gpu_has(monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], expected: object) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    assert native_precisions(GPU) == expected


@pytest.mark.parametrize(("precision", "native", "expected", "reason"), [
    (None, ALL, "bf16", "which every device here has instructions for (auto_precision)"),
    (None, {"fp32"}, "fp32", "as not every device here has instructions for bf16 (auto_precision)"),
    ("bf16", ALL, "bf16", "as its checkpoint has"),
    ("bf16", {"fp32"}, "bf16", "as its checkpoint has; a new run would take fp32 here (auto_precision)"),
    ("fp32", ALL, "fp32", "as its checkpoint has; a new run would take bf16 here (auto_precision)"),
    ("fp16", {"fp32"}, "fp16", "as its checkpoint has; a new run would take fp32 here (auto_precision)"),
])  # fmt: skip
def test_a_new_run_follows_the_hardware_and_a_resumed_one_its_checkpoint(
    toy_corpus: Path, precision: Precision | None, native: frozenset[Precision], expected: str, reason: str
) -> None:
    setup = build(toy_corpus, preset="toy", ds=("zero2", "auto_precision"))
    chosen = choose(setup, None if precision is None else stored(precision), native)
    assert chosen.precision == expected
    assert chosen.config.deepspeed == ["zero2", expected]
    assert chosen.precision_from == reason
    assert chosen.ds_config == compose(load_config("toy", fragments=["zero2", expected]), 1)


def test_given_values_stay(toy_corpus: Path) -> None:
    setup = build(toy_corpus, "batch.micro_batches=8")
    assert choose(setup, stored("fp32", 4), {"fp32"}) is setup


@pytest.mark.parametrize("half", ["bf16", "fp16"])
def test_emulation_is_said_with_the_fast_precision(
    toy_corpus: Path, monkeypatch: pytest.MonkeyPatch, half: Precision
) -> None:
    setup = build(toy_corpus, ds=("zero3", half, "bf16_gradients"))
    monkeypatch.setattr(automatic, "processor_name", lambda: "Plain 1000")
    set_flags(monkeypatch, "avx2")
    said = emulation_warning(setup, CPU) or ""
    assert f"Plain 1000 has no {half} instructions: {half} is emulated" in said
    assert "`--ds zero3 fp32 bf16_gradients` trains in fp32" in said
    set_flags(monkeypatch, "avx512_bf16", "avx512_fp16")
    assert emulation_warning(setup, CPU) is None
    set_flags(monkeypatch, "avx2")
    assert emulation_warning(build(toy_corpus, ds=("zero1", "fp32")), CPU) is None


def test_it_is_a_precision_to_compose_with() -> None:
    assert precision_of(compose(load_config("base", fragments=["zero1", "auto_precision"]), 1)) == "fp32"
    with pytest.raises(ConfigError, match="'bf16' and fragment 'auto_precision'"):
        compose(load_config("base", fragments=["zero1", "auto_precision", "bf16"]), 1)
    with pytest.raises(ConfigError, match="did you mean 'auto_precision'"):
        compose(load_config("base", fragments=["zero1", "auto_precison"]), 1)


def test_presets_whose_results_are_compared_state_their_precision() -> None:
    """What a machine has must not decide a row of a table; presets for machines without a GPU leave it to them."""
    for preset in ("base", "big", "deep", "table3/a_heads_1", "parser_wsj", "rdrop"):
        assert load_config(preset).deepspeed == ["zero1", "bf16"]
    for preset in ("multi30k", "parser_sample"):
        assert load_config(preset).deepspeed == ["zero1", "auto_precision"]


@pytest.mark.parametrize(("kept", "ranks", "expected", "source"), [
    (None, 2, 2, "trial"), (4, 2, 4, "checkpoint"), (3, 2, 2, "trial"), (8, 1, 8, "checkpoint"),
])  # fmt: skip
def test_a_resumed_run_keeps_the_number_of_its_checkpoint_if_the_processes_divide_it(
    toy_corpus: Path, kept: int | None, ranks: int, expected: int, source: str
) -> None:
    resumed = None if kept is None else stored(micro_batches=kept)
    chosen = choose(build(toy_corpus, "batch.micro_batches=auto", ranks=ranks), resumed, ALL)
    assert chosen.config.batch.micro_batches == chosen.ds_config["train_batch_size"] == expected
    assert chosen.micro_batches_from == source
