"""The options of each stage, as they were given or resolved. Defaults stand in ``cli.py``."""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal

from dstransformer.corpus import Option


def printable_name(path: Path) -> str:
    """The name of a file without its folder; what is not UTF-8 in it as escapes."""
    return path.name.encode("utf-8", "backslashreplace").decode()


@dataclass(frozen=True, kw_only=True)
class _Options:
    def record(self) -> dict[str, Option]:
        """The options by name, files without their folders, for the manifest and the stage's key."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {
            name: printable_name(value) if isinstance(value, Path) else value
            for name, value in values.items()
            if value is not None
        }


@dataclass(frozen=True, kw_only=True)
class ToyOptions(_Options):
    """The embedded grammar: ``pairs`` for training, and a validation and a test set beside them."""

    source: Literal["toy"] = "toy"
    src_lang: str
    tgt_lang: str
    pairs: int
    seed: int
    valid_size: int
    test_size: int


@dataclass(frozen=True, kw_only=True)
class FilesOptions(_Options):
    """Local files: two line-aligned texts a split, or one TSV, JSON lines or Parquet file a split."""

    source: Literal["files"] = "files"
    src_lang: str
    tgt_lang: str
    src: Path | None
    tgt: Path | None
    valid_src: Path | None
    valid_tgt: Path | None
    test_src: Path | None
    test_tgt: Path | None
    train: Path | None
    valid: Path | None
    test: Path | None
    valid_size: int
    test_size: int
    seed: int


@dataclass(frozen=True, kw_only=True)
class Wmt14Options(_Options):
    """WMT 2014 from the hub, or from a local copy in the same layout."""

    source: Literal["wmt14"] = "wmt14"
    src_lang: str
    tgt_lang: str
    pair: str
    revision: str
    hub_path: Path | None
    cache_dir: Path | None
    offline: bool

    def record(self) -> dict[str, Option]:
        """What decides the content: where the cache lies and whether the network was used do not."""
        return {name: value for name, value in super().record().items() if name not in ("cache_dir", "offline")}


SourceOptions = ToyOptions | FilesOptions | Wmt14Options


@dataclass(frozen=True, kw_only=True)
class CleanOptions(_Options):
    """What happens to training pairs; lengths in words, that is, what spaces separate."""

    normalise: Literal["nfkc", "none"]
    max_words: int
    max_ratio: float
    dedup: bool
    drop_overlap: bool


@dataclass(frozen=True, kw_only=True)
class VocabOptions(_Options):
    """How the joint tokenizer is trained, or which one is reused."""

    tokenizer: Literal["bpe", "unigram"]
    vocab_size: int
    tokenizer_sample: int
    tokenizer_seed: int
    character_coverage: float
    tokenizer_model: Path | None

    def record(self) -> dict[str, Option]:
        """The options; of a tokenizer that is reused only its file's name, the rest has no effect."""
        return {"tokenizer_model": printable_name(self.tokenizer_model)} if self.tokenizer_model else super().record()


@dataclass(frozen=True, kw_only=True)
class EncodeOptions(_Options):
    """Training pairs over ``max_tokens`` on either side are dropped; ``shard_rows`` pairs make an Arrow file."""

    max_tokens: int
    shard_rows: int
