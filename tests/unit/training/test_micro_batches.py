"""What ``batch.micro_batches: auto`` becomes: the arithmetic, and what ranks with different devices agree on."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from dstransformer.config import compose, load_config
from dstransformer.data import Corpus
from dstransformer.errors import ConfigError
from dstransformer.model import parameter_count
from dstransformer.training.estimate import peak_memory_bytes, setup_peak_bytes
from dstransformer.training.micro_batches import (
    choose_micro_batches,
    fewest_micro_batches,
    max_micro_batches,
    settle_micro_batches,
    usable_of,
)
from dstransformer.training.setup import GIB, Setup


def build_setup(corpus: Path, world_size: int = 1, *changes: str) -> Setup:
    config = load_config("base", ["batch.micro_batches=auto", *changes], ["zero1", "bf16"])
    return Setup(config, compose(config, world_size), Corpus.open(corpus, verify=False), Path("run"), world_size)


@pytest.mark.parametrize(("usable", "world_size", "expected"), [
    (1000, 1, 1), (999, 1, 2), (505, 1, 2), (260, 1, 4), (133, 1, 8),
    (260, 2, 4), (260, 3, 6), (1000, 8, 8), (132, 1, None), (10, 8, None),
])  # fmt: skip
def test_it_is_the_smallest_multiple_of_the_processes_that_fits(
    usable: int, world_size: int, expected: int | None
) -> None:
    assert fewest_micro_batches(lambda number: 10 + 990 // number, usable, world_size, 8) == expected


def test_a_tenth_of_the_memory_and_a_gib_are_left_free() -> None:
    assert usable_of(80 * GIB) == 71 * GIB
    assert usable_of(GIB) == 1, "nothing fits"


@pytest.mark.parametrize(
    ("preset", "gib", "expected"), [("base", 8, 1), ("base", 6, 2), ("big", 24, 1), ("big", 12, 3)]
)
def test_small_gpus_take_more_micro_batches(preset: str, gib: int, expected: int) -> None:
    config = load_config(preset, (), ["zero1", "bf16"])
    sizes = parameter_count(config.model, 37_000), config.model.embedding_rows(37_000)

    def peak(number: int) -> int:
        return peak_memory_bytes(config.with_micro_batches(number), compose(config, 1), 1, *sizes) or 0

    assert fewest_micro_batches(peak, usable_of(gib * GIB), 1, 100) == expected


def test_a_setup_takes_the_first_number_whose_peak_fits(toy_corpus: Path) -> None:
    setup = build_setup(toy_corpus, 2)
    peaks = {number: setup_peak_bytes(setup, number) or 0 for number in (2, 4, 6)}
    for number, peak in peaks.items():
        found = choose_micro_batches(setup, None, peak)
        assert found.config.batch.micro_batches == found.ds_config["train_batch_size"] == number
        assert found.ds_config["gradient_accumulation_steps"] == number // 2
        assert "2 processes" not in str(found.micro_batches_from)
    assert choose_micro_batches(setup, None, peaks[2] - 1).config.batch.micro_batches == 4


def test_no_more_than_hold_the_longest_sentence(toy_corpus: Path) -> None:
    setup = build_setup(toy_corpus)
    train = setup.corpus.manifest.splits["train"]
    longest = max(train.src_lengths.max, train.tgt_lengths.max) + 1
    most = max_micro_batches(setup)
    assert 25_000 // (most + 1) < longest <= 25_000 // most
    staged = build_setup(toy_corpus, 1, "batch.stages=[{epochs: 1, share: 0.5}, {epochs: 1, share: 0.2}]")
    assert max_micro_batches(staged) == 5_000 // longest, "the smallest updates count"
    assert setup_peak_bytes(staged, 2) == setup_peak_bytes(setup, 2), "the largest count"
    assert max_micro_batches(replace(setup, world_size=7)) % 7 == 0
    assert max_micro_batches(replace(setup, world_size=100_000)) == 100_000
    with pytest.raises(ConfigError, match=rf"no number fits the GPUs. With {most}, .* 0\.1 GiB are usable: choose a h"):
        choose_micro_batches(setup, None, GIB // 10)


@pytest.mark.parametrize(("stored", "usable", "world_size", "expected"), [
    (None, None, 2, 2), (4, None, 2, 4), (3, None, 2, 2),  # memory is not predicted
    (4, 70 * GIB, 2, 4), (3, 70 * GIB, 2, 2), (None, 70 * GIB, 2, 2),
])  # fmt: skip
def test_a_resumed_run_keeps_the_number_of_its_checkpoint_if_the_processes_divide_it(
    toy_corpus: Path, stored: int | None, usable: int | None, world_size: int, expected: int
) -> None:
    found = choose_micro_batches(build_setup(toy_corpus, world_size), stored, usable)
    assert found.config.batch.micro_batches == expected
    assert (found.micro_batches_from == "as its checkpoint has") == (expected == stored)


def test_but_not_where_it_does_not_fit(toy_corpus: Path) -> None:
    setup = build_setup(toy_corpus)
    usable = setup_peak_bytes(setup, 5) or 0
    assert choose_micro_batches(setup, 2, usable).config.batch.micro_batches == 5


@pytest.mark.parametrize(("world_size", "usable", "expected"), [
    (4, None, 4), (4, 70 * GIB, 8), (3, 0, 9), (16, 0, 16),
])  # fmt: skip
def test_where_memory_is_not_predicted_cpus_have_one_each_and_gpus_eight_together(
    toy_corpus: Path, world_size: int, usable: int | None, expected: int
) -> None:
    found = choose_micro_batches(build_setup(toy_corpus, world_size, "loss.r_drop=5"), None, usable)
    assert found.config.batch.micro_batches == expected


def test_a_given_number_stays(toy_corpus: Path) -> None:
    setup = build_setup(toy_corpus, 1, "batch.micro_batches=8")
    assert choose_micro_batches(setup, 4, 1) is setup
    assert settle_micro_batches(setup, "auto", None) is setup  # type: ignore[arg-type]


def agree(
    setup: Setup, monkeypatch: pytest.MonkeyPatch, own: int, *others: int, capability: int = 9, kernels: str = "triton"
) -> Any:
    """The number on a rank whose GPU has ``own`` bytes, among ranks that may use ``others``."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (capability, 0))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(total_memory=own))
    monkeypatch.setattr("dstransformer.training.micro_batches.gpu_kernels_name", lambda _: kernels)
    world: Any = SimpleNamespace(
        device=torch.device("cuda", 0),
        gather=lambda item: [item, *others],
        compute_on_rank0=lambda compute: compute(),
        collective_errors=nullcontext,
    )
    return settle_micro_batches(setup, "auto", world).config.batch.micro_batches


def test_the_smallest_gpu_of_all_ranks_counts(toy_corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    setup = build_setup(toy_corpus, 2)
    small = setup_peak_bytes(setup, 6) or 0
    assert agree(setup, monkeypatch, 80 * GIB, 71 * GIB) == 2
    assert agree(setup, monkeypatch, 80 * GIB, small) == 6
    assert agree(setup, monkeypatch, 80 * GIB, 0) == 8, "one rank has a GPU whose memory is not predicted"
    assert agree(setup, monkeypatch, 80 * GIB, small, capability=7) == 8
    assert agree(setup, monkeypatch, 80 * GIB, small, kernels="none") == 8, "without them it takes more memory"
