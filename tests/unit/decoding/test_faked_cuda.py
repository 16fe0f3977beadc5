"""Beam search on a faked CUDA device: operators, waits and memory of a step. See :mod:`support.cuda`."""

from __future__ import annotations

import importlib.util

import pytest
from support.cuda.device import missing
from support.cuda.searches import RecordedSearch, record_search

from dstransformer.decoding.beam import CHECK_STEPS

#: Operators of a step of ``base`` with beam 4 and no Triton kernels: at most, and more in a step that looks for what is
#: done.
MOST, LOOKING = 142, 5

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing() or "can be faked")


@pytest.fixture(scope="module")
def recorded() -> RecordedSearch:
    return record_search("base", sentences=64, kernels=False)


def test_a_step_has_few_operators(recorded: RecordedSearch) -> None:
    looking, *others = recorded.steps
    assert len(others) == CHECK_STEPS - 1
    assert max(others) <= MOST
    assert looking <= MOST + LOOKING


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs the package triton")
def test_a_kernel_chooses_the_best_pieces_in_place_of_seven_operators(recorded: RecordedSearch) -> None:
    found = record_search("base", sentences=64, kernels=True)
    assert found.operators["best_pieces"] == CHECK_STEPS
    assert "_log_softmax" not in found.operators
    assert sum(found.steps) == sum(recorded.steps) - 6 * CHECK_STEPS
    assert found.waits == recorded.waits
    assert found.search_bytes < recorded.search_bytes


def test_the_host_waits_once_in_four_steps(recorded: RecordedSearch) -> None:
    assert recorded.waits == {"item: dstransformer/decoding/beam.py choose_rows": 1}


def test_attention_takes_its_mask_as_it_is_and_builds_no_plans(recorded: RecordedSearch) -> None:
    """cuDNN would build a plan for the keys of each step; an unaligned mask would be copied in each layer."""
    attentions = {name: calls for name, calls in recorded.operators.items() if "attention" in name}
    assert attentions == {"_scaled_dot_product_efficient_attention": 12 * CHECK_STEPS}
    assert "constant_pad_nd" not in recorded.operators
    assert "scalar_tensor" not in recorded.operators


def test_the_rule_for_batches_knows_the_memory_of_a_step(recorded: RecordedSearch) -> None:
    assert recorded.predicted_bytes == pytest.approx(recorded.search_bytes, rel=0.15)
