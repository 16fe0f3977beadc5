from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from support.models.threads import one_thread  # noqa: F401
from support.training.trained import trained_bundle

from dstransformer.corpus import Corpus

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


@pytest.fixture(scope="session")
def trained(shared_folder: Callable[[str, Callable[[Path], object]], Path], toy_corpus: Path) -> Path:
    """A bundle that has learned the embedded grammar. Tests must not change it."""
    return shared_folder("trained-bundle", lambda folder: trained_bundle(folder, toy_corpus, updates=150))


@pytest.fixture(scope="session")
def learned(toy_corpus: Path) -> list[str]:
    """Sentences that the model has learned."""
    corpus = Corpus.open(toy_corpus)
    src, lengths, *_ = corpus.split("train").gather(list(range(100)))  # type: ignore[arg-type]
    ends = np.cumsum(lengths).tolist()
    return corpus.tokenizer.decode(
        [src[end - length : end].tolist() for end, length in zip(ends, lengths, strict=True)]
    )
