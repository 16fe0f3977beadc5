from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args

import pytest

from dstransformer.config import (
    Config,
    accumulation_steps,
    compose,
    fragment_names,
    load_config,
    offloads_optimizer,
    precision_of,
    preset_names,
    zero_stage,
)
from dstransformer.config.deepspeed_checks import OWNED
from dstransformer.config.schema import OPTIMIZERS, OptimizerConfig
from dstransformer.errors import ConfigError


def with_fragments(*names: str) -> Config:
    return load_config("base", ["batch.micro_batches=8", "optimizer.clip_norm=0.5"], names)


def write(path: Path, content: Any) -> str:
    path.write_text(json.dumps(content))
    return str(path)


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_stage_and_precision_come_from_the_fragments(stage: int, precision: str) -> None:
    composed = compose(with_fragments(f"zero{stage}", precision), 2)
    assert zero_stage(composed) == stage
    assert precision_of(composed) == precision
    assert not offloads_optimizer(composed)


def test_compose_adds_the_keys_that_the_experiment_owns() -> None:
    composed = compose(with_fragments("zero2", "bf16"), 4)
    assert composed["gradient_accumulation_steps"] == 2
    assert composed["train_batch_size"] == 8
    assert composed["train_micro_batch_size_per_gpu"] == 1
    assert composed["gradient_clipping"] == 0.5


@pytest.mark.parametrize(("stated", "composed"), [
    ({}, {"throughput": {"enabled": False}}),
    ({"timers": {}}, {"throughput": {"enabled": False}}),
    ({"timers": {"throughput": {"enabled": True}}}, {"throughput": {"enabled": True}}),
    ({"timers": {"throughput": {"synchronized": False}}}, {"throughput": {"synchronized": False}}),
])  # fmt: skip
def test_the_throughput_timer_is_off_unless_it_is_stated(
    tmp_path: Path, stated: dict[str, Any], composed: dict[str, Any]
) -> None:
    path = write(tmp_path / "mine.json", stated)
    assert compose(with_fragments("zero1", "bf16", path), 1)["timers"] == composed


def test_fragments_are_merged_deeply() -> None:
    composed = compose(with_fragments("zero2", "offload_optimizer", "bf16"), 1)
    assert zero_stage(composed) == 2
    assert offloads_optimizer(composed)


@pytest.mark.parametrize("name", fragment_names())
def test_no_packaged_fragment_states_an_owned_key_or_auto(name: str) -> None:
    stage = [] if name.startswith("zero") else ["zero3"]
    precision = [] if name in ("fp32", "bf16", "fp16") else ["bf16"]
    assert compose(load_config("base", (), [name, *stage, *precision]), 1)


@pytest.mark.parametrize("key", sorted(OWNED))
def test_an_owned_key_is_refused_naming_both_places(tmp_path: Path, key: str) -> None:
    path = write(tmp_path / "mine.json", {key: 3})
    with pytest.raises(ConfigError) as caught:
        compose(with_fragments(path), 1)
    assert path in str(caught.value)
    assert repr(key) in str(caught.value)
    assert OWNED[key] in str(caught.value)


@pytest.mark.parametrize(("content", "message"), [
    ({"bf16": True}, ': bf16 is true: write an object, such as {"enabled": true}'),
    ({"fp16": {"enabled": "yes"}}, ': fp16.enabled is "yes": write one of true, false'),
    ({"bf16": {"enabled": 1}}, ": bf16.enabled is 1: write one of true, false"),
    ({"bf16": {"enabled": "auto"}}, ': bf16.enabled is "auto": write one of true, false'),
    ({"zero_optimization": True}, ': zero_optimization is true: write an object, such as {"stage": 0}'),
    ({"zero_optimization": {"stage": "three"}}, ': zero_optimization.stage is "three": write one of 0, 1, 2, 3'),
    ({"zero_optimization": {"stage": 7}}, ": zero_optimization.stage is 7: write one of 0, 1, 2, 3"),
    ({"zero_optimization": {"stage": True}}, ": zero_optimization.stage is true: write one of 0, 1, 2, 3"),
    ({"zero_optimization": {"offload_optimizer": "cpu"}}, 'offload_optimizer is "cpu": write an object, such as'),
    ({"zero_optimization": {"offload_param": {"device": "gpu"}}}, 'offload_param.device is "gpu": write one of "cpu"'),
    ({"zero_optimization": {"reduce_bucket_size": "auto"}}, 'zero_optimization.reduce_bucket_size is "auto"'),
    ({"torch_autocast": {"enabled": True}}, "'torch_autocast.enabled', which has no effect"),
    ({"data_types": {"grad_accum_dtype": "bf16"}}, "'data_types.grad_accum_dtype', which has no effect"),
    ({"bf16": {"check_grad_overflow": False}}, "'bf16.check_grad_overflow', which has no effect"),
    ({"fp16": {"fp16_master_weights_and_grads": True}}, "'fp16.fp16_master_weights_and_grads', which has no effect"),
    ({"gradient_allreduce_op": "sum"}, 'gradient_allreduce_op to "sum": the gradient would not be'),
    ({"managed_gradient_accumulation": False}, "managed_gradient_accumulation to false: every micro-batch"),
    ({"zero_optimization": {"compute_grad_norm": False}}, "compute_grad_norm to false: gradients that are not finite"),
    ({"zero_optimization": {"offload_optimizer": {"ratio": 0.5}}}, "offload_optimizer.ratio to 0.5: checkpoints would"),
    ({"zero_optimization": {"offload_optimizer": {"super_offload": True}}}, "super_offload to true: checkpoints would"),
    ({"zero_optimization": {"round_robin_gradients": True}}, "round_robin_gradients to true"),
    ({"zero_optimization": {"zenflow": {"topk_ratio": 0.1}}}, "zenflow.topk_ratio to 0.1: updates would use gradients"),
    ({"zero_optimization": {"zenflow": {}}}, "zenflow to {}: updates would use gradients of earlier ones; remove it"),
    ({"bfloat16": {"enabled": True}}, "'bfloat16', a deprecated name: write 'bf16'"),
    ({"zero_optimization": {"cpu_offload": True}}, "cpu_offload', a deprecated name: write 'zero_opt"),
    ({"zero_optimization": {"cpu_offload_param": True}}, "cpu_offload_param', a deprecated name"),
    ('{"zero_optimizaton": {"stage": 2}}',
     "states 'zero_optimizaton', which DeepSpeed does not know: did you mean 'zero_optimization'?"),
    ('{"qqqqqqqq": 1}', "which DeepSpeed does not know: remove it"),
    ('{"wall_clock_breakdown": 7}', "wall_clock_breakdown is 7: write true or false"),
    ('{"communication_data_type": "fp7"}', 'communication_data_type is "fp7": write "fp32", "fp16" or "bf16"'),
    ("\xff", "not UTF-8; convert it"),
    ('{"timers": []}', "timers is []: write an object"),
    ("[1]", "holds a list, not a JSON object"),
])  # fmt: skip
def test_what_cannot_be_used_is_refused_with_the_place(tmp_path: Path, content: Any, message: str) -> None:
    path = tmp_path / "mine.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="latin-1")
    with pytest.raises(ConfigError) as caught:
        compose(with_fragments(str(path), "zero1", "fp32"), 1)
    assert str(path) in str(caught.value)
    assert message in str(caught.value)
    assert len(str(caught.value)) < 300 + len(str(path))


def test_their_usable_values_are_accepted(tmp_path: Path) -> None:
    zero = {"compute_grad_norm": True, "offload_optimizer": {"device": "cpu", "ratio": 1.0, "super_offload": False}}
    usable = {"gradient_allreduce_op": "mean", "managed_gradient_accumulation": True, "zero_optimization": zero}
    path = write(tmp_path / "mine.json", usable)
    assert offloads_optimizer(compose(with_fragments(path, "zero1", "fp32"), 1))


def test_a_section_without_enabled_states_no_precision(tmp_path: Path) -> None:
    path = write(tmp_path / "mine.json", {"fp16": {"loss_scale_window": 500}})
    with pytest.raises(ConfigError, match="state no precision"):
        compose(with_fragments("zero1", path), 1)
    assert precision_of(compose(with_fragments("zero1", "bf16", path), 1)) == "bf16"


def offload(part: str, device: str) -> dict[str, Any]:
    return {"zero_optimization": {part: {"device": device}}}


@pytest.mark.parametrize(("names", "content", "message"), [
    (["zero1", "zero2"], {}, "'zero_optimization.stage'"),
    (["bf16"], {}, ", bf16] state no ZeRO stage: add one of zero0, zero1, zero2, zero3"),
    (["offload_optimizer", "bf16"], {}, ", offload_optimizer, bf16] state no ZeRO stage"),
    (["zero3"], {}, ", zero3] state no precision: add one of fp32, bf16, fp16"),
    (["zero1", "bf16", "fp16"], {}, "enable both bf16 and fp16: choose one"),
    (["zero0", "fp32"], offload("offload_optimizer", "cpu"), "to cpu at ZeRO stage 0, which needs stage 1, 2 or 3"),
    (["zero0", "fp32"], offload("offload_param", "cpu"), "to cpu at ZeRO stage 0, which needs stage 3"),
    (["zero2", "fp32"], offload("offload_param", "cpu"), "to cpu at ZeRO stage 2, which needs stage 3"),
    (["zero3", "bf16"], offload("offload_optimizer", "nvme"), 'write zero_optimization.offload_optimizer.device "cpu"'),
])  # fmt: skip
def test_fragments_that_lack_or_contradict_something_are_refused(
    tmp_path: Path, names: list[str], content: Any, message: str
) -> None:
    path = write(tmp_path / "mine.json", content)
    with pytest.raises(ConfigError) as caught:
        compose(with_fragments(path, *names), 1)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("capability", "fragments"), [("zero", ["zero1", "fp32"]), ("offload", ["zero2", "fp32", "offload_optimizer"])]
)
def test_what_an_optimizer_cannot_do_is_refused(
    capability: str, fragments: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(OPTIMIZERS, "muon", OPTIMIZERS["muon"]._replace(zero=True, offload=True))
    config = load_config("base", ["optimizer.name=muon"], fragments)
    assert compose(config, 1)
    monkeypatch.setitem(OPTIMIZERS, "muon", OPTIMIZERS["muon"]._replace(**{capability: False}))
    with pytest.raises(ConfigError, match=rf"optimizer.name = muon, .*\[{', '.join(fragments)}\] "):
        compose(config, 1)


def test_every_optimizer_says_what_is_to_be_known_of_it() -> None:
    assert set(OPTIMIZERS) == set(get_args(OptimizerConfig.model_fields["name"].annotation))
    assert not OPTIMIZERS["muon"].offload, "DeepSpeed would update its matrices with Adam"


def test_offloading_to_none_is_allowed_at_any_stage(tmp_path: Path) -> None:
    path = write(tmp_path / "mine.json", offload("offload_optimizer", "none"))
    assert not offloads_optimizer(compose(with_fragments("zero0", "fp32", path), 1))


def test_automatic_micro_batches_are_one_for_each_process_until_memory_is_known() -> None:
    composed = compose(load_config("base", ["batch.micro_batches=auto"]), 4)
    assert (composed["train_batch_size"], composed["gradient_accumulation_steps"]) == (4, 1)


@pytest.mark.parametrize("value", ["0", "2.5", "true", "Auto", "null"])
def test_micro_batches_are_a_number_or_auto(value: str) -> None:
    with pytest.raises(ConfigError, match=r"batch.micro_batches"):
        load_config("base", [f"batch.micro_batches={value}"])


def test_micro_batches_must_divide_evenly_over_processes() -> None:
    assert [accumulation_steps(8, n) for n in (1, 2, 4, 8)] == [8, 4, 2, 1]
    for world_size, named in ((3, r"batch\.micro_batches = 8 .*3 processes"), (0, "0 processes"), (-2, "-2 processes")):
        with pytest.raises(ConfigError, match=named):
            accumulation_steps(8, world_size)


@pytest.mark.parametrize("preset", preset_names())
def test_every_preset_composes(preset: str) -> None:
    assert compose(load_config(preset), 1)


def test_a_size_in_scientific_notation_is_accepted(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text('{"zero_optimization": {"stage": 2, "reduce_bucket_size": 5e8}}')
    assert compose(with_fragments("bf16", str(path)), 1)


def test_a_missing_path_is_reported(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.json does not exist"):
        compose(with_fragments(str(tmp_path / "none.json")), 1)
    with pytest.raises(ConfigError, match=r"cannot read .*Is a directory"):
        compose(with_fragments(f"{tmp_path}/"), 1)


@pytest.mark.parametrize(
    ("fragments", "world_size", "message"),
    [
        (["zero1", "bf16", "bf16"], 1, "fragment 'bf16' is named twice"),
        (["zero1", ""], 1, "the name of a DeepSpeed fragment is empty"),
        (["zero1", "bf16"], 10**20, "more than 1,000,000"),
    ],
)
def test_slips_of_the_command_line_are_named(fragments: list[str], world_size: int, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        compose(load_config("toy", fragments=fragments), world_size)
