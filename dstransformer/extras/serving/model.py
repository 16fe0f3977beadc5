"""The interface of the server to its model, which runs in a separate process. Nothing here imports torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple, Protocol

from dstransformer.config import DecodingConfig
from dstransformer.data.alignment import Link
from dstransformer.data.directions import Direction
from dstransformer.data.tokenizer import Tokenizer


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

    def attention(self, source: str, target: str) -> dict[str, Any]:
        """See :func:`dstransformer.extras.serving.loaded_model.word_attention`; errors also as for :meth:`search`."""
