"""The length penalty of our search in tools that divide a log-probability by a power of the length."""

from __future__ import annotations

from dstransformer.config import DecodingConfig

#: Output length, end included, at which both weigh one more token alike.
USUAL_LENGTH = 20


def length_exponent(search: DecodingConfig) -> float:
    """The power of the length that is nearest to our penalty; without an offset it is the same."""
    return search.length_penalty * USUAL_LENGTH / (search.length_offset + USUAL_LENGTH)
