"""Holding sets out: buckets, chunks and interruptions do not change what is chosen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.data.prep import ENGLISH, GERMAN, build, contents, sentence
from support.tiers import combinations

from data_prep.stages import dedup, holdout
from data_prep.store import pairs
from data_prep.store.pairs import Chunk

RECIPE = """
src_lang: en
tgt_lang: de
sources:
  first: {source: files, src: a.en, tgt: a.de, valid_size: 30}
  second: {source: files, src: b.en, tgt: b.de, held_out: true, test_size: 20}
vocab: {vocab_size: 350}
"""


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    folder = tmp_path / "text"
    folder.mkdir()
    for name, begin in (("a", 0), ("b", 150)):  # the second repeats a part of the first
        for side, words in (("en", ENGLISH), ("de", GERMAN)):
            lines = (sentence(begin + number % 200, words) for number in range(300))
            (folder / f"{name}.{side}").write_text("".join(f"{line}\n" for line in lines))
    (folder / "two.yaml").write_text(RECIPE)
    return folder / "two.yaml"


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pairs, "_BATCH_ROWS", 10)


@pytest.mark.usefixtures("small_chunks")
def test_the_number_of_buckets_changes_nothing(recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert build(recipe, "--out", tmp_path / "one") == 0
    monkeypatch.setattr(dedup, "_BUCKET_ROWS", 20)
    assert dedup.bucket_bits(600) == 5
    assert build(recipe, "--out", tmp_path / "many") == 0
    assert contents(tmp_path / "many") == contents(tmp_path / "one")


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize(
    "interrupted", combinations(["_hash_chunk", "_drop_held_out"], first_tier={("_drop_held_out",)})
)
def test_an_interrupted_search_goes_on_from_its_chunks(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, interrupted: str
) -> None:
    assert build(recipe, "--out", tmp_path / "whole") == 0
    work = getattr(holdout, interrupted)

    def stop(search: holdout._Search, chunk: Chunk) -> object:
        if search.part == 1 and chunk.number == 5:
            raise KeyboardInterrupt
        return work(search, chunk)

    with monkeypatch.context() as patched:
        patched.setattr(holdout, interrupted, stop)
        assert build(recipe, "--out", tmp_path / "corpus") == 130
    left = sorted(tmp_path.glob("corpus.work/read.partial/chunks/*-1/*-000004"))
    assert left, "chunks of the second source stay"
    made = {path: path.stat().st_ino for path in left}
    seen: list[int] = []
    find = holdout._locate

    def locate(*given: Any) -> Any:
        seen.append(sum(path.exists() and path.stat().st_ino == inode for path, inode in made.items()))
        return find(*given)

    monkeypatch.setattr(holdout, "_locate", locate)
    assert build(recipe, "--out", tmp_path / "corpus") == 0
    assert contents(tmp_path / "corpus") == contents(tmp_path / "whole")
    assert seen[-1] == len(made), "and are not made again"
