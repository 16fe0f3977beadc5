"""Near duplicates, against brute force."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from support.data.prep import build, contents
from support.tiers import combinations

from data_prep.grammar.sentences import generate_pairs
from data_prep.recipe.options import CleanOptions
from data_prep.stages import clean, near_duplicates
from data_prep.stages.clean import clean_text
from data_prep.stages.near_duplicates import drop_near_duplicates, shingle
from data_prep.store import pairs as pairs_module
from data_prep.store.pairs import SCHEMA, Chunk, PairsWriter, iter_pairs, join_pairs
from dstransformer.data import Manifest
from dstransformer.errors import ConfigError
from dstransformer.io.progress import Progress

Pairs = list[tuple[str, str]]


def write_pairs(path: Path, pairs: Pairs, parts: list[int] | None = None) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with PairsWriter(path) as writer:
        sides = [src for src, _ in pairs], [tgt for _, tgt in pairs]
        writer.write(pa.table([*sides, parts or [0] * len(pairs), [False] * len(pairs)], names=SCHEMA.names[:4]))


def find(path: Path, pairs: Pairs, workers: int = 1, **options: object) -> list[int]:
    """The rows of the near duplicates; each row is a part of its own."""
    write_pairs(path, pairs, list(range(len(pairs))))
    given = CleanOptions.model_validate({"near_duplicates": 0.8} | options)
    root = path.parent / "root"
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir()
    found = drop_near_duplicates(path, root, len(pairs), given, workers, Progress())
    left = [row for file in found.files for batch in iter_pairs(file) for row in batch["part"].to_pylist()]
    dropped = np.flatnonzero(found.dropped).tolist()
    assert sorted(left + dropped) == list(range(len(pairs)))
    assert left == sorted(left)
    assert found.examples == [pairs[row] for row in dropped[:5]]
    return dropped


def draw(count: int, seed: int) -> Pairs:
    return [pair[:2] for pair in generate_pairs(count, seed)]


def with_near_duplicates(pairs: Pairs) -> Pairs:
    """The pairs, and every fifth again later, with a word of its source replaced."""
    changed = []
    for number, (src, tgt) in enumerate(pairs[::5]):
        words = src.split()
        words[number % len(words)] = "another"
        changed.append((" ".join(words), tgt))
    return pairs + changed


def brute_force(pairs: Pairs, options: CleanOptions) -> list[int]:
    sets = [set(shingle(f"{src}\n{tgt}", options)) for src, tgt in pairs]
    least = options.near_duplicates
    assert least is not None
    return [
        row for row, one in enumerate(sets) if any(least * len(one | other) <= len(one & other) for other in sets[:row])
    ]


def test_the_first_is_kept_and_case_does_not_count(tmp_path: Path) -> None:
    first = ("The old dog sleeps in the garden.", "Der alte Hund schläft im Garten.")
    pairs = [
        first,
        ("A cat!", "Eine Katze!"),
        ("The old dog sleeps in the garden!", "Der alte Hund schläft im Garten!"),
        ("the OLD dog sleeps in the garden.", first[1]),
        ("The old dog sleeps in the garden.", "Die junge Katze sitzt vor dem Haus."),
        ("A cat.", "Die Katze"),
    ]
    assert find(tmp_path / "train.arrow", pairs) == [2, 3]
    assert find(tmp_path / "train.arrow", pairs, near_text="src") == [2, 3, 4]
    assert find(tmp_path / "train.arrow", pairs, near_text="tgt") == [2, 3]
    assert find(tmp_path / "train.arrow", pairs, near_duplicates=1.0) == [3]
    assert find(tmp_path / "train.arrow", pairs, near_shingles="words", near_size=1, near_duplicates=0.6) == [2, 3]


@pytest.mark.parametrize("threshold", [0.5, 0.8])
def test_no_pair_is_dropped_below_the_threshold_and_few_are_missed(tmp_path: Path, threshold: float) -> None:
    pairs = with_near_duplicates(draw(400, seed=3))
    options = CleanOptions(near_duplicates=threshold)
    wanted = brute_force(pairs, options)
    found = find(tmp_path / "train.arrow", pairs, near_duplicates=threshold)
    assert set(found) <= set(wanted)
    assert len(found) >= 0.97 * len(wanted)


def test_workers_and_buckets_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = with_near_duplicates(draw(3400, seed=4))
    one = find(tmp_path / "train.arrow", pairs)
    assert len(one) > 400
    monkeypatch.setattr(near_duplicates, "_BUCKET_ENTRIES", 900)
    monkeypatch.setattr(near_duplicates, "_MAX_LOOKUPS", 10)
    monkeypatch.setattr(pairs_module, "_MIN_BATCHES", 1)
    assert find(tmp_path / "train.arrow", pairs, workers=2) == one
    other = find(tmp_path / "train.arrow", pairs, near_seed=2)
    assert len(set(other) ^ set(one)) <= 0.03 * len(one)


@pytest.mark.parametrize(
    "interrupted", combinations(["_hash_chunk", "_pair_bucket", "_drop_similar"], first_tier={("_pair_bucket",)})
)
def test_an_interrupted_search_goes_on_from_its_chunks(
    tmp_path: Path, options: list[str], monkeypatch: pytest.MonkeyPatch, interrupted: str
) -> None:
    monkeypatch.setattr(pairs_module, "_BATCH_ROWS", 10)
    given = [*options, "--near-duplicates", "0.6"]
    assert build(*given, "--out", tmp_path / "whole") == 0
    work = getattr(near_duplicates, interrupted)

    def stop(search: object, task: Chunk | int) -> object:
        if (task if isinstance(task, int) else task.number) == 5:
            raise KeyboardInterrupt
        return work(search, task)

    with monkeypatch.context() as patched:
        patched.setattr(near_duplicates, interrupted, stop)
        assert build(*given, "--out", tmp_path / "corpus") == 130
    step = {"_hash_chunk": "hashed", "_pair_bucket": "paired", "_drop_similar": "distinct"}[interrupted]
    left = list(tmp_path.glob(f"corpus.work/clean.partial/chunks/*/{step}-00000[0-4]"))
    assert len(left) == 5
    made = {path: path.stat().st_ino for path in left}
    seen: list[bool] = []

    def join(files: Sequence[Path], target: Path, **how: bool) -> None:
        seen.append(all(path.exists() and path.stat().st_ino == inode for path, inode in made.items()))
        join_pairs(files, target, **how)

    monkeypatch.setattr(clean, "join_pairs", join)
    assert build(*given, "--out", tmp_path / "corpus") == 0
    assert seen == [True, True], "the chunks are not made again"
    assert contents(tmp_path / "corpus") == contents(tmp_path / "whole")
    assert Manifest.load(tmp_path / "corpus").cleaning.dropped["near_duplicate"] > 0


def test_cleaning_counts_them_keeps_examples_and_the_first_source_goes_first(tmp_path: Path) -> None:
    pairs = draw(20, seed=6)
    again = [(f"{src} ", f"{tgt} !") for src, tgt in pairs[:6]]
    write_pairs(tmp_path / "read" / "train.arrow", [*pairs, pairs[0], *again], [0] * 20 + [1] * 7)
    write_pairs(tmp_path / "read" / "validation.arrow", [pairs[0], (pairs[1][0], again[1][1])])
    (tmp_path / "clean").mkdir()
    options = CleanOptions(near_duplicates=0.7)
    report = clean_text(tmp_path / "read", tmp_path / "clean", options, [("en", "de")] * 2, 1, Progress())
    batches = list(iter_pairs(tmp_path / "clean" / "train.arrow"))
    kept = [pair for batch in batches for pair in zip(batch["src"].to_pylist(), batch["tgt"].to_pylist(), strict=True)]
    assert kept == pairs
    assert report.parts == (20, 0)
    assert report.cleaning.dropped["duplicate"] == 1
    assert report.cleaning.dropped["near_duplicate"] == 6
    assert report.cleaning.examples["near_duplicate"] == tuple((src.strip(), tgt) for src, tgt in again[:5])
    assert report.overlap["validation"].sentences == 2
    assert report.overlap["validation"].pairs == 2  # the one that left is nearly there


def test_without_the_package_nothing_is_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rensa", None)
    with pytest.raises(ConfigError, match=r"rensa.*dstransformer\[clean\]"):
        near_duplicates.load_minhash()


def test_details_are_refused_and_not_recorded_without_the_rule() -> None:
    with pytest.raises(ValueError, match="--near-text needs --near-duplicates"):
        CleanOptions(near_text="src")
    assert not any(name.startswith("near") for name in CleanOptions().record())
    assert CleanOptions(near_duplicates=0.8).record()["near_size"] == 5
