"""The interface of the server to its model, which runs in a separate process, and its limits. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from dstransformer.config import DecodingConfig
from dstransformer.data.alignment import Link
from dstransformer.data.directions import Direction
from dstransformer.data.tokenizer import Tokenizer
from dstransformer.errors import ConfigError
from dstransformer.extras.serving.schema import AttentionAnswer

#: Maximum tokens of a sentence, or of its translation, for ``/attention``.
ATTENTION_TOKENS = 256

#: Maximum tokens of a sentence if neither the user nor the model has a limit.
_SENTENCE_TOKENS = 1024


class Query(NamedTuple):
    """A sentence to translate.

    Attributes:
        text: The sentence.
        tokens: Its length in tokens, without its end.
        prefix: The required beginning of the translation; empty for none.
    """

    text: str
    tokens: int
    prefix: str = ""


class Batch(NamedTuple):
    """Sentences that are translated together, how many hypotheses of each are wanted, and whether with alignments."""

    queries: list[Query]
    n_best: int
    alignments: bool = False


class Candidate(NamedTuple):
    """One translation of a sentence.

    Attributes:
        text: On one line.
        score: Log-probability over the length penalty.
        log_probability: Of the tokens and the end, in nats.
        tokens: Its length, without its end.
        alignment: The links of its words, if they are wanted.
    """

    text: str
    score: float
    log_probability: float
    tokens: int
    alignment: list[Link] | None = None


#: The result of a search for a sentence: its translations, best first; None if the model computes NaN.
Candidates = list[Candidate] | None


class ModelInfo(NamedTuple):
    """A loaded model, described.

    Attributes:
        path: The folder of the bundle or the export.
        own_decoding: The settings of the search in the bundle.
        decoding: Those in use, with ``device`` and ``precision``.
        batch_tokens: Maximum source tokens of a batch with the beam in use.
        max_tokens: Maximum tokens of a sentence that the model has positions for.
        aligns: Whether its engine gives alignments and attention.
        tokenizer: The tokenizer.
        src_lang: Code of the source language, None if it is not recorded.
        tgt_lang: Code of the target language, None if it is not recorded.
        directions: The directions that it translates in, with their tags; empty if there is one.
        weights_sha256: SHA-256 of the weights.
        is_guided: Whether it was trained on alignments.
    """

    path: Path
    own_decoding: DecodingConfig
    decoding: dict[str, Any]
    batch_tokens: int
    max_tokens: int
    aligns: bool
    tokenizer: Tokenizer
    src_lang: str | None
    tgt_lang: str | None
    directions: tuple[Direction, ...]
    weights_sha256: str
    is_guided: bool


class Model(Protocol):
    """A model that is loaded, in this process or another. Only one thread may use it at a time."""

    @property
    def info(self) -> ModelInfo:
        """Its description."""

    @property
    def ended(self) -> str | None:
        """Why the model can no longer answer; None if it can."""

    def search(self, batch: Batch) -> list[Candidates]:
        """Translate a batch.

        Raises:
            DstError: The batch cannot be translated, see :meth:`dstransformer.decoding.Translator.search`.
            dstransformer.extras.serving.model_process.ModelEndedError: See :attr:`ended`.
        """

    def attention(self, source: str, target: str) -> AttentionAnswer:
        """See :func:`dstransformer.extras.serving.loaded_model.word_attention`; errors also as for :meth:`search`."""


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
    """The limits with the longest sentence that a model takes: by its positions, and its input limit or the user's."""
    max_tokens = limits.sentence_tokens or info.own_decoding.max_input_tokens or _SENTENCE_TOKENS
    return replace(limits, sentence_tokens=min(max_tokens, info.max_tokens))
