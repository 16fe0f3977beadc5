"""The rows of Table 3: the paper's figures, the presets, and the same variations at other scales."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from dstransformer.config import load_config
from dstransformer.config.loading import PRESETS
from dstransformer.errors import ConfigError, UserError
from dstransformer.extras.paper.table3_rows import ROWS, SCALES, Row, differences, scale_row, select_rows
from dstransformer.model import parameter_count

BY_NAME = {row.name: row for row in ROWS}
MILLION = 1_000_000


def write(tree: dict[str, Any], path: Path) -> str:
    path.write_text(yaml.safe_dump(tree))
    return str(path)


def test_there_are_twenty_rows_as_in_the_paper() -> None:
    assert len({row.name for row in ROWS}) == 20
    assert [sum(row.group == group for row in ROWS) for group in ("base", "A", "B", "C", "D", "E", "big")] == [
        1, 4, 2, 7, 4, 1, 1
    ]  # fmt: skip


@pytest.mark.parametrize("row", [row for row in ROWS if row.parameters and row.name != "big"], ids=lambda row: row.name)
def test_parameter_counts_are_the_papers_to_the_million(row: Row) -> None:
    config = load_config(row.preset).model
    assert row.parameters is not None
    assert parameter_count(config, 40_960) / MILLION == pytest.approx(row.parameters, abs=0.53)
    # With a shared embedding of 41,008 to 41,208 rows, every count rounds to the paper's figure.
    for vocabulary in (41_008, 41_208):
        assert round(parameter_count(config, vocabulary) / MILLION) == row.parameters


def test_the_count_of_big_needs_a_smaller_vocabulary_than_the_other_rows() -> None:
    config = load_config("big").model
    assert round(parameter_count(config, 37_000) / MILLION) == 214
    assert round(parameter_count(config, 40_960) / MILLION) == 218
    fitting = {rows: round(parameter_count(config, rows) / MILLION) for rows in (35_360, 35_368, 36_344, 36_352)}
    assert fitting == {35_360: 212, 35_368: 213, 36_344: 213, 36_352: 214}
    assert round(parameter_count(load_config("base").model, 36_344) / MILLION) == 63


@pytest.mark.parametrize("path", sorted((PRESETS / "table3").glob("[a-e]_*.yaml")), ids=lambda path: path.stem)
def test_a_row_states_only_what_differs_from_base(path: Path) -> None:
    comment, extends, *rest = path.read_text().splitlines()
    assert comment.startswith(f"# Table 3, row ({path.stem[0].upper()}): ")
    assert extends == "extends: base"
    values = [line for line in rest if ": " in line]
    assert 1 <= len(values) <= 3
    config, base = load_config(f"table3/{path.stem}"), load_config("base")
    assert set(differences(config, base)) <= {"N", "d_model", "d_ff", "h", "d_k", "d_v", "P_drop", "ε_ls", "positions"}
    assert len(differences(config, base)) == len(values)


def test_rows_are_selected_by_group_and_by_name_in_the_papers_order() -> None:
    assert [row.name for row in select_rows(["big", "B", "base"])] == ["base", "b_d_k_16", "b_d_k_32", "big"]
    assert [row.name for row in select_rows(["c_layers_8", "c_layers_2"])] == ["c_layers_2", "c_layers_8"]
    assert len(select_rows([])) == 20
    with pytest.raises(UserError, match="--rows 'F'"):
        select_rows(["F"])


@pytest.mark.parametrize("scale", ["paper", "small"])
def test_all_rows_exist_at_each_scale(scale: str, tmp_path: Path) -> None:
    base = load_config(SCALES[scale])
    paper = load_config("base")
    for row in ROWS:
        config = load_config(write(scale_row(row, scale), tmp_path / "row.yaml"))
        wanted = load_config(row.preset)
        if row.name != "base":
            assert differences(config, base).keys() == differences(wanted, paper).keys()
        assert config.checkpoint.average_last == 1
        ratio = wanted.model.d_ff / paper.model.d_ff
        assert config.model.d_ff == base.model.d_ff * ratio
        assert config.training.max_updates == base.training.max_updates * wanted.training.max_updates // 100_000
        assert config.model.dropout == wanted.model.dropout
        assert config.model.num_heads == wanted.model.num_heads


def test_small_rows_scale_by_the_factors_of_the_paper(tmp_path: Path) -> None:
    config = load_config(write(scale_row(BY_NAME["c_layers_4"], "small", updates=70), tmp_path / "row.yaml"))
    assert (config.model.num_layers, config.training.max_updates) == (2, 70)
    config = load_config(write(scale_row(BY_NAME["c_d_model_1024"], "small"), tmp_path / "row.yaml"))
    assert (config.model.d_model, config.model.d_k, config.model.d_v) == (128, 16, 16)
    config = load_config(write(scale_row(BY_NAME["big"], "small", updates=70), tmp_path / "row.yaml"))
    assert (config.model.d_ff, config.training.max_updates, config.checkpoint.average_last) == (512, 210, 1)


def test_a_value_that_would_not_be_whole_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"c_layers_2: model.num_layers .*0.67"):
        scale_row(BY_NAME["c_layers_2"], "toy")


def test_a_row_that_would_equal_its_base_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"d_dropout_0.2: model.dropout .*0.0"):
        scale_row(BY_NAME["d_dropout_0.2"], "toy")


def test_a_preset_file_in_place_of_base_is_found_from_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.yaml").write_text("extends: table3/small\nmodel:\n  d_ff: 512\n")
    monkeypatch.chdir(tmp_path)
    tree = scale_row(BY_NAME["c_d_ff_1024"], "mine.yaml")
    (tmp_path / "elsewhere").mkdir()
    assert load_config(write(tree, tmp_path / "elsewhere" / "row.yaml")).model.d_ff == 256
