"""Folders that this project writes, and what may not be written into them."""

from __future__ import annotations

from pathlib import Path

import pytest

from dstransformer.errors import UserError
from dstransformer.io.products import check_text_output, enclosing_product
from dstransformer.io.text import writing_lines


def fill(folder: Path, *names: str) -> Path:
    folder.mkdir(parents=True)
    for name in names:
        (folder / name).write_text("mine")
    return folder


@pytest.fixture
def products(tmp_path: Path) -> Path:
    fill(tmp_path / "corpus", "manifest.json", "tokenizer.model")
    run = fill(tmp_path / "run", "config.yaml", "metrics.jsonl")
    fill(run / "bundle", "model.safetensors", "config.yaml", "tokenizer.model", "provenance.json")
    fill(run / "checkpoints" / "step-00000004", "manifest.json")
    (run / "checkpoints" / "step-00000004" / "state").mkdir()
    fill(run / "checkpoints" / "step-00000006", "manifest.json")
    (run / "checkpoints" / "step-00000006" / "state").mkdir()
    fill(tmp_path / "plain", "text.de")
    fill(tmp_path / "ct2", "dstransformer.json", "model.bin", "tokenizer.model")
    fill(tmp_path / "hf", "model.safetensors")
    (tmp_path / "hf" / "config.json").write_text('{"model_type": "marian", "dstransformer": {"format_version": 1}}')
    fill(tmp_path / "another", "model.safetensors", "config.json")
    return tmp_path


@pytest.mark.parametrize(("place", "kind"), [
    ("corpus", "corpus"),
    ("corpus/train", "corpus"),
    ("run", "run"),
    ("run/new", "run"),
    ("run/bundle/deep/er", "bundle"),
    ("run/checkpoints", "checkpoints"),
    ("run/checkpoints/step-00000004/state", "checkpoint"),
    ("run/checkpoints/step-00000006", "checkpoint"),
    ("ct2", "export"),
    ("hf/deeper", "export"),
    ("another", None),
    ("plain", None),
])  # fmt: skip
def test_the_nearest_product_is_found(products: Path, place: str, kind: str | None) -> None:
    found = enclosing_product(products / place)
    assert (found and found[0]) == kind


@pytest.mark.parametrize(("output", "complaint"), [
    ("run/bundle/config.yaml", "lies inside the bundle"),
    ("run/bundle/new.de", "lies inside the bundle"),
    ("corpus/new.de", "lies inside the corpus"),
    ("run/checkpoints/step-00000004/new.de", "lies inside the checkpoint"),
    ("run/metrics.jsonl", "is a file of the run"),
    ("ct2/new.de", "lies inside the export"),
    ("hf/README.md", "lies inside the export"),
])  # fmt: skip
def test_text_output_into_a_product_is_refused(products: Path, output: str, complaint: str) -> None:
    path = products / output
    before = path.read_text() if path.exists() else None
    with pytest.raises(UserError, match=complaint), writing_lines(path, overwrite=True):
        pytest.fail("the block must not run")
    assert (path.read_text() if path.exists() else None) == before
    assert not list(path.parent.glob(".*"))


def test_a_run_folder_may_hold_translations(products: Path) -> None:
    check_text_output(products / "run" / "test.de")
    check_text_output(products / "plain" / "text.de")


def test_a_link_that_leads_back_to_itself_is_refused(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    one.symlink_to(other)
    other.symlink_to(one)
    with pytest.raises(UserError, match="one is a link that leads back to itself: remove it"):
        check_text_output(one)
