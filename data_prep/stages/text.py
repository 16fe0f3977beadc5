"""What is done with the text of pairs: normalisation, hashes, word counts, tags and trees."""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from data_prep.recipe.options import NormalForm
from dstransformer.data import MAX_WORDS, WordCounts
from dstransformer.data.form import Form, read_form
from dstransformer.data.tokenizer import plain_spaces

Hashes = npt.NDArray[np.uint64]
Counts = npt.NDArray[np.int64]


def no_words() -> Counts:
    """Zero counts, ``(2, MAX_WORDS + 1)``."""
    return np.zeros((2, MAX_WORDS + 1), dtype=np.int64)


def count_words(src: pa.ChunkedArray, tgt: pa.ChunkedArray) -> Counts:
    """Count the normalised sentences of each side by their words, ``(2, MAX_WORDS + 1)``."""
    counts = no_words()
    for side, texts in enumerate((src, tgt)):
        words = pc.count_substring(texts, " ").to_numpy() + pc.not_equal(texts, "").to_numpy()
        counts[side] = np.bincount(np.minimum(words, MAX_WORDS), minlength=MAX_WORDS + 1)
    return counts


def describe_words(counts: Counts) -> WordCounts:
    """The counts for the manifest, without trailing zeros."""
    src, tgt = (tuple(np.trim_zeros(side, "b").tolist()) for side in counts)
    return WordCounts(src=src, tgt=tgt)


def normalise(text: str, form: NormalForm) -> str:
    """Normalise Unicode, remove control and invisible characters and collapse spaces; ``none`` leaves other spaces."""
    text = plain_spaces(text)
    if form == "none":
        return " ".join(filter(None, text.split(" ")))
    return " ".join(unicodedata.normalize("NFKC" if form == "nfkc" else "NFC", text).split())


def fold(texts: Iterable[str]) -> list[str]:
    """Texts as rules compare them, in Unicode form NFKC."""
    return [normalise(text, "nfkc") for text in texts]


def hash_texts(texts: Iterable[str]) -> Hashes:
    """Hash each text to 64 bits; the chance of any collision among 36M sentences is 1 in 28,000."""
    digests = b"".join(hashlib.blake2b(text.encode(), digest_size=8).digest() for text in texts)
    return np.frombuffer(digests, dtype="<u8").astype(np.uint64)


def hash_pairs(src: Iterable[str], tgt: Iterable[str]) -> Hashes:
    """Hash each sentence pair to 64 bits."""
    return hash_texts(f"{a}\n{b}" for a, b in zip(src, tgt, strict=True))


def comparison_keys(table: pa.Table | pa.RecordBatch) -> tuple[Hashes, Hashes]:
    """Hash the source sentence of each pair, and the whole pair, in Unicode form NFKC."""
    src, tgt = fold(table["src"].to_pylist()), fold(table["tgt"].to_pylist())
    return hash_texts(src), hash_pairs(src, tgt)


@dataclass(frozen=True)
class TextFormat:
    """How the sentences of a corpus are written.

    Attributes:
        tags: The tag of each part, which its source sentences begin with.
        trees: What a manifest states about the trees of the target side; None for text.
    """

    tags: tuple[str | None, ...]
    trees: dict[str, str] | None = None

    @property
    def form(self) -> Form:
        """How the target side is written."""
        return read_form({"trees": self.trees})

    def tagged(self, table: pa.Table) -> list[str]:
        """The source sentences, each with the tag of its part."""
        sentences: list[str] = table["src"].to_pylist()
        if not any(self.tags):
            return sentences
        begins = [f"{tag} " if tag else "" for tag in self.tags]
        return [begins[part] + text for part, text in zip(table["part"].to_pylist(), sentences, strict=True)]
