"""Data sets in the layouts of the hub, read through ``datasets`` from local copies."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from data_prep.cli import main
from data_prep.recipe.options import HubOptions
from data_prep.sources.opening import open_source
from dstransformer.data import Corpus
from dstransformer.errors import DataError, UserError

PAIRS = [(f"sentence {n}", f"Satz {n}") for n in range(9)]
PARTS = {"train": PAIRS[:6], "validation": PAIRS[6:8], "test": PAIRS[8:]}


def parquet(folder: Path, table: Callable[[list[tuple[str, str]]], pa.Table]) -> Path:
    """``SUBSET/SPLIT-00000-of-00001.parquet``, as the hub converts data sets."""
    folder.mkdir(parents=True)
    for split, pairs in PARTS.items():
        pq.write_table(table(pairs), folder / f"{split}-00000-of-00001.parquet")
    return folder


def translations(folder: Path) -> Path:
    return parquet(
        folder, lambda pairs: pa.table({"translation": pa.array([{"de": de, "en": en} for en, de in pairs])})
    )


def columns(folder: Path) -> Path:
    return parquet(
        folder,
        lambda pairs: pa.table(
            {
                "id": list(range(len(pairs))),
                "sentence_en": [en for en, _ in pairs],
                "sentence_de": [de for _, de in pairs],
            }
        ),
    )


def lines(folder: Path) -> Path:
    """``train.jsonl`` and others, as people upload them."""
    folder.mkdir(parents=True)
    for split, pairs in PARTS.items():
        (folder / f"{split}.jsonl").write_text("".join(json.dumps({"en": en, "de": de}) + "\n" for en, de in pairs))
    return folder


def configured(folder: Path) -> Path:
    """Subsets and splits of other names, which the README of the data set states."""
    folder.mkdir(parents=True)
    for split, pairs in zip(("train", "dev"), PARTS.values(), strict=False):
        text = "".join(json.dumps({"pair": {"en": en, "de": de}}) + "\n" for en, de in pairs)
        (folder / f"{split}.de-en.jsonl").write_text(text)
    files = "".join(f"  - split: {split}\n    path: {split}.de-en.jsonl\n" for split in ("train", "dev"))
    (folder / "README.md").write_text(f"---\nconfigs:\n- config_name: de-en\n  data_files:\n{files}---\n")
    return folder


def options(path: Path, **more: Any) -> HubOptions:
    return HubOptions(**{"name": "me/pairs", "src_lang": "en", "tgt_lang": "de", "hub_path": path, **more})


@pytest.mark.parametrize(("make", "more", "splits"), [
    (translations, {}, ("train", "validation", "test")),
    (translations, {"columns": "translation"}, ("train", "validation", "test")),
    (columns, {"columns": "sentence_en,sentence_de"}, ("train", "validation", "test")),
    (lines, {}, ("train", "validation", "test")),
    (lines, {"splits": "test,train"}, ("test", "train")),
    (configured, {"subset": "de-en", "splits": "train,dev", "columns": "pair"}, ("train", "validation")),
])  # fmt: skip
def test_layouts_of_the_hub_are_read(tmp_path: Path, make: Any, more: dict[str, str], splits: tuple[str, ...]) -> None:
    source = open_source(options(make(tmp_path / "data"), **more))
    assert list(source.splits) == ["train", "validation", "test"][: len(splits)]
    for stream, split in zip(source.splits.values(), splits, strict=True):
        found = [pair for table in stream() for pair in zip(*(c.to_pylist() for c in table.columns), strict=True)]
        assert found == PARTS[split]
    assert all(each.sha256 for each in source.info.inputs)
    assert source.info.name == "hub"


@pytest.mark.parametrize(("make", "more", "message"), [
    (translations, {"splits": "train,dev"}, r"data has no split 'dev'; it has train, validation, test: complete the"),
    (columns, {"columns": "en,de"}, r"data, train has no column 'en'; it has id, sentence_en, sentence_de: name"),
    (columns, {"columns": "sentence_en"}, "column 'sentence_en' holds no object with two languages"),
    (columns, {}, r"data, train has no column 'en'; it has id, sentence_en, sentence_de: correct --src-lang"),
    (configured, {"subset": "fr-en"}, r"cannot read .*data fr-en \(BuilderConfig 'fr-en' not found.*: check its name"),
    (lambda folder: folder, {}, "--hub-path .*data is not a folder"),
    (lines, {"valid_size": 2}, "has the split 'validation' for validation: leave it out of --splits"),
])  # fmt: skip
def test_what_a_data_set_lacks_is_one_line(tmp_path: Path, make: Any, more: dict[str, Any], message: str) -> None:
    with pytest.raises((DataError, UserError), match=message) as caught:
        list(open_source(options(make(tmp_path / "data"), **more)).splits["train"]())
    assert "\n" not in str(caught.value)


def test_without_the_hub_the_error_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="me/pairs"):
        open_source(options(tmp_path).model_copy(update={"hub_path": None, "offline": True, "cache_dir": tmp_path}))


@pytest.mark.slow
def test_a_corpus_is_built_with_held_out_pairs_and_records_its_files(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    text = [{"en": f"the word {n} is number {n * 7}", "de": f"das Wort {n} ist Nummer {n * 7}"} for n in range(300)]
    (data / "train.jsonl").write_text("".join(json.dumps(line) + "\n" for line in text))
    given = (
        f"build --source hub --name me/pairs --hub-path {data} --src-lang en --tgt-lang de --splits train --workers 1"
    )
    out = tmp_path / "corpus"
    assert main([*given.split(), "--valid-size", "20", "--vocab-size", "330", "--out", str(out)]) == 0
    manifest = Corpus.open(out).manifest
    assert (manifest.splits["train"].pairs, manifest.splits["validation"].pairs) == (280, 20)
    assert [file.name for file in manifest.sources[0].inputs] == ["train.jsonl"]
    assert main(["verify", str(out), "--inputs", str(data)]) == 0
