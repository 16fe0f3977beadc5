"""The plan of a run: what is decided from the facts of all ranks, and what is refused."""

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
from dstransformer.training import facts
from dstransformer.training.checkpoints.resume import ResumePoint
from dstransformer.training.experiment import Experiment, TrainRequest
from dstransformer.training.facts import ALL, Facts, native_precisions
from dstransformer.training.plan import Plan, decide

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)

#: A machine with a processor that has all instructions.
NODE = Facts("one", "Fast 9000", ALL, {"cpu_kernels": "abc"}, frozenset({0, 1, 2, 3}), memory=2**40, probe="x")


def build(
    corpus: Path, *changes: str, ranks: int = 1, preset: str = "base", ds: Collection[str] = ("zero1", "bf16")
) -> Experiment:
    request = TrainRequest(preset, corpus, Path("run"))
    config = load_config(preset, changes, list(ds))
    return Experiment.build(request, config, Corpus.open(corpus, verify=False), ranks)


def stored(precision: Precision = "bf16", micro_batches: int = 1) -> ResumePoint:
    """What a run with these values resumes from."""
    checkpoint: Any = SimpleNamespace(state=SimpleNamespace(precision=precision))
    return ResumePoint(checkpoint, load_config("base", [f"batch.micro_batches={micro_batches}"]), {})


def set_flags(monkeypatch: pytest.MonkeyPatch, *flags: str) -> None:
    monkeypatch.setattr(facts, "processor_flags", lambda: frozenset(flags))


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
    toy_corpus: Path, precision: Precision | None, native: Collection[Precision], expected: str, reason: str
) -> None:
    experiment = build(toy_corpus, ranks=2, preset="toy", ds=("zero2", "auto_precision"))
    ranks = [NODE, replace(NODE, native=frozenset(native))]
    plan = decide(experiment, ranks, None if precision is None else stored(precision))
    assert plan.config.deepspeed == ["zero2", expected]
    assert plan.precision_from == reason
    planned = experiment.with_config(plan.config)
    assert planned.precision == expected
    assert planned.ds_config == compose(load_config("toy", fragments=["zero2", expected]), 2)


def test_given_values_stay(toy_corpus: Path) -> None:
    experiment = build(toy_corpus, "batch.micro_batches=8")
    plan = decide(experiment, [NODE], stored("fp32", 4))
    assert plan.config is experiment.config
    assert (plan.precision_from, plan.micro_batches_from) == (None, None)


@pytest.mark.parametrize(("number", "ranks", "expected", "source"), [
    (None, 2, 2, "trial"), (4, 2, 4, "checkpoint"), (3, 2, 2, "trial"), (8, 1, 8, "checkpoint"),
])  # fmt: skip
def test_a_resumed_run_keeps_the_number_of_its_checkpoint_if_the_processes_divide_it(
    toy_corpus: Path, number: int | None, ranks: int, expected: int, source: str
) -> None:
    resumed = None if number is None else stored(micro_batches=number)
    plan = decide(build(toy_corpus, "batch.micro_batches=auto", ranks=ranks), [NODE] * ranks, resumed)
    assert (plan.config.batch.micro_batches, plan.micro_batches_from) == (expected, source)


@pytest.mark.parametrize("half", ["bf16", "fp16"])
def test_emulation_is_said_with_the_fast_precision(toy_corpus: Path, half: Precision) -> None:
    plain = replace(NODE, device="Plain 1000", native=frozenset({"fp32"}))
    experiment = build(toy_corpus, ranks=2, ds=("zero3", half, "bf16_gradients"))
    (warning,) = decide(experiment, [NODE, plain]).warnings
    assert f"Plain 1000 has no {half} instructions: {half} is emulated" in warning
    assert "`--ds zero3 fp32 bf16_gradients` trains in fp32" in warning
    assert not decide(experiment, [NODE, NODE]).warnings
    assert not decide(build(toy_corpus, ranks=2, ds=("zero1", "fp32")), [NODE, plain]).warnings


def plan_of(experiment: Experiment, *ranks: Facts) -> Plan:
    return decide(experiment, ranks)


def test_ranks_of_a_node_share_the_cores_that_they_have_in_common(toy_corpus: Path) -> None:
    experiment = build(toy_corpus, ranks=5)
    bound = replace(NODE, host="two", cores=frozenset({0, 1})), replace(NODE, host="two", cores=frozenset({2}))
    given = replace(NODE, host="three", threads=7)
    plan = plan_of(experiment, NODE, NODE, *bound, given)
    assert plan.threads == [2, 2, 2, 1, 7]
    assert plan.hardware == {"device": "Fast 9000", "threads": "1, 2, 7", "cpu_kernels": "abc"}


def test_a_gpu_has_no_threads_that_change_its_results(toy_corpus: Path) -> None:
    gpus = [replace(NODE, device=name, kernels={"gpu_kernels": "triton 9"}) for name in ("H200", "A100")]
    assert plan_of(build(toy_corpus, ranks=2), *gpus).hardware == {"device": "A100, H200", "gpu_kernels": "triton 9"}


@pytest.mark.parametrize(("fact", "parts"), [
    ({"probe": None}, ["two cannot see what rank 0 on one writes into run"]),
    ({"probe": "of another run"}, ["two cannot see"]),
    ({"settings": "other"}, ["two has a different preset, DeepSpeed JSON or dstransformer version than one"]),
    ({"corpus": "other"}, ["on two is not the same corpus as on one"]),
    ({"init": "other"}, ["--init", "on two is not the same bundle as on one"]),
    ({"refused": {"bf16": "no flash attention"}}, ["two", "no flash attention"]),
    ({"memory": 2**20}, ["in 1 process on two", "model.d_model"]),
])  # fmt: skip
def test_a_fact_of_one_node_that_does_not_fit_is_refused(
    toy_corpus: Path, fact: dict[str, Any], parts: list[str]
) -> None:
    experiment = build(toy_corpus, ranks=2)
    with pytest.raises(ConfigError) as refusal:
        plan_of(experiment, NODE, replace(NODE, host="two", **fact))
    for part in parts:
        assert part in str(refusal.value)


def test_a_run_that_resumes_does_not_need_the_bundle_that_it_started_from(toy_corpus: Path) -> None:
    decide(build(toy_corpus, ranks=2), [replace(NODE, init="gone elsewhere"), NODE], stored())


def test_what_only_another_precision_lacks_is_not_refused(toy_corpus: Path) -> None:
    plan_of(build(toy_corpus), replace(NODE, refused={"fp32": "no flash attention"}))


def test_the_processes_of_a_node_share_its_memory(toy_corpus: Path) -> None:
    experiment = build(toy_corpus, ranks=2)
    small = replace(NODE, memory=300 * 10**6)  # each process builds 177 MB of weights
    plan_of(experiment, small, replace(small, host="two"))
    with pytest.raises(ConfigError, match="in 2 processes on one"):
        plan_of(experiment, small, small)


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
