from __future__ import annotations

from pathlib import Path

import pytest

from dstransformer.config import load_config
from dstransformer.corpus import Corpus
from dstransformer.model import parameter_count
from dstransformer.training.estimate import bytes_per_parameter, estimate


@pytest.mark.parametrize(("changes", "millions"), [
    ([], 65),
    (["model.d_k=16"], 58),
    (["model.d_k=32"], 60),
    (["model.num_layers=2"], 36),
    (["model.num_layers=4"], 50),
    (["model.num_layers=8"], 80),
    (["model.d_model=256", "model.d_k=32", "model.d_v=32"], 28),
    (["model.d_model=1024", "model.d_k=128", "model.d_v=128"], 168),
    (["model.d_ff=1024"], 53),
    (["model.d_ff=4096"], 90),
])  # fmt: skip
def test_the_parameter_counts_of_table_3(changes: list[str], millions: int) -> None:
    config = load_config("base", changes).model
    assert parameter_count(config, 40_960) == pytest.approx(millions * 1e6, abs=0.75e6)


def test_base_with_37000_rows_has_63_million() -> None:
    assert parameter_count(load_config("base").model, 37_000) == pytest.approx(63e6, abs=0.5e6)


@pytest.mark.parametrize(("half", "expected"), [
    (True, [16.0, 4.0 + 12 / 8, 2.0 + 14 / 8, 2.0]),
    (False, [16.0, 8.0 + 8 / 8, 4.0 + 12 / 8, 2.0]),
])  # fmt: skip
def test_memory_by_stage(half: bool, expected: list[float]) -> None:
    assert [bytes_per_parameter(stage, 8, half) for stage in range(4)] == expected


def test_the_estimate_counts_the_corpus(toy_corpus: Path) -> None:
    corpus = Corpus.open(toy_corpus)
    config = load_config("toy", ["batch.src_tokens=600", "batch.tgt_tokens=600", "training.max_updates=100"])
    figures = estimate(config, corpus, 2, half_precision=False)
    info = corpus.manifest.splits["train"]
    assert figures.pairs == info.pairs
    assert figures.src_tokens_per_update * figures.updates_per_epoch == pytest.approx(info.src_tokens + info.pairs)
    assert figures.tgt_tokens_per_update <= 600
    assert figures.epochs == pytest.approx(100 / figures.updates_per_epoch)
    assert figures.accumulation_steps == 1
