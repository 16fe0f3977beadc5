from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from support.models.threads import one_thread  # noqa: F401

from dstransformer.data import Corpus

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


@pytest.fixture(scope="session")
def learned(toy_corpus: Path) -> list[str]:
    """Sentences that the model has learned."""
    corpus = Corpus.open(toy_corpus)
    src, lengths, *_ = corpus.split("train").gather(list(range(100)))  # type: ignore[arg-type]
    ends = np.cumsum(lengths).tolist()
    return corpus.tokenizer.decode(
        [src[end - length : end].tolist() for end, length in zip(ends, lengths, strict=True)]
    )
