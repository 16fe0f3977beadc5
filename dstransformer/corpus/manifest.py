"""``manifest.json``: what a corpus holds, what it was made from and how, with a checksum for every shard."""

import hashlib
import json
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from dstransformer.errors import DataError

FORMAT_VERSION = 1
MANIFEST_NAME = "manifest.json"
TOKENIZER_NAME = "tokenizer.model"

Option = str | int | float | bool | None


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Shard(_Record):
    """One Arrow file of a split; ``name`` is relative to the split's folder."""

    name: str
    rows: int
    sha256: str


class LengthStats(_Record):
    """Sentence lengths in tokens, without BOS and EOS."""

    min: int
    mean: float
    max: int


class SplitInfo(_Record):
    """A split's size. ``has_text`` says whether it also holds the raw text, for BLEU."""

    pairs: int
    src_tokens: int
    tgt_tokens: int
    src_lengths: LengthStats
    tgt_lengths: LengthStats
    has_text: bool
    shards: tuple[Shard, ...]


class TokenizerInfo(_Record):
    """The tokenizer beside the manifest; ``sha256`` is of its file."""

    kind: Literal["bpe", "unigram", "given"]
    vocab_size: int
    sha256: str


class InputFile(_Record):
    """A file that was read, by name (not by where it lay) and content."""

    name: str
    sha256: str


class SourceInfo(_Record):
    """Where the text came from: input files with their hashes, or a revision of a hub data set."""

    name: str
    revision: str | None
    inputs: tuple[InputFile, ...]


class CleaningReport(_Record):
    """Training pairs read, kept, and dropped by each rule; ``read == kept + sum(dropped.values())``."""

    read: int
    kept: int
    dropped: dict[str, int]


class Manifest(_Record):
    """Everything about a corpus but its tokens. ``build_key`` is the hash of inputs and options that made it."""

    format_version: int
    build_key: str
    src_lang: str
    tgt_lang: str
    tokenizer: TokenizerInfo
    splits: dict[str, SplitInfo]
    source: SourceInfo
    cleaning: CleaningReport
    options: dict[str, Option]
    command: str
    versions: dict[str, str]

    @classmethod
    def load(cls, folder: Path) -> "Manifest":
        """Read ``folder/manifest.json``; DataError where it is missing, damaged or of another format version."""
        path = folder / MANIFEST_NAME
        try:
            record = json.loads(path.read_bytes())
        except (FileNotFoundError, NotADirectoryError):
            raise DataError(
                f"{folder} is not a corpus: it has no {MANIFEST_NAME}; make one with `dst-prep build --out {folder}`"
            ) from None
        except OSError as error:
            raise DataError(f"cannot read {path}: {error.strerror}") from None
        except ValueError as error:
            raise DataError(f"{path} is damaged ({error}): restore it or build the corpus again") from None
        version = record.get("format_version") if isinstance(record, dict) else None
        if version != FORMAT_VERSION:
            raise DataError(
                f"{path} has format version {version!r}, this program reads version {FORMAT_VERSION}: "
                "build the corpus again with this version's `dst-prep build`"
            )
        try:
            return cls.model_validate(record)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"])
            raise DataError(
                f"{path} is damaged ({where}: {first['msg']}): restore it or build the corpus again"
            ) from None

    def to_json(self) -> str:
        """The text of ``manifest.json``."""
        return self.model_dump_json(indent=2) + "\n"


def file_sha256(path: Path) -> str:
    """Hexadecimal SHA-256 of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
