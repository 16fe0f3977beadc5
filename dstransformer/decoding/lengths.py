"""How long outputs may be, and what their length does to their score."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from dstransformer.config import DecodingConfig
from dstransformer.model import Packing


def output_limits(
    packing: Packing, settings: DecodingConfig, *, max_positions: int | None, prefixes: Sequence[Sequence[int]] = ()
) -> list[int]:
    """Maximum tokens of each sentence's output, end included, because the length of the source includes its end too.

    Args:
        packing: The sentences of the source.
        settings: The limits.
        max_positions: Positions that the model has learned; None for any number.
        prefixes: See :func:`beam_search`.
    """
    limits: list[int] = (packing.lengths + settings.max_extra_tokens).clamp(min=settings.min_tokens + 1).tolist()
    if prefixes:
        limits = [max(limit, len(prefix) + 1) for limit, prefix in zip(limits, prefixes, strict=True)]
    return limits if max_positions is None else [min(limit, max_positions) for limit in limits]


def length_penalty(length: int, alpha: float) -> float:
    """``((5 + length) / 6)^alpha`` (section 6.1; Wu et al., 2016, equation 14, without its coverage term).

    ``length`` includes the end of the sentence, as in the authors' tensor2tensor: an empty output has length 1.
    """
    penalty: float = ((5.0 + length) / 6.0) ** alpha
    return penalty


def best_reachable_score(log_probability: Tensor, limit_penalty: Tensor) -> Tensor:
    """An upper bound on the score of every continuation of a live hypothesis.

    A continuation cannot raise the log-probability, which is at most 0, and with ``alpha >= 0`` the penalty that
    divides it is largest at the length limit. So the score is at most ``log_probability / limit_penalty``.

    Args:
        log_probability: The log-probability of the live hypothesis, any shape.
        limit_penalty: :func:`length_penalty` of the longest output allowed, of a shape that broadcasts.
    """
    return log_probability / limit_penalty
