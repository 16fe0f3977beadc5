"""Stages of smaller updates: the budget of an update is that of the stage in which its first pair lies."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.data.corpora import Rows, write_corpus
from support.data.loading import build_loader, take

from dstransformer.config import BatchStage, load_config
from dstransformer.data import Corpus, Split
from dstransformer.data.loader import Update
from dstransformer.data.plan import Budget, build_budget, describe_stages, plan_epoch
from dstransformer.data.windows import WindowPlanner, check_split, training_lengths
from dstransformer.errors import ConfigError, DataError

LONGEST, PAIRS = 30, 200

stages = st.lists(st.builds(BatchStage, epochs=st.floats(0.01, 1.5), share=st.floats(0.25, 1.0)), max_size=4)


def limit(schedule: list[BatchStage], tokens: int, epochs: float) -> int:
    """The tokens of an update that begins after so many epochs."""
    ends = np.cumsum([stage.epochs for stage in schedule])
    number = int((ends <= epochs).sum())
    return tokens if number == len(schedule) else round(schedule[number].share * tokens)


@pytest.fixture(scope="module")
def split(tmp_path_factory: pytest.TempPathFactory) -> Split:
    rng = np.random.default_rng(5)
    rows: Rows = [tuple([4] * int(rng.integers(1, 12)) for _ in range(2)) for _ in range(PAIRS)]  # type: ignore[misc]
    return Corpus.open(write_corpus(tmp_path_factory.mktemp("stages") / "corpus", rows)).split("train")


@given(
    st.integers(1, 300), st.integers(0, 2**32), stages, st.integers(4 * LONGEST, 400), st.integers(0, 9),
    st.integers(0, 3),
)  # fmt: skip
def test_every_pair_is_in_one_update_within_the_budget_of_its_stage(
    pairs: int, draw: int, schedule: list[BatchStage], tokens: int, seed: int, epoch: int
) -> None:
    rng = np.random.default_rng(draw)
    src, tgt = (rng.integers(1, LONGEST + 1, pairs, dtype=np.int32) for _ in range(2))
    budget = Budget(tokens, tokens + 50, 1, tuple(schedule))
    plan, again = (plan_epoch(src, tgt, seed, epoch, budget) for _ in range(2))
    assert plan.bounds.tolist() == again.bounds.tolist()
    assert plan.order.tolist() == again.order.tolist()
    assert sorted(plan.order) == list(range(pairs))
    for number in range(plan.updates):
        update, first = plan.update(number), plan.bounds[number]
        src_limit, tgt_limit = (limit(schedule, most, epoch + first / pairs) for most in (tokens, tokens + 50))
        assert len(update)
        assert src[update].sum() <= src_limit
        assert tgt[update].sum() <= tgt_limit
        if number < plan.updates - 2:
            more = [*update, plan.update(number + 1)[0]]
            assert src[more].sum() > src_limit or tgt[more].sum() > tgt_limit, "it is full"


def test_updates_grow_within_an_epoch() -> None:
    lengths = np.full(100, 10, dtype=np.int32)
    budget = Budget(100, 100, 1, (BatchStage(epochs=0.25, share=0.5), BatchStage(epochs=0.8, share=0.8)))
    sizes = [np.diff(plan_epoch(lengths, lengths, 1, epoch, budget).bounds).tolist() for epoch in range(3)]
    assert sizes[0] == [5] * 5 + [8] * 8 + [5, 6], "the last two share the remainder"
    assert sizes[1] == [8] + [10] * 8 + [6, 6]
    assert sizes[2] == [10] * 10
    chosen = plan_epoch(lengths, lengths, 1, 0, budget, np.arange(60, dtype=np.int32))
    assert np.diff(chosen.bounds).tolist() == [5] * 3 + [8] * 5 + [5], "a quarter of what a mixture chose"


def test_without_stages_or_with_whole_ones_the_plan_is_the_same() -> None:
    lengths = np.random.default_rng(2).integers(1, LONGEST, 500, dtype=np.int32)
    plain, whole = (
        plan_epoch(lengths, lengths, 1, 1, Budget(200, 200, 1, schedule))
        for schedule in ((), (BatchStage(epochs=1.3, share=1.0),))
    )
    assert plain.bounds.tolist() == whole.bounds.tolist()
    assert plain.order.tolist() == whole.order.tolist()


@settings(max_examples=40, deadline=None)
@given(stages, st.integers(8, PAIRS), st.integers(1, 30), st.integers(0, 2**40), st.integers(0, 3))
def test_stages_go_on_from_window_to_window(
    split: Split, schedule: list[BatchStage], window_pairs: int, block_pairs: int, seed: int, epoch: int
) -> None:
    src, tgt = training_lengths(split)
    planner = WindowPlanner(split, Budget(80, 90, 1, tuple(schedule)), seed, None, window_pairs, block_pairs)
    used, before = [], 0
    for number in range(planner.windows(epoch)):
        window = planner.plan(epoch, number)
        for place in range(window.updates):
            update = window.update(place)
            epochs = epoch + (before + window.plan.bounds[place]) / PAIRS
            near = [epochs - 1e-9, epochs, epochs + 1e-9]  # sums of floats differ by their order
            assert src[update].sum() <= max(limit(schedule, 80, one) for one in near)
            assert tgt[update].sum() <= max(limit(schedule, 90, one) for one in near)
            used += update.tolist()
        before += len(window.plan.order)
    assert sorted(used) == list(range(PAIRS))


def contents(updates: list[Update]) -> list[Any]:
    return [(update.position, [batch.tgt_out.tolist() for batch in update.batches]) for update in updates]


@pytest.mark.parametrize("window_pairs", [0, 60])
def test_ranks_share_out_the_updates_and_a_stage_resumes_anywhere(split: Split, window_pairs: int) -> None:
    budget = Budget(100, 100, 2, (BatchStage(epochs=0.3, share=0.4), BatchStage(epochs=1, share=0.7)))
    loader = build_loader(split, budget, window_pairs=window_pairs)
    whole = take(loader, 90)
    sizes = [sum(map(len, update.pairs)) for update in whole]
    assert np.mean(sizes[:8]) < np.mean(sizes[12:20]) < np.mean(sizes[-10:])
    shares = [
        take(build_loader(split, budget, window_pairs=window_pairs, rank=rank, world_size=2), 90) for rank in range(2)
    ]
    for number, update in enumerate(whole):
        dealt = [share[number].batches[0].tgt_out.tolist() for share in shares]
        assert dealt == [batch.tgt_out.tolist() for batch in update.batches]
    for passed in (3, 15, 40):
        rest = take(loader, 90 - passed, whole[passed - 1].following)
        assert contents(rest) == contents(whole[passed:])


@pytest.mark.parametrize(("value", "message"), [
    ("[{epochs: 1, share: 0}]", r"batch\.stages\.0\.share = 0: must be more than 0"),
    ("[{epochs: 1, share: 1.5}]", r"batch\.stages\.0\.share = 1\.5: must be 1\.0 or less"),
    ("[{epochs: 0, share: 0.5}]", r"batch\.stages\.0\.epochs = 0: must be more than 0"),
    ("[{epochs: 1, share: 0.5}, {share: 0.5}]", r"missing key 'batch\.stages\.1\.epochs'"),
    ("[{epochs: 1}]", r"missing key 'batch\.stages\.0\.share'"),
    ("[{updates: 400, epochs: 1, share: 0.5}]", r"unknown key 'batch\.stages\.0\.updates'"),
    ("0.5", r"batch\.stages = 0\.5: write a list"),
])  # fmt: skip
def test_bad_stages_are_refused(value: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as refused:
        load_config("toy", [f"batch.stages={value}"])
    assert "\n" not in str(refused.value)


def test_a_stage_must_hold_the_longest_sentence_and_its_micro_batches(split: Split) -> None:
    src, tgt = training_lengths(split)
    half = (BatchStage(epochs=1, share=0.5),)
    check_split(split, Budget(2 * int(src.max()), 2 * int(tgt.max()), 1, half))
    message = rf"has {src.max()} src tokens.*\({src.max() - 1} in a stage of batch\.stages, batch\.src_tokens = "
    with pytest.raises(DataError, match=message + r"\d+\): raise its share"):
        check_split(split, Budget(2 * int(src.max()) - 2, 1000, 1, half))
    lengths = np.full(40, 10, dtype=np.int32)
    with pytest.raises(DataError, match=r"micro_batches = 8.*batch\.stages"):
        plan_epoch(lengths, lengths, 1, 0, Budget(80, 80, 8, half))


def test_stages_in_a_line() -> None:
    config = load_config("toy", ["batch.stages=[{epochs: 0.5, share: 0.25}, {epochs: 1, share: 0.5}]"])
    assert build_budget(config.batch).stages == tuple(config.batch.stages)
    assert describe_stages(config.batch.stages, [400.2, 1200]) == (
        "25% of the tokens for 0.5 epochs (about 400 updates), then 50% of the tokens for 1 epoch (about 1,200 "
        "updates), then all"
    )
    assert describe_stages([], []) == ""
