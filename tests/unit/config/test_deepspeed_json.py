from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dstransformer.config import (
    Config,
    accumulation_steps,
    compose,
    fragment_names,
    load_config,
    offloads_optimizer,
    precision_of,
    zero_stage,
)
from dstransformer.config.deepspeed_json import OWNED
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


def test_the_experiment_adds_what_it_owns() -> None:
    composed = compose(with_fragments("zero2", "bf16"), 4)
    assert composed["gradient_accumulation_steps"] == 2
    assert composed["train_batch_size"] == 8
    assert composed["train_micro_batch_size_per_gpu"] == 1
    assert composed["gradient_clipping"] == 0.5


def test_fragments_are_merged_deeply() -> None:
    composed = compose(with_fragments("zero2", "offload_optimizer", "bf16"), 1)
    assert zero_stage(composed) == 2
    assert offloads_optimizer(composed)


def test_a_json_of_ones_own_is_taken(tmp_path: Path) -> None:
    path = write(tmp_path / "mine.json", {"zero_optimization": {"stage": 2}, "wall_clock_breakdown": True})
    assert compose(with_fragments(path, "bf16"), 1)["wall_clock_breakdown"] is True


@pytest.mark.parametrize("name", fragment_names())
def test_no_packaged_fragment_states_an_owned_key_or_auto(name: str) -> None:
    assert compose(load_config("base", (), [name]), 1)


@pytest.mark.parametrize("key", sorted(OWNED))
def test_an_owned_key_is_refused_naming_both_places(tmp_path: Path, key: str) -> None:
    path = write(tmp_path / "mine.json", {key: 3})
    with pytest.raises(ConfigError) as caught:
        compose(with_fragments(path), 1)
    assert path in str(caught.value)
    assert repr(key) in str(caught.value)
    assert OWNED[key] in str(caught.value)


def test_a_key_two_fragments_state_is_refused_naming_both() -> None:
    with pytest.raises(ConfigError, match=r"'zero2' and fragment 'zero1' both state 'zero_optimization.stage'"):
        compose(with_fragments("zero1", "zero2"), 1)


@pytest.mark.parametrize(("content", "message"), [
    ({"zero_optimization": {"reduce_bucket_size": "auto"}}, 'zero_optimization.reduce_bucket_size is "auto"'),
    ([1], "holds a list, not a JSON object"),
])  # fmt: skip
def test_a_fragment_that_cannot_be_used_is_refused(tmp_path: Path, content: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        compose(with_fragments(write(tmp_path / "mine.json", content)), 1)


def test_broken_json_and_unknown_names_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text("{")
    with pytest.raises(ConfigError, match="not readable JSON"):
        compose(with_fragments(str(path)), 1)
    with pytest.raises(ConfigError, match="unknown DeepSpeed fragment 'zero4': did you mean"):
        compose(with_fragments("zero4"), 1)


def test_both_half_precisions_are_refused() -> None:
    with pytest.raises(ConfigError, match="both bf16 and fp16"):
        precision_of(compose(with_fragments("bf16", "fp16"), 1))


def test_micro_batches_are_dealt_evenly_or_not_at_all() -> None:
    assert [accumulation_steps(8, n) for n in (1, 2, 4, 8)] == [8, 4, 2, 1]
    with pytest.raises(ConfigError, match=r"batch.micro_batches = 8 cannot be dealt to 3 processes.*=9"):
        accumulation_steps(8, 3)
