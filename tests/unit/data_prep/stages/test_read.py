from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from data_prep.recipe.options import SOURCES, DividedOptions, FilesOptions
from data_prep.sources import Source
from data_prep.sources.opening import Part, open_parts
from data_prep.stages.clean import normalise
from data_prep.stages.read import ReadReport, read_text
from data_prep.store.pairs import iter_pairs, text_table
from dstransformer.data import SourceInfo
from dstransformer.errors import UserError
from dstransformer.io.progress import Progress

NOTHING = FilesOptions(src_lang="en", tgt_lang="de", valid_size=3, test_size=2)

Splits = dict[str, list[tuple[str, str]]]


def read(folder: Path, lines: list[tuple[str, str]], **changes: int) -> tuple[ReadReport, Splits]:
    train = folder / "train.tsv"
    train.write_text("".join(f"{src}\t{tgt}\n" for src, tgt in lines))
    options = NOTHING.model_copy(update={"train": (train,), **changes})
    report = read_text(open_parts({"files": options}), folder, workers=1, progress=Progress())
    splits = {
        split: [
            p
            for b in iter_pairs(folder / f"{split}.arrow")
            for p in zip(*(c.to_pylist() for c in b.columns[:2]), strict=True)
        ]
        for split in report.pairs
    }
    assert {path.stem for path in folder.glob("*.arrow")} == set(splits)
    return report, splits


words = st.sampled_from(["a", "b ", "b", "c", "ﬁ", "fi", "d", "e", "f", "g", "h", ""])


@settings(deadline=None, max_examples=30)
@given(st.lists(st.tuples(words, words), min_size=1, max_size=40), st.integers(0, 9))
@example([(src, "") for src in "abcdef"] + [(src, "x") for src in "abcdef"], 0)
def test_held_out_pairs_share_no_source_with_training(lines: list[tuple[str, str]], seed: int) -> None:
    distinct = {normalise(src, "nfkc") for src, tgt in lines if src.strip() and tgt}
    with TemporaryDirectory() as folder:
        if len(distinct) <= 5:
            expected = "cannot hold 5 pairs" if distinct else "no training pair has text on both sides"
            with pytest.raises(UserError, match=expected):
                read(Path(folder), lines, seed=seed)
            return
        report, splits = read(Path(folder), lines, seed=seed)
    assert list(report.pairs) == ["train", "validation", "test"]
    assert report.pairs == {split: len(pairs) for split, pairs in splits.items()}
    assert (len(splits["validation"]), len(splits["test"])) == (3, 2)
    sources = {split: {normalise(src, "nfkc") for src, _ in pairs} for split, pairs in splits.items()}
    assert not sources["train"] & (sources["validation"] | sources["test"])
    assert not sources["validation"] & sources["test"]
    assert all(src.strip() and tgt for split in ("validation", "test") for src, tgt in splits[split])
    held_out = sources["validation"] | sources["test"]
    assert splits["train"] == [pair for pair in lines if normalise(pair[0], "nfkc") not in held_out]


def test_a_new_kind_of_source_has_its_held_out_set(tmp_path: Path) -> None:
    class NewOptions(DividedOptions):
        source: str = "new"
        src_lang: str = "en"
        tgt_lang: str = "de"

    tables = [text_table([f"source {n}" for n in range(50)], [f"target {n}" for n in range(50)])]
    source = Source(SourceInfo(name="new", revision=None, inputs=()), {"train": lambda: iter(tables)})
    part = Part("mine", NewOptions(valid_size=3, test_size=2), source)  # type: ignore[arg-type]
    report = read_text([part], tmp_path, workers=1, progress=Progress())
    assert report.pairs == {"train": 45, "validation": 3, "test": 2}


def test_only_the_toy_has_a_size_of_its_own_for_held_out_sets() -> None:
    """Every other source with such an option is one of which a set is held out."""
    sized = {name: model for name, model in SOURCES.items() if {"valid_size", "test_size"} & {*model.model_fields}}
    assert [name for name, model in sized.items() if not issubclass(model, DividedOptions)] == ["toy"]


def test_the_seed_chooses_what_is_held_out(tmp_path: Path) -> None:
    lines = [(f"source {n}", f"target {n}") for n in range(200)]
    chosen = []
    for number, seed in enumerate((1, 1, 2)):
        folder = tmp_path / str(number)
        folder.mkdir()
        chosen.append(read(folder, lines, seed=seed)[1]["validation"])
    assert chosen[0] == chosen[1] != chosen[2]
