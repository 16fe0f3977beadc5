"""What a run leaves to its devices: its precision, its number of micro-batches, and what is said of emulation."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from dstransformer.config import Precision, compose, load_config, precision_of
from dstransformer.data import Corpus
from dstransformer.errors import ConfigError
from dstransformer.training import automatic
from dstransformer.training.automatic import ALL, Devices, choose, emulation_warning, max_micro_batches
from dstransformer.training.checkpoints.resume import Resumed
from dstransformer.training.estimate import setup_peak_bytes
from dstransformer.training.setup import GIB, Setup

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)
AUTO = "batch.micro_batches=auto"


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
    assert Devices.of(CPU) == ({"fp32", *native}, None)


@pytest.mark.parametrize(("capability", "expected"), [
    ((9, 0), (ALL, 71 * GIB)), ((8, 0), (ALL, 71 * GIB)), ((7, 5), (ALL - {"bf16"}, 0)),
])  # fmt: skip
def test_what_a_gpu_has(monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], expected: object) -> None:
    """A tenth of the memory and a GiB are left free."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(total_memory=80 * GIB))
    assert Devices.of(GPU) == expected


@pytest.mark.parametrize(("others", "expected"), [
    ([(ALL, 70 * GIB)], (ALL, 70 * GIB)), ([({"fp32", "bf16"}, 9)], ({"fp32", "bf16"}, 9)),
    ([({"fp32"}, 80 * GIB), (ALL, 0)], ({"fp32"}, 0)),
])  # fmt: skip
def test_ranks_take_what_all_have_and_the_smallest_gpu(
    monkeypatch: pytest.MonkeyPatch, others: list[Any], expected: object
) -> None:
    monkeypatch.setattr(Devices, "of", lambda _: Devices(ALL, 71 * GIB))
    world: Any = SimpleNamespace(device=GPU, gather=lambda item: [item, *others])
    assert Devices.gather(world) == expected


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
    chosen = choose(setup, None if precision is None else stored(precision), Devices(native, None))
    assert chosen.precision == expected
    assert chosen.config.deepspeed == ["zero2", expected]
    assert chosen.precision_from == reason
    assert chosen.ds_config == compose(load_config("toy", fragments=["zero2", expected]), 1)


def test_given_values_stay(toy_corpus: Path) -> None:
    setup = build(toy_corpus, "batch.micro_batches=8")
    assert choose(setup, stored("fp32", 4), Devices(frozenset({"fp32"}), 1)) is setup


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
    with pytest.raises(ConfigError, match="fragment 'bf16' and fragment 'auto_precision' both state"):
        compose(load_config("base", fragments=["zero1", "auto_precision", "bf16"]), 1)
    with pytest.raises(ConfigError, match="did you mean 'auto_precision'"):
        compose(load_config("base", fragments=["zero1", "auto_precison"]), 1)


def test_presets_whose_results_are_compared_state_their_precision() -> None:
    """What a machine has must not decide a row of a table; presets for machines without a GPU leave it to them."""
    for preset in ("base", "big", "deep", "table3/a_heads_1", "parser_wsj", "rdrop"):
        assert load_config(preset).deepspeed == ["zero1", "bf16"]
    for preset in ("multi30k", "parser_sample"):
        assert load_config(preset).deepspeed == ["zero1", "auto_precision"]


def number(setup: Setup, usable: int | None, resumed: Resumed | None = None) -> int:
    chosen = choose(setup, resumed, Devices(ALL, usable))
    assert chosen.config.batch.micro_batches == chosen.ds_config["train_batch_size"]
    return chosen.config.batch.micro_batch_count


def test_it_is_the_first_multiple_of_the_processes_whose_peak_fits(toy_corpus: Path) -> None:
    setup = build(toy_corpus, AUTO, ranks=2)
    peaks = [setup_peak_bytes(setup, count) or 0 for count in (2, 4, 6)]
    assert [number(setup, peak) for peak in peaks] == [2, 4, 6]
    assert number(setup, peaks[0] - 1) == 4
    assert number(build(toy_corpus, AUTO, ranks=3), 70 * GIB) == 3
    big = build(toy_corpus, AUTO, preset="big")
    assert number(big, 7 * GIB) > number(big, 70 * GIB) == 1


def test_no_more_than_hold_the_longest_sentence(toy_corpus: Path) -> None:
    setup = build(toy_corpus, AUTO)
    train = setup.corpus.manifest.splits["train"]
    longest = max(train.src_lengths.max, train.tgt_lengths.max) + 1
    most = max_micro_batches(setup)
    assert 25_000 // (most + 1) < longest <= 25_000 // most
    staged = build(toy_corpus, AUTO, "batch.stages=[{epochs: 1, share: 0.5}, {epochs: 1, share: 0.2}]")
    assert max_micro_batches(staged) == 5_000 // longest, "the smallest updates count"
    assert setup_peak_bytes(staged, 2) == setup_peak_bytes(setup, 2), "the largest count"
    assert max_micro_batches(replace(setup, world_size=7)) % 7 == 0
    assert max_micro_batches(replace(setup, world_size=100_000)) == 100_000
    with pytest.raises(ConfigError, match=rf"no number fits the GPUs. With {most}, .* 0\.1 GiB are usable"):
        number(setup, GIB // 10)


@pytest.mark.parametrize(("kept", "usable", "ranks", "expected"), [
    (None, None, 2, 2), (4, None, 2, 4), (3, None, 2, 2),  # memory is not predicted
    (4, 70 * GIB, 2, 4), (3, 70 * GIB, 2, 2), (None, 70 * GIB, 2, 2),
])  # fmt: skip
def test_a_resumed_run_keeps_the_number_of_its_checkpoint_if_the_processes_divide_it(
    toy_corpus: Path, kept: int | None, usable: int | None, ranks: int, expected: int
) -> None:
    resumed = None if kept is None else stored(micro_batches=kept)
    assert number(build(toy_corpus, AUTO, ranks=ranks), usable, resumed) == expected


def test_but_not_where_it_does_not_fit(toy_corpus: Path) -> None:
    setup = build(toy_corpus, AUTO)
    assert number(setup, setup_peak_bytes(setup, 5) or 0, stored(micro_batches=2)) == 5


@pytest.mark.parametrize(("ranks", "usable", "expected"), [
    (4, None, 4), (4, 70 * GIB, 8), (3, 0, 9), (16, 0, 16),
])  # fmt: skip
def test_where_memory_is_not_predicted_cpus_have_one_each_and_gpus_eight_together(
    toy_corpus: Path, ranks: int, usable: int | None, expected: int
) -> None:
    assert number(build(toy_corpus, AUTO, "loss.r_drop=5", ranks=ranks), usable) == expected
    for others in (("model.attention_dropout=0.1",), ("training.attention_backend=padded",)):
        padded = build(toy_corpus, AUTO, *others, ranks=ranks)
        assert number(padded, usable) == expected, "one part of many lengths would be four times as many rows"
