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
    (fill(tmp_path / "damaged") / "dst.json").write_text('{"kind": "corp')
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
    ("damaged/new.de", r"damaged/dst.json is damaged"),
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
    with pytest.raises(UserError, match="one is a link"):
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


def test_a_run_refuses_folders_of_other_things(tmp_path: Path) -> None:
    corpus = make(tmp_path / "corpus", "corpus")
    checkpoint = make_checkpoint(tmp_path / "run")
    checkpoints, bundle = checkpoint.parent, make_bundle(tmp_path / "bundle")
    loop, dangling, link = (tmp_path / name for name in ("loop", "dangling", "link"))
    for path, target in ((loop, loop), (dangling, tmp_path / "nowhere"), (link, corpus)):
        path.symlink_to(target)
    for folder, named in (
        (fill(tmp_path / "home", "thesis.tex", "cat.jpg", "a", "b"), r"\(a, b, cat.jpg …\)"),
        (corpus, "corpus"),
        (corpus / "runs" / "new", str(corpus)),
        (link / "new", str(corpus)),
        (bundle / "new", str(bundle)),
        (bundle, "bundle"),
        (checkpoints, "checkpoints of a run"),
        (checkpoints / "new", f"{checkpoints} "),
        (checkpoint / "new", f"{checkpoint} "),
        (loop, "is a link"),
        (dangling, "nowhere"),
    ):
        with pytest.raises(ConfigError, match=rf"--run {folder}.*{named}"):
            check_run_folder(folder)


@pytest.mark.parametrize(
    "name", ["metrics.jsonl/", "config.yaml/", "tracking.json/", "checkpoints", "bundle", "bundle/NOTES.txt"]
)
def test_what_lies_in_the_place_of_a_file_or_folder_of_a_run_is_named(tmp_path: Path, name: str) -> None:
    run = make(tmp_path / "run", "run")
    place = run / name
    place.parent.mkdir(exist_ok=True)
    place.mkdir() if name.endswith("/") else place.touch()
    with pytest.raises(ConfigError, match=f"--run {run}: .*{place.name}"):
        check_run_folder(run)


def test_a_bundle_is_replaced_only_when_asked(tmp_path: Path) -> None:
    bundle = make_bundle(tmp_path / "bundle")
    for free in (tmp_path / "new", fill(tmp_path / "empty")):
        check_bundle_folder(free, "--out", overwrite=False)
    with pytest.raises(DataError, match=str(bundle)):
        check_bundle_folder(bundle, "--out", overwrite=False)
    check_bundle_folder(bundle, "--out", overwrite=True)
    fill(bundle, "notes.txt")
    with pytest.raises(DataError, match=r"notes\.txt"):
        check_bundle_folder(bundle, "--out", overwrite=True)


def test_overwrite_replaces_nothing_but_a_bundle(tmp_path: Path) -> None:
    corpus = make(tmp_path / "corpus", "corpus")
    checkpoint = make_checkpoint(tmp_path / "run")
    run = tmp_path / "run"
    for folder in (corpus, corpus / "new", checkpoint / "bundle", checkpoint, checkpoint.parent / "new", run):
        with pytest.raises(DataError, match=f"--out {folder}"):
            check_bundle_folder(folder, "--out", overwrite=True)
    check_bundle_folder(run / "bundle", "--out", overwrite=False)
