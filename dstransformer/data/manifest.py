"""``manifest.json``: what a corpus holds, with a checksum for every shard, and how it was built from which input."""

import json
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    FiniteFloat,
    NonNegativeInt,
    PositiveInt,
    StringConstraints,
    model_validator,
)

from dstransformer.data.directions import Direction
from dstransformer.data.form import Form, read_form
from dstransformer.errors import shell_word, shown
from dstransformer.io.files import is_plain_name
from dstransformer.io.json_text import read_record
from dstransformer.io.products import check_kind, kind_of

MANIFEST_NAME = "manifest.json"

#: Sentences with this many words or more are counted together.
MAX_WORDS = 250

Option = str | int | float | bool | None


def _plain_name(name: str) -> str:
    """Refuse a name that could lead out of its folder or that no file can have."""
    if not is_plain_name(name):
        raise ValueError(f"{shown(name)} is not a plain file name")
    return name


PlainName = Annotated[str, AfterValidator(_plain_name)]
Sha256 = Annotated[str, StringConstraints(pattern="^[0-9a-f]{64}$")]


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Shard(_Section):
    """One Arrow file of a split; ``name`` is relative to the split's folder."""

    name: PlainName
    rows: PositiveInt
    sha256: Sha256


class LengthStats(_Section):
    """Sentence lengths in tokens, without BOS and EOS; ``mean`` is rounded to 4 places."""

    min: NonNegativeInt
    mean: FiniteFloat
    max: NonNegativeInt


class SplitInfo(_Section):
    """A split's size. ``has_text`` tells whether it also holds the raw text, for BLEU.

    ``src_unknown`` and ``tgt_unknown`` count UNK tokens.
    ``links`` is the number of links between words; it is None if the pairs have no alignments.
    ``directions`` has the pairs of each direction, ``en-de``, of a held-out split of several, in their order; otherwise
    it is None.
    """

    pairs: PositiveInt
    src_tokens: NonNegativeInt
    tgt_tokens: NonNegativeInt
    src_lengths: LengthStats
    tgt_lengths: LengthStats
    src_unknown: NonNegativeInt
    tgt_unknown: NonNegativeInt
    has_text: bool
    directions: dict[str, PositiveInt] | None = None
    links: NonNegativeInt | None = None
    shards: Annotated[tuple[Shard, ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _adds_up(self) -> Self:
        rows = sum(shard.rows for shard in self.shards)
        if rows != self.pairs:
            raise ValueError(f"pairs is {self.pairs}, but the rows of its shards add up to {rows}")
        if len({shard.name for shard in self.shards}) != len(self.shards):
            raise ValueError("shards names a file twice")
        if self.directions is not None and sum(self.directions.values()) != self.pairs:
            raise ValueError(f"pairs is {self.pairs}, but those of its directions add up to another number")
        for side in ("src", "tgt"):
            lengths, tokens = getattr(self, f"{side}_lengths"), getattr(self, f"{side}_tokens")
            if getattr(self, f"{side}_unknown") > tokens:
                raise ValueError(f"{side}_unknown is more than the {tokens} tokens")
            least, most = self.pairs * lengths.min, self.pairs * lengths.max
            if not (lengths.min <= lengths.mean <= lengths.max and least <= tokens <= most):
                raise ValueError(f"{side}_lengths cannot be those of {self.pairs} sentences with {tokens} tokens")
        return self


class TokenizerInfo(_Section):
    """The tokenizer beside the manifest; ``sha256`` is of its file."""

    kind: Literal["bpe", "unigram", "given"]
    vocab_size: PositiveInt
    sha256: Sha256


class InputFile(_Section):
    """An input file: its name without its folder, its content's hash, and its size in bytes, if that is recorded."""

    name: str
    sha256: Sha256
    size: NonNegativeInt | None = None


class SourceInfo(_Section):
    """A source of text: input files with their hashes, or a revision of a hub data set."""

    name: str
    revision: str | None
    inputs: tuple[InputFile, ...]


class PartInfo(_Section):
    """The training pairs of one source. They follow those of the source before it.

    ``weight`` is how often they are used in an epoch, ``tag`` the piece that their source sentences begin with,
    ``read`` the number of pairs before cleaning, ``pairs`` after it. ``dropped`` counts those that each rule dropped,
    ``held_out`` those removed before cleaning, for held-out sets or because they share a source sentence with one.
    ``files`` has, if there are several, the name of each, its pairs before cleaning, and after it.
    """

    name: str
    src_lang: str
    tgt_lang: str
    weight: Annotated[FiniteFloat, Field(ge=0)]
    tag: str | None
    read: NonNegativeInt
    pairs: NonNegativeInt
    dropped: dict[str, NonNegativeInt] | None = None
    held_out: NonNegativeInt | None = None
    files: tuple[tuple[str, NonNegativeInt, NonNegativeInt], ...] = ()

    @model_validator(mode="after")
    def _adds_up(self) -> Self:
        if self.dropped is not None and self.read != self.pairs + sum(self.dropped.values()):
            raise ValueError(f"read is {self.read}, but pairs and dropped do not add up to it")
        read, pairs = sum(n for _, n, _ in self.files), sum(n for _, _, n in self.files)
        if self.files and (self.read, self.pairs) != (read, pairs):
            raise ValueError(f"read is {self.read} and pairs {self.pairs}, but those of the files add up to others")
        return self


class WordCounts(_Section):
    """Numbers of sentences of each side by their length in words: item ``n`` counts those of ``n`` words, the last
    possible item those of ``MAX_WORDS`` or more. Spaces separate words.
    """

    src: Annotated[tuple[NonNegativeInt, ...], Field(max_length=MAX_WORDS + 1)]
    tgt: Annotated[tuple[NonNegativeInt, ...], Field(max_length=MAX_WORDS + 1)]


class CleaningReport(_Section):
    """Training pairs read, kept, and dropped by each rule; ``read == kept + sum(dropped.values())``.

    ``examples`` are some dropped pairs of each rule. ``before`` and ``after`` count the words of the sentences read and
    kept.
    """

    read: PositiveInt
    kept: PositiveInt
    dropped: dict[str, NonNegativeInt]
    examples: dict[str, tuple[tuple[str, str], ...]] = {}
    before: WordCounts | None = None
    after: WordCounts | None = None

    @model_validator(mode="after")
    def _adds_up(self) -> Self:
        if self.read != self.kept + sum(self.dropped.values()):
            raise ValueError(f"read is {self.read}, but kept and dropped do not add up to it")
        for name, words, pairs in (("before", self.before, self.read), ("after", self.after, self.kept)):
            if words is not None and not sum(words.src) == sum(words.tgt) == pairs:
                raise ValueError(f"the sentences that {name} counts do not add up to {pairs} pairs")
        return self


class Overlap(_Section):
    """How much of a held-out split is in the training text, after Unicode normalisation.

    ``sentences`` counts its pairs whose source sentence occurs there, ``pairs`` those with the same translation.
    """

    sentences: NonNegativeInt
    pairs: NonNegativeInt

    @model_validator(mode="after")
    def _adds_up(self) -> Self:
        if self.pairs > self.sentences:
            raise ValueError(f"pairs is {self.pairs}, more than the {self.sentences} sentences")
        return self


class Manifest(_Section):
    """Everything about a corpus except its tokens. ``build_key`` is a hash of its inputs and options.

    ``overlap`` has an entry for each held-out split. ``trees`` states the :attr:`form` of a corpus for a parser; it is
    None if the target side is text. ``recipes`` are the files of the recipe and of those that it extends, if there was
    one. ``src_tokenizer`` is that of the source side; it is None if ``tokenizer`` is for both sides. ``src_lang`` and
    ``tgt_lang`` are ``mul`` where the parts have several languages. ``warnings`` are those of the build, such as sides
    that may be swapped.
    """

    build_key: str
    src_lang: str
    tgt_lang: str
    tokenizer: TokenizerInfo
    src_tokenizer: TokenizerInfo | None = None
    trees: dict[str, str] | None = None
    splits: Annotated[dict[PlainName, SplitInfo], Field(min_length=1)]
    sources: Annotated[tuple[SourceInfo, ...], Field(min_length=1)]
    parts: tuple[PartInfo, ...] = ()
    recipes: tuple[InputFile, ...] = ()
    cleaning: CleaningReport
    overlap: dict[str, Overlap] | None = None
    options: dict[str, Option]
    command: str
    versions: dict[str, str]
    warnings: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _adds_up(self) -> Self:
        train = self.splits.get("train")
        if train and train.pairs != self.cleaning.kept:
            raise ValueError(f"cleaning.kept is {self.cleaning.kept}, but splits.train.pairs is {train.pairs}")
        if train and self.parts and train.pairs != sum(part.pairs for part in self.parts):
            raise ValueError(
                f"splits.train.pairs is {train.pairs}, but the pairs of the parts add up to another number"
            )
        if len({part.name for part in self.parts}) != len(self.parts):
            raise ValueError("parts names a source twice")
        _ = self.form
        for name, overlap in (self.overlap or {}).items():
            if name not in self.splits or overlap.sentences > self.splits[name].pairs:
                raise ValueError(f"overlap.{name} names an unknown split or counts more pairs than the split has")
        dropped = [part.dropped for part in self.parts if part.dropped is not None]
        rules = self.cleaning.dropped.keys() | {rule for counts in dropped for rule in counts}
        for rule in sorted(rules) if dropped and len(dropped) == len(self.parts) else ():
            stated, of_parts = self.cleaning.dropped.get(rule, 0), sum(counts.get(rule, 0) for counts in dropped)
            if stated != of_parts:
                raise ValueError(f"cleaning.dropped.{rule} is {stated}, but those of the parts add up to {of_parts}")
        return self

    @property
    def form(self) -> Form:
        """How the target side is written."""
        return read_form({"trees": self.trees})

    @property
    def directions(self) -> tuple[Direction, ...]:
        """The different directions and tags of the parts, if there are several directions."""
        directions = [
            Direction(part.src_lang, part.tgt_lang, part.tag) for part in self.parts if part.src_lang and part.tgt_lang
        ]
        return tuple(dict.fromkeys(directions)) if len({direction.name for direction in directions}) > 1 else ()

    @classmethod
    def load(cls, folder: Path) -> "Manifest":
        """Read ``folder/manifest.json`` of this or an older format.

        Raises:
            DataError: The folder is not a corpus, the file is missing or damaged, or the format is newer.
        """
        check_kind(folder, "corpus", _advice(folder))
        return read_record(
            folder / MANIFEST_NAME,
            lambda record: cls.model_validate_json(json.dumps(record), strict=True),
            advice="restore it or build the corpus again",
        )

    @property
    def languages(self) -> str:
        """The languages: ``en-de``; of several directions ``en-de, de-en``."""
        names = dict.fromkeys(direction.name for direction in self.directions)
        return ", ".join(names) or f"{self.src_lang}-{self.tgt_lang}"

    @property
    def vocabulary(self) -> str:
        """The number of pieces in words; of both sides if each has its own vocabulary."""
        tgt = f"{self.tokenizer.vocab_size:,}"
        return tgt if self.src_tokenizer is None else f"{self.src_tokenizer.vocab_size:,} and {tgt}"

    @property
    def identity(self) -> dict[str, Any]:
        """What tells whether another corpus is the same, and how to build it again, as plain data.

        ``shards`` are the hashes of each split, in their order.
        """
        return {
            "command": self.command,
            "sources": [source.model_dump() for source in self.sources],
            "recipes": [recipe.model_dump() for recipe in self.recipes],
            "versions": self.versions,
            "shards": {name: [shard.sha256 for shard in split.shards] for name, split in self.splits.items()},
        }

    def to_json(self) -> str:
        """Return the text of ``manifest.json``."""
        return self.model_dump_json(indent=2) + "\n"


def _advice(folder: Path) -> str:
    """What to do about a folder that is not a corpus."""
    inner = sorted(folder.iterdir()) if folder.is_dir() else []
    if built := [path for path in inner if kind_of(path) == "corpus"]:
        return f"did you mean {built[0]}?"
    if inner or folder.is_file():
        return "name the folder that `dst-prep build` made"
    return f"make one with `dst-prep build --out {shell_word(folder)}`"
