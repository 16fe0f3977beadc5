"""A width of heads that was inherited and no longer fits is a warning; one that was set is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from dstransformer.config import load_config, preset_names, width_warning


@pytest.mark.parametrize(("overrides", "warns"), [
    (["model.d_model=256"], True), (["model.d_model=256", "model.num_heads=8"], False),
    (["model.num_heads=2"], True), (["model.d_k=16"], False), ([], False),
])  # fmt: skip
def test_heads_that_no_longer_fit_are_a_warning(overrides: list[str], warns: bool) -> None:
    assert (width_warning(load_config("toy", overrides), "toy", overrides) is not None) == warns


def test_presets_of_the_package_cause_none_and_a_file_of_the_user_does(tmp_path: Path) -> None:
    assert [name for name in preset_names() if width_warning(load_config(name), name, [])] == []
    path = tmp_path / "mine.yaml"
    path.write_text("extends: toy\nmodel:\n  d_model: 256\n")
    warning = width_warning(load_config(path), path, [])
    assert warning is not None
    assert "set model.d_k and model.d_v too" in warning
