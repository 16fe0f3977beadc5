"""Converting DeepSpeed JSON of other programs, in the forms that DeepSpeed's and Hugging Face's documents show."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dstransformer.cli import main
from dstransformer.config import compose, load_config, precision_of, zero_stage
from dstransformer.config.deepspeed_checks import UNSUPPORTED, find_problems
from dstransformer.config.deepspeed_conversion import convert
from dstransformer.errors import ConfigError

HUGGING_FACE: dict[str, Any] = {
    "fp16": {"enabled": "auto", "loss_scale": 0, "initial_scale_power": 16, "hysteresis": 2},
    "optimizer": {"type": "AdamW", "params": {"lr": "auto", "betas": [0.9, 0.98], "eps": 1e-9, "weight_decay": 0.01}},
    "scheduler": {
        "type": "WarmupDecayLR",
        "params": {"warmup_min_lr": "auto", "warmup_max_lr": 7e-4, "warmup_num_steps": 4000, "total_num_steps": 90000},
    },
    "zero_optimization": {
        "stage": 3,
        "offload_optimizer": {"device": "cpu", "pin_memory": True},
        "overlap_comm": True,
        "reduce_bucket_size": "auto",
    },
    "gradient_accumulation_steps": "auto",
    "gradient_clipping": 1.0,
    "steps_per_print": 2000,
    "train_batch_size": "auto",
    "train_micro_batch_size_per_gpu": "auto",
}


def test_what_remains_composes_and_the_rest_can_be_set(tmp_path: Path) -> None:
    converted = convert(HUGGING_FACE)
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(converted.fragment))
    config = load_config("base", converted.settings, [str(path), "bf16"])
    assert (config.optimizer.beta2, config.optimizer.eps, config.optimizer.weight_decay) == (0.98, 1e-9, 0.01)
    assert (config.schedule.kind, config.schedule.warmup_steps, config.schedule.peak) == ("linear", 4000, 7e-4)
    assert (config.training.max_updates, config.training.log_every) == (90000, 2000)
    assert (config.optimizer.name, config.optimizer.clip_norm) == ("adam", 1.0)
    complete = compose(config, 8)
    assert (zero_stage(complete), precision_of(complete)) == (3, "bf16")
    assert complete["zero_optimization"]["offload_optimizer"]["pin_memory"] is True


def test_every_entry_is_kept_or_set_or_noted() -> None:
    converted = convert({**HUGGING_FACE, "elasticity": {"enabled": True}, "checkpoint": {}, "unheard_of": 1})
    said = "\n".join(converted.notes)
    for name in ("scheduler", "gradient_accumulation_steps", "train_batch_size", "train_micro_batch_size_per_gpu",
                 "zero_optimization.reduce_bucket_size", "fp16.enabled", "elasticity", "checkpoint", "unheard_of",
                 "no precision"):  # fmt: skip
        assert name in said
    assert HUGGING_FACE["fp16"]["enabled"] == "auto", "the given object is unchanged"


@pytest.mark.parametrize(("content", "fragment", "note"), [
    ({"bfloat16": {"enabled": True}}, {"bf16": {"enabled": True}}, "bfloat16: its name is bf16 now"),
    ({"zero_optimization": {"stage": 2, "cpu_offload": True}},
     {"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}}, "cpu_offload: its name is offload"),
    ({"optimizer": {"type": "Lamb", "params": {"lr": 1.0}}}, {}, "optimizer: Lamb is left out: this trainer has"),
    ({"optimizer": {"type": "Muon", "params": {"muon_lr": 0.02}}}, {}, "optimizer: muon_lr left out"),
    ({"scheduler": {"type": "OneCycle"}}, {}, "scheduler: OneCycle is left out"),
    ({"optimizer": 3, "scheduler": []}, {}, "optimizer: it is left out"),
    ({"gradient_accumulation_steps": 4}, {}, "set batch.micro_batches to 4 times the number of processes"),
    ({"zero_optimization": True}, {}, "zero_optimization is left out: not an object"),
    ({}, {}, "it states no ZeRO stage"),
    ({"fp16": {"enabled": True, "loss_scale": 0}, "bf16": {"enabled": True}}, {"bf16": {"enabled": True}},
     "fp16 is left out: bf16 is enabled too"),
    ({"fp16": {"enabled": True}, "bfloat16": {"enabled": False}},
     {"fp16": {"enabled": True}, "bf16": {"enabled": False}}, "its name is bf16 now"),
    ({"zero_optimization": {"stage": 2, "offload_param": {"device": "cpu"}}}, {"zero_optimization": {"stage": 2}},
     "zero_optimization.offload_param is left out: it needs ZeRO stage 3"),
    ({"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "nvme"}}}, {"zero_optimization": {"stage": 3}},
     "zero_optimization.offload_optimizer is left out: checkpoints hold no files on NVMe"),
])  # fmt: skip
def test_forms_of_other_programs(content: dict[str, Any], fragment: dict[str, Any], note: str, tmp_path: Path) -> None:
    converted = convert(content)
    assert converted.fragment == fragment
    assert any(note in line for line in converted.notes)
    assert not find_problems(converted.fragment)
    path = tmp_path / "fragment.json"
    path.write_text(json.dumps(converted.fragment))
    beside = [] if "stage" in fragment.get("zero_optimization", {}) else ["zero1"]
    beside += [] if {"bf16", "fp16"} & set(fragment) else ["bf16"]
    compose(load_config("base", [], [str(path), *beside]), 1)  # nothing that it has is refused


def test_muon_of_deepspeed_is_muon_here() -> None:
    params = {"momentum": 0.9, "adam_lr": 3e-4, "muon_lr": 0.02, "weight_decay": 0.1, "betas": [0.9, 0.95]}
    config = load_config("base", convert({"optimizer": {"type": "Muon", "params": params}}).settings)
    optimizer = config.optimizer
    assert (optimizer.name, optimizer.momentum, optimizer.muon_rate) == ("muon", 0.9, 1.0)
    assert (optimizer.beta2, optimizer.weight_decay, config.schedule.peak) == (0.95, 0.1, 3e-4)


def test_all_that_cannot_be_used_is_named_at_once_with_the_command_that_converts(tmp_path: Path) -> None:
    path = tmp_path / "theirs.json"
    path.write_text(json.dumps(HUGGING_FACE))
    with pytest.raises(ConfigError) as caught:
        compose(load_config("base", (), [str(path)]), 1)
    said = str(caught.value)
    assert said.startswith(f'{path} has 9 entries that cannot be used as they are: fp16.enabled ("auto"), optimizer (')
    assert f"`dst ds-config --from {path}` converts the file" in said
    assert "\n" not in said


@pytest.mark.parametrize("section", sorted(set(UNSUPPORTED) - {"seq_parallel_communication_data_type"}))
def test_a_section_that_would_do_nothing_or_harm_is_refused_unless_it_is_off(tmp_path: Path, section: str) -> None:
    path = tmp_path / "mine.json"
    path.write_text(json.dumps({section: {"enabled": True}}))
    with pytest.raises(ConfigError, match=f"'{section}'"):
        compose(load_config("base", (), ["zero1", "bf16", str(path)]), 1)
    path.write_text(json.dumps({section: {"enabled": False}}))
    assert compose(load_config("base", (), ["zero1", "bf16", str(path)]), 1)


def test_so_is_a_precision_for_sequence_parallelism(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text('{"seq_parallel_communication_data_type": "bf16"}')
    with pytest.raises(ConfigError, match="sequence parallelism"):
        compose(load_config("base", (), ["zero1", "bf16", str(path)]), 1)


def test_the_command_prints_the_fragment_and_says_the_rest(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "theirs.json"
    path.write_text(json.dumps(HUGGING_FACE))
    assert main(["ds-config", "--from", str(path)]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["zero_optimization"]["stage"] == 3
    assert (
        "use with: --set optimizer.name=adam optimizer.beta1=0.9 optimizer.beta2=0.98 optimizer.eps=1.0e-09"
        in printed.err
    )
    assert main(["ds-config", "base", "--from", str(path)]) == 2
    assert "converts that file alone" in capsys.readouterr().err
