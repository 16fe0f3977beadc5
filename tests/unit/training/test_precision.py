"""What ``auto_precision`` becomes, what ranks with different devices agree on, and what is said of emulation."""

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
from dstransformer.training import precision
from dstransformer.training.precision import (
    ALL,
    choose_precision,
    emulation_warning,
    measure_slowdown,
    native_precisions,
    settle_precision,
)
from dstransformer.training.setup import Setup

CPU = torch.device("cpu")
HALF: tuple[Precision, ...] = ("bf16", "fp16")


def build_setup(corpus: Path, *fragments: str, preset: str = "toy") -> Setup:
    config = load_config(preset, fragments=fragments)
    return Setup(config, compose(config, 1), Corpus.open(corpus, verify=False), Path("run"), 1)


def set_flags(monkeypatch: pytest.MonkeyPatch, *flags: str) -> None:
    monkeypatch.setattr(precision, "processor_flags", lambda: frozenset(flags))


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


@pytest.mark.parametrize(("capability", "native"), [((9, 0), ALL), ((8, 0), ALL), ((7, 5), ALL - {"bf16"})])
def test_gpus_have_bf16_from_compute_capability_8_on(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], native: Collection[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    assert native_precisions(torch.device("cuda", 0)) == native


@pytest.mark.parametrize(("stored", "native", "expected", "reason"), [
    (None, ALL, "bf16", "which every device here has instructions for (auto_precision)"),
    (None, {"fp32"}, "fp32", "as not every device here has instructions for bf16 (auto_precision)"),
    ("bf16", ALL, "bf16", "as its checkpoint has"),
    ("bf16", {"fp32"}, "bf16", "as its checkpoint has; a new run would take fp32 here (auto_precision)"),
    ("fp32", ALL, "fp32", "as its checkpoint has; a new run would take bf16 here (auto_precision)"),
    ("fp16", {"fp32"}, "fp16", "as its checkpoint has; a new run would take fp32 here (auto_precision)"),
])  # fmt: skip
def test_a_new_run_follows_the_hardware_and_a_resumed_one_its_checkpoint(
    toy_corpus: Path, stored: Precision | None, native: Collection[Precision], expected: str, reason: str
) -> None:
    chosen = choose_precision(build_setup(toy_corpus, "zero2", "auto_precision"), stored, native)
    assert chosen.precision == expected
    assert chosen.config.deepspeed == ["zero2", expected]
    assert chosen.precision_from == reason
    assert chosen.ds_config == compose(load_config("toy", fragments=["zero2", expected]), 1)


def test_a_given_precision_stays(toy_corpus: Path) -> None:
    setup = build_setup(toy_corpus, "zero1", "bf16")
    assert choose_precision(setup, "fp32", {"fp32"}) is setup


def agree(
    setup: Setup, monkeypatch: pytest.MonkeyPatch, own: list[str], *others: Collection[str], rank: int = 0
) -> Setup:
    """The experiment on a rank whose CPU has the flags ``own``, among ranks that have other precisions."""
    set_flags(monkeypatch, *own)
    monkeypatch.setattr(precision, "measure_slowdown", lambda *_: 7.04)

    def gather(item: Any) -> list[Any]:
        return [item, *([None] * len(others) if item is None or isinstance(item, str) else others)]

    world: Any = SimpleNamespace(
        device=CPU, gather=gather, compute_on_rank0=lambda compute: compute(), is_rank0=rank == 0
    )
    return settle_precision(setup, "auto", world)


def test_ranks_take_bf16_only_if_all_have_it(
    toy_corpus: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    setup = build_setup(toy_corpus, "zero1", "auto_precision")
    assert agree(setup, monkeypatch, ["avx512_bf16"], ALL, {"fp32", "bf16"}).precision == "bf16"
    assert agree(setup, monkeypatch, ["avx512_bf16"], ALL, {"fp32"}).precision == "fp32"
    assert agree(setup, monkeypatch, ["avx2"], ALL, ALL).precision == "fp32"
    assert caplog.messages == []


@pytest.mark.parametrize("half", HALF)
def test_emulation_is_said_once_with_the_fast_precision_and_by_how_much(
    toy_corpus: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, half: Precision
) -> None:
    setup = build_setup(toy_corpus, "zero3", half, "bf16_gradients")
    monkeypatch.setattr(precision, "processor_name", lambda: "Plain 1000")
    assert agree(setup, monkeypatch, ["avx2"], {"fp32"}) is setup
    assert agree(setup, monkeypatch, ["avx2"], {"fp32"}, rank=1) is setup
    assert caplog.messages == [
        f"Plain 1000 has no {half} instructions: {half} is emulated, and a layer takes about 7 times as long as in "
        "fp32 (measured just now). `--ds zero3 fp32 bf16_gradients` trains in fp32; with auto_precision in place of a "
        "precision, a new run chooses by the hardware"
    ]


def test_nothing_is_said_where_the_precision_is_fast(toy_corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    setup = build_setup(toy_corpus, "zero1", "bf16")
    monkeypatch.setattr(precision, "measure_slowdown", lambda *_: 0.9)
    assert emulation_warning(setup, CPU, {"fp32"}) is None, "emulated, but faster all the same"
    monkeypatch.setattr(precision, "measure_slowdown", lambda *_: pytest.fail("nothing to measure"))
    assert emulation_warning(setup, CPU, ALL) is None
    assert emulation_warning(build_setup(toy_corpus, "zero1", "fp32"), CPU, {"fp32"}) is None


def test_a_layer_is_timed_in_both_precisions(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = iter([0.5, 0.2, 0.4, 0.1, 0.6, 0.3])
    monkeypatch.setattr(precision, "_time_layer", lambda *_: next(seconds))
    assert measure_slowdown(CPU, "bf16") == 4.0
    monkeypatch.undo()
    assert all(measure_slowdown(CPU, half) > 0 for half in HALF)


def test_it_is_a_precision_to_compose_with() -> None:
    assert precision_of(compose(load_config("base", fragments=["zero1", "auto_precision"]), 1)) == "fp32"
    with pytest.raises(ConfigError, match="fragment 'bf16' and fragment 'auto_precision' both state"):
        compose(load_config("base", fragments=["zero1", "auto_precision", "bf16"]), 1)
    with pytest.raises(ConfigError, match="did you mean 'auto_precision'"):
        compose(load_config("base", fragments=["zero1", "auto_precison"]), 1)


def test_presets_whose_results_are_compared_state_their_precision() -> None:
    """What a machine has must not decide a row of a table; presets for machines without a GPU leave it to them."""
    assert load_config("base").deepspeed == ["zero1", "bf16"]
    for preset in ("big", "deep", "table3/a_heads_1", "parser_wsj", "rdrop"):
        assert load_config(preset).deepspeed == ["zero1", "bf16"]
    for preset in ("multi30k", "parser_sample"):
        assert load_config(preset).deepspeed == ["zero1", "auto_precision"]
