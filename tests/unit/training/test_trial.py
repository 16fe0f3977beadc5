"""The trial of ``batch.micro_batches: auto``: the update that it computes, and the most micro-batches that it tries."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from dstransformer.config import load_config
from dstransformer.data import Corpus
from dstransformer.data.plan import build_budget, plan_epoch
from dstransformer.data.windows import training_lengths
from dstransformer.decoding.devices import is_memory_error
from dstransformer.training.experiment import Experiment, TrainRequest
from dstransformer.training.trial import max_micro_batches
from dstransformer.training.update_stream import LargestUpdate


def build(corpus: Path, *changes: str) -> Experiment:
    config = load_config("toy", ["batch.src_tokens=600", "batch.tgt_tokens=600", *changes])
    request = TrainRequest("toy", corpus, Path("run"))
    return Experiment.build(request, config, Corpus.open(corpus, verify=False), 2)


def test_no_more_than_hold_the_longest_sentence(toy_corpus: Path) -> None:
    experiment = build(toy_corpus)
    train = experiment.corpus.manifest.splits["train"]
    longest = max(train.src_lengths.max, train.tgt_lengths.max) + 1
    assert max_micro_batches(experiment) == 600 // longest // 2 * 2
    staged = build(toy_corpus, "batch.stages=[{epochs: 1, share: 0.5}, {epochs: 1, share: 0.4}]")
    assert max_micro_batches(staged) == 240 // longest // 2 * 2, "the smallest updates count"
    assert max_micro_batches(replace(experiment, world_size=1000)) == 1000


@pytest.mark.parametrize("changes", [[], ["batch.stages=[{epochs: 9, share: 0.5}]"]])
def test_it_reads_the_update_with_the_most_tokens(toy_corpus: Path, changes: list[str]) -> None:
    experiment = build(toy_corpus, "batch.micro_batches=4", *changes)
    lengths = training_lengths(experiment.corpus.split("train"))
    whole = build_budget(build(toy_corpus, "batch.micro_batches=4").config.batch)
    plan = plan_epoch(*lengths, experiment.config.training.seed, 0, whole)
    most = max(int(np.add(*lengths)[plan.update(number)].sum()) for number in range(plan.updates))
    batches = LargestUpdate(experiment).read(4, range(4))
    assert sum(len(batch.src) + len(batch.tgt_out) for batch in batches) == most


def test_errors_of_allocations_are_told_from_others() -> None:
    with pytest.raises(RuntimeError) as refused:
        torch.empty(2**60, dtype=torch.uint8)
    assert is_memory_error(refused.value)
    assert not is_memory_error(RuntimeError("shapes do not match"))
