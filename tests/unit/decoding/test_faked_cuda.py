"""Beam search on a faked CUDA device: operators, waits and memory of a step. See :mod:`support.cuda`."""

from __future__ import annotations

import pytest
from support.cuda.device import missing
from support.cuda.searches import RecordedSearch, record_search

from dstransformer.decoding.beam import CHECK_STEPS

#: Operators of a step of ``base`` with beam 4: at most, and more in a step that looks for what is
#: done.
MOST, LOOKING = 142, 5

SENTENCES, VOCABULARY = 64, 37_000

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing() or "can be faked")


@pytest.fixture(scope="module")
def recorded() -> RecordedSearch:
    return record_search("base", SENTENCES, VOCABULARY)


def test_a_step_has_few_operators(recorded: RecordedSearch) -> None:
    looking, *others = recorded.steps
    assert len(others) == CHECK_STEPS - 1
    assert max(others) <= MOST
    assert looking <= MOST + LOOKING


def test_the_host_waits_once_in_four_steps(recorded: RecordedSearch) -> None:
    assert recorded.waits == {"item: dstransformer/decoding/beam.py choose_rows": 1}


def test_attention_takes_its_mask_as_it_is_and_builds_no_plans(recorded: RecordedSearch) -> None:
    """cuDNN would build a plan for the keys of each step; an unaligned mask would be copied in each layer."""
    attentions = {name: calls for name, calls in recorded.operators.items() if "attention" in name}
    assert attentions == {"_scaled_dot_product_efficient_attention": 12 * CHECK_STEPS}
    assert "constant_pad_nd" not in recorded.operators
    assert "scalar_tensor" not in recorded.operators


def test_the_rule_for_batches_knows_the_memory_of_a_step(recorded: RecordedSearch) -> None:
    inside_logsumexp = SENTENCES * 4 * VOCABULARY * 4  # the exponentials, in fp32: they are no operator's result
    assert recorded.predicted_bytes == pytest.approx(recorded.search_bytes + inside_logsumexp, rel=0.05)
