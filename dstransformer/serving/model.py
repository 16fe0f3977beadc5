"""The interface of the server to its model, which runs in a separate process. Nothing here imports torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple, Protocol

from dstransformer.config import DecodingConfig, ModelConfig
from dstransformer.corpus.tokenizer import Tokenizer


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
    """Sentences that are translated together, and how many hypotheses of each are wanted."""

    queries: list[Query]
    n_best: int


class Candidate(NamedTuple):
    """One translation of a sentence.

    Attributes:
        text: On one line.
        score: Log-probability over the length penalty.
        log_probability: Of the tokens and the end, in nats.
        tokens: Its length, without its end.
    """

    text: str
    score: float
    log_probability: float
    tokens: int


#: What a search gives for a sentence: its translations, best first; None if the model computes NaN.
Found = list[Candidate] | None


class Facts(NamedTuple):
    """Facts about a loaded model.

    Attributes:
        path: The bundle's folder.
        architecture: The model's.
        own_decoding: The settings of the search in the bundle.
        decoding: Those in use, with ``device`` and ``precision``.
        tokenizer: The tokenizer.
        src_lang: Code of the source language, None if it is not recorded.
        tgt_lang: Code of the target language, None if it is not recorded.
        weights_sha256: SHA-256 of the weights.
    """

    path: Path
    architecture: ModelConfig
    own_decoding: DecodingConfig
    decoding: dict[str, Any]
    tokenizer: Tokenizer
    src_lang: str | None
    tgt_lang: str | None
    weights_sha256: str


class Model(Protocol):
    """A model that is loaded, in this process or another. Only one thread may use it at a time."""

    @property
    def facts(self) -> Facts:
        """What it is."""

    @property
    def ended(self) -> str | None:
        """Why the model cannot answer any more; None if it can."""

    def search(self, batch: Batch) -> list[Found]:
        """Translate a batch.

        Raises:
            DstError: It cannot be translated, see :meth:`dstransformer.decoding.Translator.search`.
            dstransformer.serving.process.ModelEndedError: See :attr:`ended`.
        """

    def attention(self, source: str, target: str) -> dict[str, Any]:
        """See :func:`dstransformer.serving.loaded.word_attention`; errors also as for :meth:`search`."""
