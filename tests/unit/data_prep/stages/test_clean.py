from __future__ import annotations

import unicodedata
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep.recipe.options import CleanOptions, NormalForm
from data_prep.stages.clean import clean_text, normalise
from data_prep.store.pairs import SCHEMA, PairsWriter, iter_pairs
from dstransformer.data import CleaningReport
from dstransformer.errors import DataError
from dstransformer.io.progress import Progress

Pairs = list[tuple[str, str]]


def write_pairs(path: Path, pairs: Pairs) -> None:
    with PairsWriter(path) as writer:
        sides = [src for src, _ in pairs], [tgt for _, tgt in pairs]
        writer.write(pa.table([*sides, [0] * len(pairs), [False] * len(pairs)], names=SCHEMA.names[:4]))


def read_pairs(path: Path) -> Pairs:
    return [
        pair for batch in iter_pairs(path) for pair in zip(*(c.to_pylist() for c in batch.columns[:2]), strict=True)
    ]


def clean(
    folder: Path, pairs: Pairs, workers: int = 1, languages: tuple[str, str] = ("en", "de"), **changes: object
) -> tuple[Pairs, CleaningReport]:
    (folder / "read").mkdir(parents=True)
    (folder / "clean").mkdir()
    write_pairs(folder / "read" / "train.arrow", pairs)
    options = {"max_words": 5, "max_ratio": 2.0} | changes
    report = clean_text(
        folder / "read",
        folder / "clean",
        CleanOptions(**options),
        [languages],
        workers=workers,
        progress=Progress(),
    )
    assert [path.name for path in (folder / "clean").iterdir()] == ["train.arrow"]
    return read_pairs(folder / "clean" / "train.arrow"), report.cleaning


def test_each_rule_drops_and_is_counted(tmp_path: Path) -> None:
    pairs = [
        ("one two", "eins zwei"),
        ("", "leer"),
        (" \t\u200b", "leer"),
        ("one two", "zwei  eins"),
        ("one two", "eins\u00a0zwei"),
        ("a b c d e f", "a b c d e"),
        ("a", "a b c d e"),
        ("a", "a b"),
        ("one two", "eins zwei"),
    ]
    kept, report = clean(tmp_path, pairs)
    assert kept == [("one two", "eins zwei"), ("one two", "zwei eins"), ("a", "a b")]
    assert report.dropped == {"empty": 2, "too_long": 1, "length_ratio": 1, "duplicate": 2}
    assert report.examples["too_long"] == (("a b c d e f", "a b c d e"),)
    assert report.examples["duplicate"] == (("one two", "eins zwei"), ("one two", "eins zwei"))
    assert (report.read, report.kept) == (len(pairs), 3)


def test_sides_without_anything_visible_are_empty(tmp_path: Path) -> None:
    pairs = [("▁", "▁"), ("\u200d", "\u200c"), ("a", "\u2800"), ("\u3164", "b"), ("a ▁ b", "c")]
    kept, report = clean(tmp_path, pairs)
    assert (kept, report.dropped["empty"]) == ([("a b", "c")], 4)


def test_what_is_written_keeps_what_a_reader_sees_and_rules_compare_folded_text(tmp_path: Path) -> None:
    pairs = [
        ("Hi!", "你好！"),
        ("Hi！", "你好!"),
        ("Hi\u061c!", "你\u2063好！"),
        ("１", "№\u00a01 ａ"),
        ("ﬁ", "fi"),
    ]
    kept, report = clean(tmp_path, pairs, drop_identical=True, drop_numbers=True)
    assert kept == [("Hi!", "你好！"), ("1", "№ 1 ａ")]
    assert (report.dropped["duplicate"], report.dropped["identical"]) == (2, 1)


def test_repeated_pairs_are_kept_without_dedup(tmp_path: Path) -> None:
    kept, report = clean(tmp_path, [("a", "b"), ("a", "b")], dedup=False)
    assert kept == [("a", "b"), ("a", "b")]
    assert report.dropped["duplicate"] == 0


def test_without_a_unicode_form_characters_are_kept(tmp_path: Path) -> None:
    kept, _ = clean(tmp_path, [("½ ﬁne\u00a0x", "a\x07b")], normalise="none")
    assert kept == [("½ ﬁne\u00a0x", "a b")]


def test_the_number_of_workers_changes_nothing(tmp_path: Path) -> None:
    pairs = [(f"the number {n % 3000}", f"die Zahl {n % 3000}") for n in range(5000)]
    one, report = clean(tmp_path / "one", pairs, workers=1)
    two, other = clean(tmp_path / "two", pairs, workers=2)
    assert one == two == pairs[:3000]
    assert report == other
    assert report.dropped["duplicate"] == 2000


def test_optional_rules_are_counted_only_when_they_are_on(tmp_path: Path) -> None:
    pairs = [("a 1", "b 2"), ("c", "c"), ("«d»", "„e“"), ("f", "ж")]
    kept, report = clean(tmp_path, pairs, drop_identical=True, drop_numbers=True, min_script=0.5, punctuation="moses")
    assert kept == [('"d"', '"e"')]
    assert report.dropped == {
        "empty": 0, "too_long": 0, "length_ratio": 0, "identical": 1, "script": 1, "numbers": 1, "duplicate": 0,
    }  # fmt: skip
    assert report.examples == {"identical": (("c", "c"),), "script": (("f", "ж"),), "numbers": (("a 1", "b 2"),)}


def test_cleaning_that_leaves_nothing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"2 .*empty 1, too_long 1"):
        clean(tmp_path, [("", ""), ("a a a a a a", "b")])


@settings(deadline=None)
@given(st.text(), st.sampled_from(["nfkc", "nfc", "none"]))
def test_normalising_is_idempotent_and_leaves_plain_text(text: str, form: NormalForm) -> None:
    once = normalise(text, form)
    assert normalise(once, form) == once
    assert "  " not in once
    assert once == once.strip(" ")
    assert not [c for c in once if unicodedata.category(c) == "Cc"]
