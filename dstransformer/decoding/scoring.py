"""The score of a hypothesis."""

from __future__ import annotations

from torch import Tensor


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
