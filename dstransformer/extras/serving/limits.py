"""The limits of a server."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from dstransformer.errors import ConfigError

if TYPE_CHECKING:
    from dstransformer.extras.serving.model import ModelInfo

#: Maximum tokens of a sentence, or of its translation, for ``/attention``.
ATTENTION_TOKENS = 256

#: Maximum tokens of a sentence if neither the user nor the model has a limit.
_SENTENCE_TOKENS = 1024


@dataclass(frozen=True)
class Limits:
    """What a server accepts, and how long it waits.

    Attributes:
        batch_delay: Seconds that a sentence waits for others while nothing is decoded.
        queue: Maximum sentences that wait to be decoded.
        sentences: Maximum sentences of a request, at most ``queue``.
        sentence_tokens: Maximum tokens of a sentence or a prefix; 0 until :func:`fit_to_model` has filled it in.
        request_bytes: Maximum bytes of a request's body.
        timeout: Seconds for a request: for its body to arrive, and for its translation.
        stop: Seconds in which accepted requests are finished when the server is stopped.
    """

    batch_delay: float = 0.005
    queue: int = 1024
    sentences: int = 256
    sentence_tokens: int = 0
    request_bytes: int = 1 << 20
    timeout: float = 60.0
    stop: float = 25.0


#: The option of ``dst serve`` for each limit.
OPTIONS = {
    "batch_delay": "--max-batch-delay",
    "queue": "--queue",
    "sentences": "--max-sentences",
    "sentence_tokens": "--max-sentence-tokens",
    "request_bytes": "--max-request-bytes",
    "timeout": "--timeout",
    "stop": "--stop-timeout",
}


def check_limits(**given: float | None) -> Limits:
    """Limits with these values; None keeps the default.

    Raises:
        ConfigError: A value is out of bounds.
    """
    changed = {name: value for name, value in given.items() if value is not None}
    for name, value in changed.items():
        bound = "0 or more" if name in ("batch_delay", "stop") else "more than 0" if name == "timeout" else "1 or more"
        if not value < float("inf") or value < 0 or (value == 0 and bound != "0 or more"):
            raise ConfigError(f"{OPTIONS[name]} is {value:g}: give {bound}")
    queue = changed.get("queue", Limits.queue)
    if "sentences" not in changed:
        changed["sentences"] = min(Limits.sentences, queue)
    if changed["sentences"] > queue:
        raise ConfigError(
            f"--max-sentences is {changed['sentences']:g}, but --queue is {queue:g}: such a request would never fit; "
            "raise --queue or lower --max-sentences"
        )
    return Limits(**changed)  # type: ignore[arg-type]


def fit_to_model(limits: Limits, info: ModelInfo) -> Limits:
    """The limits with the longest sentence that a model takes.

    Args:
        limits: The limits.
        info: The model: its input limit counts unless the user gave another, its positions always.
    """
    max_tokens = limits.sentence_tokens or info.own_decoding.max_input_tokens or _SENTENCE_TOKENS
    return replace(limits, sentence_tokens=min(max_tokens, info.max_tokens))
