from __future__ import annotations

from pathlib import Path

import pytest
import yaml

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


@pytest.mark.parametrize(("preset", "like", "dropout", "average_last"), [
    ("base_en_fr", "base", 0.1, 5), ("big_en_fr", "big", 0.1, 20),
])  # fmt: skip
def test_french_differs_from_german_where_the_paper_says(
    preset: str, like: str, dropout: float, average_last: int
) -> None:
    french, german = load_config(preset), load_config(like)
    assert french == german.model_copy(update={"model": german.model.model_copy(update={"dropout": dropout})})
    assert (french.checkpoint.every_minutes, french.checkpoint.average_last) == (10.0, average_last)
    assert (french.decoding.beam_size, french.decoding.length_penalty) == (4, 0.6)


def test_an_override_replaces_one_value() -> None:
    config = load_config("base", ["model.dropout=0.3", "optimizer.eps=1e-8", "tracking.uri=http://host:5000"])
    assert config.model.dropout == 0.3
    assert config.optimizer.eps == 1e-8
    assert config.tracking.uri == "http://host:5000"
    assert config.model.d_model == 512


def test_fragments_on_the_command_line_replace_those_of_the_preset() -> None:
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


def test_a_preset_file_extends_one_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "y").mkdir()
    (tmp_path / "y" / "a.yaml").write_text("extends: b.yaml\nmodel:\n  dropout: 0.2\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"y/a.yaml .*y/b.yaml"):
        load_config("y/a.yaml")
    (tmp_path / "y" / "b.yaml").write_text("extends: ../c.yaml\n")
    (tmp_path / "c.yaml").write_text("extends: big\n")
    config = load_config("y/a.yaml")
    assert (config.model.d_model, config.model.dropout) == (1024, 0.2)
    (tmp_path / "c.yaml").write_text("extends: ./y/a.yaml\n")
    with pytest.raises(ConfigError, match=r"y/a.yaml -> y/b.yaml -> y/../c.yaml -> y/../y/a.yaml$"):
        load_config("y/a.yaml")


def test_a_stored_configuration_that_lacks_newer_keys_opens(tmp_path: Path) -> None:
    tree = load_config("toy").model_dump()
    del tree["decoding"]["batch_tokens"], tree["tracking"], tree["checkpoint"]["keep_best"]
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(tree))
    config, base = read_config(path), load_config("base")
    assert config.model == load_config("toy").model
    assert config.decoding.batch_tokens == base.decoding.batch_tokens
    assert (config.tracking, config.checkpoint.keep_best) == (base.tracking, base.checkpoint.keep_best)


@pytest.mark.parametrize(("key", "value"), [("experts", 8), ("source_end", False)])
def test_a_stored_configuration_with_an_unknown_key_is_refused(tmp_path: Path, key: str, value: object) -> None:
    tree = load_config("toy").model_dump()
    tree["model"][key] = value
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(tree))
    with pytest.raises(ConfigError, match=rf"'model\.{key}'"):
        read_config(path)


def test_a_key_that_left_may_be_stored_with_the_value_of_today(tmp_path: Path) -> None:
    tree = load_config("toy").model_dump()
    tree["model"]["source_end"] = True
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(tree))
    assert read_config(path) == load_config("toy")


@pytest.mark.parametrize(("text", "value"), [
    ("1e-9", 1e-9), ("1E-9", 1e-9), ("1.0e-9", 1e-9), ("2e+0", 2.0), (".5e0", 0.5), ("1.e0", 1.0),
])  # fmt: skip
def test_files_and_set_read_numbers_alike(tmp_path: Path, text: str, value: float) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(f"extends: base\noptimizer:\n  eps: {text}\n")
    assert load_config(str(path)).optimizer.eps == value
    assert load_config("base", [f"optimizer.eps={text}"]).optimizer.eps == value


def test_an_empty_section_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("extends: base\nmodel:\n  # dropout: 0.3\nloss:\n")
    assert load_config(str(path)) == load_config("base")


def test_a_date_is_read_as_text(tmp_path: Path) -> None:
    assert load_config("base", ["tracking.experiment=2026-11-22"]).tracking.experiment == "2026-11-22"


@pytest.mark.parametrize(("content", "message"), [
    ("extends: base\nmodel:\n  dropout: 0.1\n  d_ff: 8\n  dropout: 0.2\n", "line 5, column 3: repeated key 'dropout'"),
    ("extends: base\nmodel: {dropout: 0.1}\nmodel: {d_ff: 8}\n", "line 3, column 1: repeated key 'model'"),
    ("model:\n  dropout: 0.2\n", "add the line `extends: base`"),
    ("extends: base\nmodel: [\n", "line 3, column 1 is not valid YAML"),
    ("extends: base\nmodel: \x00\n", "is not valid YAML"),
    ("[" * 5000, "nested too deeply"),
    ("extends: base\ndeepspeed: zero1\n", "deepspeed = 'zero1': write a list, such as [zero1, bf16]"),
    ("extends: base\nmodell:\n  d_ff: 8\n", "unknown key 'modell', did you mean 'model'?"),
    ("extends: base\nmodel:\n  d_fff: 8\n", "unknown key 'model.d_fff', did you mean 'd_ff'?"),
    ("extends: base\n" + "".join(f"key{n}: 1\n" for n in range(99)), "and 97 more"),
    ("- model", "holds no configuration"),
    ("extends: base\nmodel: 5\n", "model = 5: it is a section, write its keys below it"),
    ("extends: [base]\n", "extends = ['base']: name one preset or file"),
    ("extends: base\n1: 2\n", "unknown key '1'"),
    ("extends: base\nmodel: !!python/object:os.system {}\n", "is not valid YAML"),
    ("extends: base\n---\nextends: big\n", "is not valid YAML: `---` begins a second document; keep one"),
    ("extends: base\ntraining:\n  dropout: 0.3\n", "unknown key 'training.dropout', did you mean 'model.dropout'?"),
    ("extends: base\nmodel:\n  d_ff: " + "x" * 9999, "model.d_ff = 'xxx"),
])  # fmt: skip
def test_unusable_files_are_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.yaml").write_text(content)
    with pytest.raises(ConfigError) as caught:
        load_config("mine.yaml")
    text = str(caught.value)
    assert message in text
    assert text.startswith(("mine.yaml", "preset 'mine.yaml'"))
    assert "\n" not in text
    assert len(text) < 350


@pytest.mark.parametrize(("override", "message"), [
    ("model.d_modl=3", "no key 'model.d_modl'; did you mean 'model.d_model'"),
    ("d_model=3", "no key 'd_model'"),
    ("model=3", "'model' is a section"),
    ("model.d_model", "not of the form section.key=value"),
    ("model.d_model=wide", "model.d_model = 'wide': input should be a valid integer"),
    ("model.d_model=513", "model.d_model = 513: input should be a multiple of 2"),
    ("model.dropout=1.0", "model.dropout = 1.0: must be less than 1"),
    ("model.dropout=.nan", "model.dropout = nan"),
    ("model.norm=middle", "model.norm = 'middle': input should be 'post' or 'pre'"),
    ("training.int8_weights=8", "training.int8_weights = 8: input should be a valid boolean"),
    ("checkpoint.keep_last=2", "average_last 5 is more than keep_last 2"),
    ("deepspeed=zero1", "name the DeepSpeed fragments with --ds, for example `--ds zero1 bf16`"),
    ("model.d_model.x=3", "'model.d_model' is a value and has no keys"),
    ("deepspeed.0=zero1", "'deepspeed' is a value and has no keys"),
    ("training.seed=" + "9" * 5000, "training.seed = '999"),
    ("training.seed=" + "x" * 5000, "training.seed = 'xxx"),
    ("x" * 5000, "is not of the form section.key=value"),
    ("x" * 5000 + "=3", "there is no key"),
    ("training.seed=[1", "is not valid YAML"),
    ("model.d_model={a: 1}", "model.d_model = {'a': 1}: input should be a valid integer"),
    ("tracking.uri=:::", "tracking.uri = {'::': None}: input should be a valid string"),
    ("training.seed={a: 1, a: 2}", "repeated key 'a'"),
    ("checkpoint.every_minutes=1:30", "checkpoint.every_minutes = '1:30': input should be a valid number"),
    ("training.dropout=0.3", "there is no key 'training.dropout'; did you mean 'model.dropout'?"),
])  # fmt: skip
def test_unusable_overrides_are_refused_in_one_line(override: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config("base", [override])
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 350


@pytest.mark.parametrize(
    ("preset", "message"),
    [
        ("bse", "unknown preset 'bse': did you mean 'base'"),
        ("none.yaml", "preset file none.yaml does not exist"),
        ("", "the name of the preset is empty"),
        ("base.yaml", "leave out the ending for the preset 'base' of the package"),
        ("mine", r"ends in \.yaml; rename it to mine\.yaml"),
        ("folder", r"it is a folder here; name a \.yaml file in it"),
        ("short", r"did you mean the file short\.yml\?"),
        ("tab.yaml", r"tab\.yaml, line 2, column 1 is not valid YAML: a tab; indent with spaces"),
    ],
)
def test_a_preset_that_cannot_be_found_is_answered_with_what_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, preset: str, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").touch()
    (tmp_path / "folder").mkdir()
    (tmp_path / "short.yml").touch()
    (tmp_path / "tab.yaml").write_text("model:\n\td_model: 8\n")
    with pytest.raises(ConfigError, match=message):
        load_config(preset)


def test_a_notebook_may_give_a_path_and_must_give_lists(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("extends: toy\n")
    assert load_config(tmp_path / "mine.yaml") == load_config("toy")
    with pytest.raises(ConfigError, match=r"overrides .*'a.b=1'"):
        load_config("toy", "a.b=1")
    with pytest.raises(ConfigError, match="overrides holds 3"):
        load_config("toy", [3])  # type: ignore[list-item]
