"""How hypotheses are ranked: the arithmetic of the beam search, apart from the search."""

from __future__ import annotations

from torch import Tensor


def length_penalty(length: int, alpha: float) -> float:
    """``((5 + length) / 6)^alpha`` (section 6.1; Wu et al., 2016, equation 14, without its coverage term).

    ``length`` counts the end of the sentence, as in the authors' tensor2tensor: that of an empty output is 1.
    """
    penalty: float = ((5.0 + length) / 6.0) ** alpha
    return penalty


def best_reachable_score(log_probability: Tensor, limit_penalty: Tensor) -> Tensor:
    """An upper bound on the score of everything that a live hypothesis may grow into.

    A continuation cannot raise the log-probability, which is at most 0, and with ``alpha >= 0`` the penalty that
    divides it is largest at the length limit. So whatever ends from here on scores at most
    ``log_probability / limit_penalty``.

    Args:
        log_probability: Of the live hypothesis, any shape.
        limit_penalty: :func:`length_penalty` of the longest output allowed, of a shape that broadcasts.
    """
    return log_probability / limit_penalty
