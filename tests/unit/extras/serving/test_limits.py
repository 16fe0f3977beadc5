from __future__ import annotations

import pytest

from dstransformer.errors import ConfigError
from dstransformer.extras.serving.loaded_model import LoadedModel
from dstransformer.extras.serving.model import Limits, check_limits, fit_to_model


def test_what_is_not_given_has_its_default() -> None:
    assert check_limits(queue=None, timeout=None) == Limits()
    assert check_limits(queue=2).sentences == 2, "a request must fit into the queue"
    assert check_limits(timeout=0.2, batch_delay=0.0, stop=0).timeout == 0.2


@pytest.mark.parametrize(("given", "message"), [
    ({"queue": 0}, "--queue is 0: give 1 or more"),
    ({"batch_delay": -0.001}, "--max-batch-delay is -0.001: give 0 or more"),
    ({"timeout": 0.0}, "--timeout is 0: give more than 0"),
    ({"timeout": float("nan")}, "--timeout is nan"),
    ({"stop": float("inf")}, "--stop-timeout is inf"),
    ({"sentences": 9, "queue": 8}, "--max-sentences is 9, but --queue is 8: such a request would never fit"),
])  # fmt: skip
def test_values_out_of_bounds_are_refused(given: dict[str, float], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_limits(**given)


def test_a_sentence_is_as_long_as_the_model_takes(model: LoadedModel) -> None:
    info = model.info
    assert fit_to_model(Limits(), info).sentence_tokens == info.own_decoding.max_input_tokens
    assert fit_to_model(Limits(sentence_tokens=7), info).sentence_tokens == 7
    endless = info._replace(own_decoding=info.own_decoding.model_copy(update={"max_input_tokens": 0}))
    assert fit_to_model(Limits(), endless).sentence_tokens == 1024
    assert fit_to_model(Limits(), info._replace(max_tokens=63)).sentence_tokens == 63
