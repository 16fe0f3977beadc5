"""Folders that this project writes, and what may not be written into them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dstransformer.errors import ConfigError, DataError, UserError
from dstransformer.io.products import (
    Kind,
    check_bundle_folder,
    check_kind,
    check_run_folder,
    check_text_output,
    enclosing_product,
    write_marker,
)
from dstransformer.io.text import writing_lines


def fill(folder: Path, *names: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).write_text("mine")
    return folder


def make(folder: Path, kind: Kind, *names: str, **more: str) -> Path:
    write_marker(fill(folder, *names), kind, **more)
    return folder


@pytest.fixture
def products(tmp_path: Path) -> Path:
    make(tmp_path / "corpus", "corpus")
    run = make(tmp_path / "run", "run", "metrics.jsonl")
    make(run / "bundle", "bundle", "config.yaml")
    make(run / "checkpoints" / "step-00000004", "checkpoint")
    fill(tmp_path / "plain", "text.de")
    make(tmp_path / "export", "export", "README.md", tool="hf")
    another = fill(tmp_path / "another", "model.safetensors", "config.yaml", "manifest.json", ".lock")
    (another / "dst.json").write_text('{"kind": ["bundle"]}')
    return tmp_path


@pytest.mark.parametrize(("place", "kind"), [
    ("corpus", "corpus"),
    ("corpus/train", "corpus"),
    ("run", "run"),
    ("run/new", "run"),
    ("run/bundle/deep/er", "bundle"),
    ("run/checkpoints", "checkpoints"),
    ("run/checkpoints/step-00000004/state", "checkpoint"),
    ("export/deeper", "export"),
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
    ("run/dst.json", "is a file of the run"),
    ("export/README.md", "lies inside the export"),
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


def test_a_folder_is_of_one_kind_and_a_known_format(tmp_path: Path) -> None:
    run = make(tmp_path / "run", "run")
    assert check_kind(run, "run", "name a run")["format"] == 1
    for content, complaint in (
        ('{"kind": "corpus", "format": 1}', f"{run} is a corpus, not a run: name a run"),
        ('{"kind": "run", "format": 2}', f"{run}/dst.json has format version 2"),
        ('{"kind": "run", "format": true}', f"{run}/dst.json is damaged"),
        ('{"kind": "novel", "format": 1}', f"{run}/dst.json is damaged"),
        ("{", f"{run}/dst.json is damaged"),
        (None, f"{run} is not a run: it has no dst.json; name a run"),
    ):
        (run / "dst.json").unlink() if content is None else (run / "dst.json").write_text(content)
        with pytest.raises(DataError, match=re.escape(complaint)):
            check_kind(run, "run", "name a run")


def make_bundle(folder: Path) -> Path:
    return make(folder, "bundle", "model.safetensors", "config.yaml", "tokenizer.model", "provenance.json")


def make_checkpoint(run: Path) -> Path:
    make(run, "run", ".lock")
    checkpoint = make(run / "checkpoints" / "step-00000004", "checkpoint")
    make_bundle(checkpoint / "bundle")
    return checkpoint


@pytest.mark.parametrize("names", [None, [], [".lock"], ["lost+found", "slurm-7.log"]])
def test_a_run_may_use_a_new_an_empty_or_its_own_folder(tmp_path: Path, names: list[str] | None) -> None:
    run = tmp_path / "runs" / "new"
    if names is not None:
        fill(run, *names)
    check_run_folder(run)
    check_run_folder(make(tmp_path / "runs" / "mine", "run", "metrics.jsonl", "notes.txt"))


@pytest.mark.parametrize("name", ["metrics.jsonl", "config.yaml", "tracking.json"])
def test_a_folder_in_place_of_a_run_file_is_refused(tmp_path: Path, name: str) -> None:
    fill(tmp_path, ".lock")
    (tmp_path / name).mkdir()
    with pytest.raises(ConfigError, match=f"{name} in it is a folder, but a run needs a file there: move it"):
        check_run_folder(tmp_path)


def test_a_run_refuses_a_folder_with_other_files(tmp_path: Path) -> None:
    home = fill(tmp_path / "home", "thesis.tex", "cat.jpg", "a", "b")
    with pytest.raises(
        ConfigError, match=r"not a run folder and not empty \(a, b, cat.jpg …\): choose a new or empty folder"
    ):
        check_run_folder(home)


def test_a_run_refuses_folders_in_corpora_bundles_and_checkpoints(tmp_path: Path) -> None:
    corpus = make(tmp_path / "corpus", "corpus")
    checkpoint = make_checkpoint(tmp_path / "run")
    bundle = make_bundle(tmp_path / "bundle")
    checkpoints = checkpoint.parent
    for folder, owner in (
        (corpus, "it is a corpus"),
        (corpus / "runs" / "new", f"{corpus} is a corpus"),
        (bundle / "new", f"{bundle} is a bundle"),
        (bundle, "it is a bundle"),
        (checkpoints, "it is the checkpoints of a run"),
        (checkpoints / "new", f"{checkpoints} is the checkpoints of a run"),
        (checkpoint / "new", f"{checkpoint} is a checkpoint"),
    ):
        with pytest.raises(ConfigError, match=f"--run {folder}: {owner}"):
            check_run_folder(folder)


def test_a_link_into_a_corpus_counts_as_the_corpus(tmp_path: Path) -> None:
    corpus = make(tmp_path / "corpus", "corpus")
    (tmp_path / "runs").symlink_to(corpus)
    with pytest.raises(ConfigError, match="is a corpus"):
        check_run_folder(tmp_path / "runs" / "new")


def test_a_bundle_is_replaced_only_when_asked(tmp_path: Path) -> None:
    bundle = make_bundle(tmp_path / "bundle")
    for free in (tmp_path / "new", fill(tmp_path / "empty")):
        check_bundle_folder(free, "--out", overwrite=False)
    with pytest.raises(DataError, match="already exists: choose another --out, or replace it with --overwrite"):
        check_bundle_folder(bundle, "--out", overwrite=False)
    check_bundle_folder(bundle, "--out", overwrite=True)
    fill(bundle, "notes.txt")
    with pytest.raises(DataError, match=r"holds notes\.txt, which is not part of a bundle"):
        check_bundle_folder(bundle, "--out", overwrite=True)


def test_overwrite_replaces_nothing_but_a_bundle(tmp_path: Path) -> None:
    corpus = make(tmp_path / "corpus", "corpus")
    checkpoint = make_checkpoint(tmp_path / "run")
    for folder in (corpus, corpus / "new", checkpoint / "bundle", checkpoint, checkpoint.parent / "new"):
        with pytest.raises(DataError, match=f"--out {folder}: "):
            check_bundle_folder(folder, "--out", overwrite=True)
    with pytest.raises(DataError, match="is not a bundle and not empty: choose another folder"):
        check_bundle_folder(tmp_path / "run", "--out", overwrite=True)
    check_bundle_folder(tmp_path / "run" / "bundle", "--out", overwrite=False)


@pytest.mark.parametrize("name", ["checkpoints", "bundle"])
def test_a_file_where_a_run_needs_a_folder_is_refused(tmp_path: Path, name: str) -> None:
    run = make(tmp_path / "run", "run", name)
    with pytest.raises(ConfigError, match=f"{name} in it is a file, but a run needs a folder there: move it"):
        check_run_folder(run)


def test_a_run_refuses_a_bundle_that_holds_a_users_file(tmp_path: Path) -> None:
    run = make(tmp_path / "run", "run")
    fill(run / "bundle", "model.safetensors", "NOTES.txt")
    with pytest.raises(ConfigError, match=r"bundle in it holds NOTES\.txt, which a new bundle would replace: move it"):
        check_run_folder(run)


def test_broken_links_are_refused(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match="is a link that leads back to itself"):
        check_run_folder(tmp_path / "loop")
    with pytest.raises(ConfigError, match=r"is a link to .*nowhere, which does not exist: create that folder first"):
        check_run_folder(tmp_path / "dangling")
