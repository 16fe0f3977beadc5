from __future__ import annotations

from pathlib import Path

import pytest

from dstransformer.config import load_config, preset_names, preset_summary, read_config, write_config
from dstransformer.errors import ConfigError


@pytest.mark.parametrize("preset", preset_names())
def test_every_preset_is_complete_and_described(preset: str) -> None:
    assert load_config(preset).training.max_updates > 0
    assert preset_summary(preset)


def test_base_holds_the_papers_values() -> None:
    config = load_config("base")
    model = config.model
    assert (model.num_layers, model.d_model, model.d_ff, model.num_heads, model.d_k, model.d_v) == (
        6,
        512,
        2048,
        8,
        64,
        64,
    )
    assert (model.dropout, config.loss.label_smoothing) == (0.1, 0.1)
    assert (config.optimizer.beta1, config.optimizer.beta2, config.optimizer.eps) == (0.9, 0.98, 1e-9)
    assert (config.schedule.warmup_steps, config.training.max_updates) == (4000, 100_000)
    assert (config.batch.src_tokens, config.batch.tgt_tokens) == (25_000, 25_000)
    assert (config.decoding.beam_size, config.decoding.length_penalty, config.decoding.max_extra_tokens) == (4, 0.6, 50)


def test_big_differs_where_the_paper_says() -> None:
    config = load_config("big")
    assert (config.model.d_model, config.model.d_ff, config.model.num_heads, config.model.dropout) == (
        1024,
        4096,
        16,
        0.3,
    )
    assert config.model.num_layers == 6
    assert (config.training.max_updates, config.checkpoint.average_last) == (300_000, 20)


def test_an_override_replaces_one_value() -> None:
    config = load_config("base", ["model.dropout=0.3", "optimizer.eps=1e-8", "tracking.uri=http://host:5000"])
    assert config.model.dropout == 0.3
    assert config.optimizer.eps == 1e-8
    assert config.tracking.uri == "http://host:5000"
    assert config.model.d_model == 512


def test_fragments_on_the_line_replace_the_presets() -> None:
    assert load_config("base", (), ["zero3", "fp16"]).deepspeed == ["zero3", "fp16"]


def test_a_preset_file_extends_a_preset(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("extends: big\nmodel:\n  dropout: 0.2\n")
    config = load_config(str(path))
    assert (config.model.d_model, config.model.dropout) == (1024, 0.2)


def test_the_resolved_config_reads_back_the_same(tmp_path: Path) -> None:
    config = load_config("base", ["optimizer.eps=1e-9"])
    write_config(config, tmp_path / "config.yaml")
    assert read_config(tmp_path / "config.yaml") == config


@pytest.mark.parametrize(("preset", "overrides", "message"), [
    ("bse", [], "unknown preset 'bse': did you mean 'base'"),
    ("none.yaml", [], "preset file none.yaml does not exist"),
    ("base", ["model.d_modl=3"], "no key 'model.d_modl'; did you mean 'model.d_model'"),
    ("base", ["d_model=3"], "no key 'd_model'"),
    ("base", ["model=3"], "'model' is a section"),
    ("base", ["model.d_model"], "not of the form section.key=value"),
    ("base", ["model.d_model=wide"], "model.d_model = 'wide': input should be a valid integer"),
    ("base", ["model.d_model=513"], "model.d_model = 513: input should be a multiple of 2"),
    ("base", ["model.dropout=1.0"], "model.dropout = 1.0: input should be less than 1"),
    ("base", ["model.dropout=.nan"], "model.dropout = nan"),
    ("base", ["model.norm=middle"], "model.norm = 'middle': input should be 'post' or 'pre'"),
    ("base", ["checkpoint.keep_last=2"], "average_last 5 is more than keep_last 2"),
])  # fmt: skip
def test_a_wrong_value_is_named(preset: str, overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(preset, overrides)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_unknown_key_of_a_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("extends: base\nmodel:\n  heads: 3\n")
    with pytest.raises(ConfigError, match=r"unknown key 'model\.heads'"):
        load_config(str(path))


def test_a_preset_that_extends_itself_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(f"extends: {path}\n")
    with pytest.raises(ConfigError, match="extends itself"):
        load_config(str(path))
