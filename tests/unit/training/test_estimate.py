from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import pytest

from dstransformer.config import BatchStage, Config, load_config
from dstransformer.data import Corpus
from dstransformer.data.mixture import Mixture
from dstransformer.data.plan import LengthSums, build_budget, plan_epoch
from dstransformer.data.windows import training_lengths
from dstransformer.errors import ConfigError, DataError
from dstransformer.extras.parsing.linearise import Linearisation
from dstransformer.model import parameter_count, training_flops
from dstransformer.training.estimate import (
    approximate_plan,
    count_epochs,
    count_full_updates,
    count_stage_updates,
    estimate,
    plan_warnings,
)
from dstransformer.training.experiment import Experiment, TrainRequest, check_corpus
from dstransformer.training.plan import check_memory

BUDGET = ["batch.src_tokens=600", "batch.tgt_tokens=600", "training.max_updates=100"]


def build(config: Config, corpus: Corpus) -> Experiment:
    return Experiment.build(TrainRequest("toy", corpus.path, Path("run")), config, corpus, 2)


def test_the_estimate_counts_the_corpus(toy_corpus: Path) -> None:
    corpus = Corpus.open(toy_corpus)
    config = load_config("toy", BUDGET)
    figures = estimate(build(config, corpus))
    info = corpus.manifest.splits["train"]
    assert figures.pairs == info.pairs
    assert figures.src_tokens_per_update * figures.updates_per_epoch == pytest.approx(info.src_tokens + info.pairs)
    assert figures.tgt_tokens_per_update <= 600
    assert figures.epochs == pytest.approx(100 / figures.updates_per_epoch)
    assert figures.accumulation_steps == 1
    lengths = training_lengths(corpus.split("train"))
    rows = config.model.embedding_rows(corpus.tokenizer.vocab_size)
    epoch = training_flops(config.model, rows, LengthSums.of(*lengths))
    assert figures.flops_per_update * figures.updates_per_epoch == pytest.approx(epoch)
    assert figures.flops == pytest.approx(100 * figures.flops_per_update)
    experiment = build(config, corpus)
    epochs, in_stages = approximate_plan(experiment)
    assert epochs == pytest.approx(figures.epochs, rel=0.1)
    assert figures.stage_updates == in_stages == []


def test_epochs_of_a_mixture_have_the_updates_of_their_stage() -> None:
    mixture = Mixture((100, 50), (0, 2), ((1.0, 0.0), (1.0, 4.0)))  # 100 pairs an epoch, from the third on 300
    assert count_epochs(30, 10, None) == 3
    assert [count_epochs(updates, 10, mixture) for updates in (5, 20, 35, 50, 80)] == [0.5, 2, 2.5, 3, 4]


def test_stages_of_smaller_updates_have_more_of_them() -> None:
    mixture = Mixture((100, 50), (0, 2), ((1.0, 0.0), (1.0, 4.0)))  # 100 pairs an epoch, from the third on 300
    stages = [BatchStage(epochs=0.5, share=0.25), BatchStage(epochs=2.5, share=0.5)]
    assert count_stage_updates(stages, 10, None) == [20, 50]
    assert count_stage_updates(stages, 10, mixture) == [20, 2 * (15 + 30)]
    counts = (0, 10, 20, 40, 70, 100)
    assert [count_full_updates(count, stages, [20, 50]) for count in counts] == [0, 2.5, 5, 15, 30, 60]


def test_the_estimate_follows_the_stages(toy_corpus: Path) -> None:
    corpus = Corpus.open(toy_corpus)
    large = ["batch.src_tokens=1500", "batch.tgt_tokens=1500", "training.max_updates=60"]
    config = load_config("toy", [*large, "batch.stages=[{epochs: 0.6, share: 0.25}, {epochs: 0.8, share: 0.5}]"])
    plain = load_config("toy", large)
    whole, staged = (estimate(build(one, corpus)) for one in (plain, config))
    assert staged.updates_per_epoch == whole.updates_per_epoch
    assert staged.flops_per_update == whole.flops_per_update
    lengths, starts = training_lengths(corpus.split("train")), []
    for epoch in range(4):
        plan = plan_epoch(*lengths, config.training.seed, epoch, build_budget(config.batch))
        starts += (epoch + plan.bounds[:-1] / len(plan.order)).tolist()
    counts = [sum(begin <= start < end for start in starts) for begin, end in ((0, 0.6), (0.6, 1.4))]
    assert staged.stage_updates == pytest.approx(counts, rel=0.1)
    assert staged.epochs == pytest.approx(starts[60], rel=0.1)
    assert staged.flops / whole.flops == pytest.approx(staged.epochs / whole.epochs)
    approximated = approximate_plan(build(config, corpus))
    assert approximated[0] == pytest.approx(staged.epochs, rel=0.15)
    assert approximated[1] == pytest.approx(staged.stage_updates, rel=0.15)
    (warning,) = [one for one in plan_warnings(config, 10, [40, 21]) if "stages" in one]
    assert "training.max_updates = 60 ends before batch.stages, which take about 61 updates" in warning
    assert not [one for one in plan_warnings(config, 10, [40, 20]) if "stages" in one]


def test_updates_of_a_stage_that_are_too_small_are_found_before_training(toy_corpus: Path) -> None:
    corpus = Corpus.open(toy_corpus)
    config = load_config("toy", [*BUDGET, "batch.micro_batches=8", "batch.stages=[{epochs: 1, share: 0.15}]"])
    with pytest.raises(DataError, match=r"batch\.micro_batches = 8.*batch\.stages"):
        estimate(build(config, corpus))


def test_the_first_window_stands_for_all(toy_corpus: Path) -> None:
    corpus = Corpus.open(toy_corpus)
    whole, windowed = (
        estimate(build(config, corpus))
        for config in (load_config("toy", [*BUDGET, f"training.window_pairs={pairs}"]) for pairs in (0, 150))
    )
    assert (whole.windows, windowed.windows) == (1, 4)
    assert windowed.pairs == whole.pairs
    assert windowed.updates_per_epoch == pytest.approx(whole.updates_per_epoch, rel=0.1)
    assert windowed.src_tokens_per_update == pytest.approx(whole.src_tokens_per_update, rel=0.1)
    assert windowed.flops_per_update == pytest.approx(whole.flops_per_update, rel=0.1)


def test_a_plan_that_does_not_fit_memory_is_refused(toy_corpus: Path) -> None:
    corpus = Corpus.open(toy_corpus)
    pairs = corpus.manifest.splits["train"].pairs
    experiments = [
        build(config, corpus)
        for config in (load_config("toy", [*BUDGET, f"training.window_pairs={window}"]) for window in (0, 150))
    ]
    check_memory(experiments[0], 2, 2 * 16 * pairs, "here", weights=False)
    check_memory(experiments[1], 2, 2 * 24 * 150, "here", weights=False)
    with pytest.raises(ConfigError, match=rf"planning {pairs} pairs .*training\.window_pairs"):
        check_memory(experiments[0], 2, 2 * 16 * pairs - 1, "here", weights=False)


def test_weights_and_plan_must_fit_memory_together(toy_corpus: Path) -> None:
    corpus, config = Corpus.open(toy_corpus), load_config("toy", BUDGET)
    experiment = build(config, corpus)
    parameters = parameter_count(config.model, corpus.tokenizer.vocab_size)
    needed = 2 * (4 * parameters + 16 * corpus.manifest.splits["train"].pairs)
    check_memory(experiment, 2, needed, "here")
    with pytest.raises(ConfigError, match=f"{parameters:,} parameters"):
        check_memory(experiment, 2, needed - 1, "here")


def test_a_pair_that_a_mixture_repeats_is_planned_as_often(toy_corpus: Path) -> None:
    corpus, pairs = Corpus.open(toy_corpus), Corpus.open(toy_corpus).manifest.splits["train"].pairs
    mixture = "training.mixture=[{epochs: 2, weights: {toy: 5}}, {weights: {toy: 0.5}}]"
    config = load_config("toy", [*BUDGET, mixture])
    experiment = build(config, corpus)
    assert experiment.mixture is not None
    assert max(experiment.mixture.pairs()) == len(experiment.mixture.rows(1, 0)) == 5 * pairs
    needed = (8 + 4 + 5 * 12) * pairs
    check_memory(experiment, 1, needed, "here", weights=False)
    with pytest.raises(ConfigError, match=f"{5 * pairs:,} pairs .*14 bytes"):
        check_memory(experiment, 1, needed - 1, "here", weights=False)


@pytest.mark.parametrize(("changes", "updates_per_epoch", "parts"), [
    ([], 200.0, []),
    (["training.max_updates=100000"], 3.0, ["33,333 epochs of this corpus: 1,500 would be 500", "only 3 updates"]),
    (["training.max_updates=100"], 200.0, ["100 ends before the warm-up (schedule.warmup_steps = 200)"]),
    (["schedule.warmup_steps=301"], 200.0, ["the last 3 checkpoints reach back to update 300, into the warm-up"]),
    (["schedule.warmup_steps=300"], 200.0, []),
    (["training.max_updates=510", "schedule.warmup_steps=451"], 200.0, ["reach back to update 450"]),
    (["checkpoint.every_updates=300", "schedule.warmup_steps=350"], 200.0, ["reach back to update 300"]),
    (["checkpoint.every_updates=1", "training.max_updates=9000000000000000000"], 1e18, []),
    (["checkpoint.every_updates=0", "checkpoint.every_minutes=1"], 200.0, []),
    (["model.max_positions=2048"], 200.0, ["model.max_positions = 2048 has no effect with model.positions = sinus"]),
    (["model.max_positions=2048", "model.positions=learned"], 200.0, []),
    (["schedule.final=0.1"], 200.0, ["no effect with schedule.kind = inverse_sqrt: remove it, or set schedule.kind=l"]),
    (["schedule.final=0.1", "schedule.kind=cosine"], 200.0, []),
    (["schedule.decay=0.1", "schedule.kind=linear"], 200.0, ["schedule.decay = 0.1 has no effect with schedule.kind"]),
    (["optimizer.muon_rate=2"], 200.0, ["optimizer.muon_rate = 2.0 has no effect with optimizer.name = adam: remove"]),
    (["optimizer.muon_rate=2", "optimizer.momentum=0.9", "optimizer.name=muon"], 200.0, []),
    (["training.unigram_alpha=0.2"], 200.0, ["training.unigram_alpha = 0.2 makes sentences longer than they are"]),
    (["training.bpe_dropout=0.1"], 200.0, ["training.bpe_dropout = 0.1 makes sentences longer than they are stored"]),
    (
        ["training.augment=[{modifier: upper, probability: 0.05}]"],
        200.0,
        ["training.augment (upper 0.05) makes sentences longer than they are stored"],
    ),
    (["optimizer.ema_decay=0.999"], 200.0, ["averages 3 checkpoints that are moving averages already"]),
    (["optimizer.ema_decay=0.999", "checkpoint.average_last=1"], 200.0, []),
])  # fmt: skip
def test_odd_plans_cause_warnings(changes: list[str], updates_per_epoch: float, parts: list[str]) -> None:
    warnings = plan_warnings(load_config("toy", changes), updates_per_epoch)
    assert len(warnings) == len(parts)
    for part, warning in zip(parts, warnings, strict=True):
        assert part in warning


@pytest.mark.parametrize(
    "value", ["training.int8_weights=true", "training.augment=[{modifier: upper, probability: 1}]"]
)
def test_a_parser_is_not_trained_with_what_is_for_translation(toy_corpus: Path, value: str) -> None:
    corpus, config = Corpus.open(toy_corpus), load_config("toy", [value])
    check_corpus(config, corpus)
    corpus.manifest = corpus.manifest.model_copy(update={"trees": asdict(Linearisation())})
    with pytest.raises(ConfigError, match=value.partition("=")[0]):
        check_corpus(config, corpus)


def test_a_corpus_with_fewer_pairs_than_micro_batches_is_refused_before_the_training(toy_corpus: Path) -> None:
    corpus, config = Corpus.open(toy_corpus), load_config("toy", ["batch.micro_batches=2000"])
    with pytest.raises(DataError, match=r"600 .*batch\.micro_batches = 2000"):
        check_corpus(config, corpus)
