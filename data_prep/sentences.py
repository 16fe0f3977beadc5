"""When two sentences count as equal: normalised text and hashes of it."""

import hashlib
import unicodedata
from collections.abc import Iterable
from typing import Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dstransformer.corpus.text import plain_spaces

Hashes = npt.NDArray[np.uint64]


def normalise(text: str, form: Literal["nfkc", "none"]) -> str:
    """Unicode-normalised text without control characters, with single spaces."""
    text = plain_spaces(text)
    if form == "nfkc":
        text = unicodedata.normalize("NFKC", text)
    return " ".join(filter(None, text.split(" ")))


def hash_texts(texts: Iterable[str]) -> Hashes:
    """64-bit hashes: among 36M sentences, that any two collide has a chance of 1 in 28,000."""
    digests = b"".join(hashlib.blake2b(text.encode(), digest_size=8).digest() for text in texts)
    return np.frombuffer(digests, dtype="<u8").astype(np.uint64)


def hash_pairs(src: Iterable[str], tgt: Iterable[str]) -> Hashes:
    """64-bit hashes of sentence pairs."""
    return hash_texts(f"{a}\n{b}" for a, b in zip(src, tgt, strict=True))


def comparison_keys(table: pa.Table | pa.RecordBatch) -> tuple[Hashes, Hashes]:
    """Of each pair a hash of the source sentence and one of the whole, in Unicode form NFKC."""
    src = [normalise(text, "nfkc") for text in table["src"].to_pylist()]
    tgt = [normalise(text, "nfkc") for text in table["tgt"].to_pylist()]
    return hash_texts(src), hash_pairs(src, tgt)
