"""The search for the largest update that fits: the sizes it tries, the worst update, and what it makes of failures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch

from dstransformer.cli import main
from dstransformer.config import compose, load_config
from dstransformer.data import Corpus
from dstransformer.decoding.devices import is_memory_error
from dstransformer.errors import ConfigError, DstError
from dstransformer.training import find_batch
from dstransformer.training.find_batch import CLOSE, Sizes, grow, left_in_cgroups, worst_update
from dstransformer.training.setup import Setup

SIZES = Sizes(1.0, 0.5, longest=(40, 20), smallest=40, largest=1_000_000)


def measured(peak: Callable[[int], float], usable: int, sizes: Sizes = SIZES, guess: int | None = None) -> list[int]:
    """The sizes that were measured; those that fit come first."""
    tried: list[int] = []

    def measure(size: int) -> int:
        tried.append(size)
        return round(peak(size))

    fitting = list(grow(measure, usable, sizes, guess))
    assert tried[: len(fitting)] == fitting
    return tried


@pytest.mark.parametrize("peak", [lambda n: 5_000 + 7.0 * n, lambda n: max(100_000, 500 + 7.0 * n)])
def test_the_last_size_is_close_to_the_largest_that_fits(peak: Callable[[int], float]) -> None:
    tried = measured(peak, usable=700_000)
    fitting = [size for size in tried if peak(size) <= 700_000]
    assert 100_000 * (1 - 2 * CLOSE) <= fitting[-1] <= 100_000
    assert len(tried) <= 16


def test_a_prediction_takes_one_trial() -> None:
    assert measured(lambda n: 5_000 + 7.0 * n, 700_000, guess=99_264) == [40, 99_264]
    assert measured(lambda n: 7.0 * n, 10**9, guess=SIZES.largest) == [40, SIZES.largest]


def test_no_size_is_beyond_the_training_split() -> None:
    assert measured(lambda _: 1.0, 700_000, replace(SIZES, largest=300)) == [40, 80, 160, 300]
    assert measured(lambda _: 1.0, 700_000, replace(SIZES, largest=165)) == [40, 80, 160, 165]
    assert measured(lambda _: 1e6, 700_000) == [40]


def test_every_stage_has_room_for_the_longest_sentence(toy_corpus: Path) -> None:
    corpus = Corpus.open(toy_corpus, verify=False)
    configs = [load_config("toy", changes) for changes in ([], ["batch.stages=[{epochs: 1, share: 0.25}]"])]
    plain, staged = (Sizes.of(Setup(config, compose(config, 2), corpus, Path("run"), 2)) for config in configs)
    assert plain.smallest == max(plain.longest)
    assert staged.smallest == 4 * plain.smallest
    assert staged.largest == plain.largest


def test_the_worst_update_has_full_sides_and_the_longest_sentences() -> None:
    update = worst_update((400, 200), SIZES.longest, world_size=2)
    (batch,) = update.batches
    src, tgt = (np.diff(packing.cu.numpy()) for packing in (batch.src_packing, batch.tgt_packing))
    assert set(src) == {40}
    assert set(tgt) == {20}
    assert len(src) == 11  # one pair more
    assert (update.src_tokens, update.tgt_tokens) == (2 * 440, 2 * 220)


def search(monkeypatch: pytest.MonkeyPatch, *trials: find_batch._Told) -> tuple[Any, list[int | None]]:
    """Search with trials that end like these; return the outcome, and what each trial was to stay below."""
    limits: list[int | None] = []

    def run(request: object, limit: int | None, *_: object) -> find_batch._Told:
        limits.append(limit)
        return trials[len(limits) - 1]

    monkeypatch.setattr(find_batch, "_try_sizes", run)
    world = cast(Any, SimpleNamespace(is_rank0=True))
    return find_batch._search(cast(Any, None), SIZES, world, {}), limits


def test_it_steps_down_until_a_trial_ends_well(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    failed = find_batch._Told("memory", fits=(1000, 10), trying=10_000)
    again = find_batch._Told("memory", fits=(40, 1), trying=8960)
    found, limits = search(monkeypatch, failed, again, find_batch._Told("done", fits=(8000, 80), trying=8000))
    assert limits == [None, 8960, 8064]
    assert found.fits == (8000, 80)
    assert caplog.messages[0] == (
        "memory ran out with 10,000 source and 5,000 target tokens on each process: trying less"
    )


def test_it_stops_close_to_what_has_fitted(monkeypatch: pytest.MonkeyPatch) -> None:
    found, limits = search(monkeypatch, find_batch._Told("memory", fits=(9600, 10), trying=10_000))
    assert (found.fits, limits) == ((9600, 10), [None])


def test_failures_are_told_from_lack_of_memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no update fits: with 40 source and 20 target tokens .* choose a higher"):
        search(monkeypatch, find_batch._Told("memory"))
    with pytest.raises(DstError, match="it broke"):
        search(monkeypatch, find_batch._Told("error", "it broke"))
    (tmp_path / "stderr").write_text("Traceback\nValueError: it broke\n")
    assert find_batch._explain(1, tmp_path / "stderr") == ("error", "a trial failed: ValueError: it broke")
    assert find_batch._explain(-9, tmp_path / "stderr")[0] == "memory"
    with pytest.raises(RuntimeError) as refused:
        torch.empty(2**60, dtype=torch.uint8)
    assert is_memory_error(refused.value)
    assert not is_memory_error(RuntimeError("shapes do not match"))


def test_limits_of_groups_count(tmp_path: Path) -> None:
    (tmp_path / "job" / "step").mkdir(parents=True)
    (tmp_path / "membership").write_text("0::/job/step\n")
    for group, limit, used in ((tmp_path / "job", "5000", 1000), (tmp_path / "job" / "step", "max", 900)):
        (group / "memory.max").write_text(f"{limit}\n")
        (group / "memory.current").write_text(f"{used}\n")
        (group / "memory.stat").write_text("anon 3\ninactive_file 250\n")
    assert list(left_in_cgroups(tmp_path / "membership", tmp_path)) == [4250]
    assert list(left_in_cgroups(tmp_path / "absent", tmp_path / "absent")) == []


@pytest.mark.parametrize(("options", "complaint"), [
    (["--resume", "auto"], "--find-batch finds the batch of a new run, and trains nothing: leave out --resume auto"),
    (["--dry-run"], "leave out --dry-run"),
    (["--device", "h100"], "--device h100 is for a dry run"),
])  # fmt: skip
def test_options_of_other_acts_are_refused(
    options: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "toy", "--corpus", "c", "--run", "r", "--find-batch", *options]) == 2
    errors = capsys.readouterr().err
    assert complaint in errors
    assert errors.count("\n") == 1
