"""The options of every source and stage, each with its type, bounds, default and description in one place.

The command line is generated from these models. Errors name an option by its flag.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, get_args

from annotated_types import Ge, Le
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    FiniteFloat,
    model_validator,
)
from pydantic.fields import FieldInfo

from data_prep.recipe.names import (
    Address,
    check_columns,
    check_distinct,
    check_hub_splits,
    check_language,
    check_list,
    check_source,
    check_splits,
    check_symbol,
    check_tag,
    check_utf8,
    printable_name,
    to_path,
    to_text,
    to_texts,
)

if TYPE_CHECKING:  # imports NumPy and Arrow; `--help` must answer at once
    from dstransformer.data import Option


@dataclass(frozen=True)
class Placeholder:
    """Stands for a value in usage and help, such as ``N``."""

    name: str


Language = Annotated[str, AfterValidator(check_language), Placeholder("CODE")]
SourceName = Annotated[str, AfterValidator(check_source)]
TextFile = Annotated[Path, BeforeValidator(to_path), Placeholder("FILE")]
OneText = Annotated[Path | Address, BeforeValidator(to_text)]
Texts = Annotated[tuple[Path | Address, ...], BeforeValidator(to_texts), Placeholder("FILE")]
Folder = Annotated[Path, BeforeValidator(to_path), AfterValidator(check_utf8), Placeholder("DIR")]
Count = Annotated[int, Field(ge=0, le=10**9), Placeholder("N")]
PositiveCount = Annotated[int, Field(ge=1, le=10**9), Placeholder("N")]
Seed = Annotated[int, Field(ge=0, le=2**63 - 1), Placeholder("N")]
Symbols = Annotated[
    tuple[Annotated[str, AfterValidator(check_symbol)], ...],
    BeforeValidator(check_list),
    AfterValidator(check_distinct),
    Placeholder("SYMBOL"),
]


def _recorded(value: Any) -> Any:
    """The value of an option as the manifest has it, in words of a shell: without folders and secrets."""
    if isinstance(value, tuple) and len(value) != 1:
        return shlex.join(printable_name(one) if isinstance(one, Path) else str(one) for one in value)
    (value,) = value if isinstance(value, tuple) else (value,)
    if not isinstance(value, Path | Address | str):
        return value
    name = printable_name(value) if isinstance(value, Path) else str(value)
    return shlex.quote(name) if re.search(r"[\s'\"\\]", name) else name


#: Marks an option that only a recipe in a file has.
RECIPE_ONLY: dict[str, Any] = {"recipe_only": True}


#: Options that do not change the corpus.
_UNRECORDED = ("cache_dir", "offline")


class Options(BaseModel):
    """A frozen group of options. Unknown names are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    def record(self) -> dict[str, Option]:
        """Return the options that decide what the corpus holds, for the manifest and the stage's key.

        Files are recorded without their folders. Options that are None are left out.
        """
        return {name: _recorded(value) for name, value in self if value is not None and name not in _UNRECORDED}


class _SourceOptions(Options):
    """Options of every source; for those that only recipes have there are no flags."""

    weight: Annotated[FiniteFloat, Field(ge=0, le=10_000)] = Field(
        1.0, description="how often its pairs are used in an epoch of training", json_schema_extra=RECIPE_ONLY
    )
    tag: Annotated[str, AfterValidator(check_tag)] | None = Field(
        None,
        description="a piece that its source sentences begin with, such as <bt> or >>deu<<",
        json_schema_extra=RECIPE_ONLY,
    )
    held_out: bool = Field(
        True, description="whether its validation and test sets are used", json_schema_extra=RECIPE_ONLY
    )
    any_language: bool = Field(  # before the codes, which are checked by it
        False, description="take language codes that no table knows, for languages with spaces"
    )

    def record(self) -> dict[str, Option]:
        """Return the options that decide what the corpus holds; of those of every source only what is given."""
        unset = {name for name in _SourceOptions.model_fields if name not in self.model_fields_set}
        return {name: value for name, value in super().record().items() if name not in unset}


class ToyOptions(_SourceOptions):
    """The embedded grammar."""

    model_config = ConfigDict(title="source toy: an English-German grammar")

    source: Literal["toy"] = "toy"
    src_lang: Language = Field("en", description="language code of the source side, for example en")
    tgt_lang: Language = Field("de", description="language code of the target side, for example de")
    pairs: Annotated[int, Field(ge=1, le=10**7), Placeholder("N")] = Field(50_000, description="training pairs")
    seed: Seed = Field(1, description="seed of the sentences drawn")
    valid_size: Count = Field(1000, description="validation pairs")
    test_size: Count = Field(1000, description="test pairs")
    aligned: bool = Field(False, description="store the grammar's word alignments with the training pairs")

    def record(self) -> dict[str, Option]:
        """Return the options that decide what the corpus holds; ``aligned`` only if it is asked for."""
        return {name: value for name, value in super().record().items() if name != "aligned" or value}


class TextOptions(_SourceOptions):
    """Options of every source of text that people wrote."""

    unquote: bool | None = Field(
        None, description='take the quotes off sentences in quotes, as tables have them ("She said ""no"".")'
    )
    unescape: Literal["html"] | None = Field(
        None, description="write the characters that entities such as &apos; and &#91; stand for"
    )


class DividedOptions(TextOptions):
    """Options of every source of which held-out sets may be taken out of the training text."""

    valid_size: Count = Field(0, description="training pairs held out for validation")
    test_size: Count = Field(0, description="training pairs held out for testing")
    seed: Seed = Field(1, description="seed of the choice of held-out pairs")

    @property
    def held_out_sizes(self) -> dict[str, int]:
        """The sizes of the splits that are held out, by their names."""
        return {split: size for split, size in (("validation", self.valid_size), ("test", self.test_size)) if size}

    @model_validator(mode="after")
    def _hold_out(self) -> Self:
        if self.held_out_sizes and not self.held_out:
            size, *_ = self.held_out_sizes.values()
            raise ValueError(f"held_out is false, but {size} pairs are to be held out: leave one of them out")
        return self


class FilesOptions(DividedOptions):
    """Files: for each split two line-aligned texts, or files with both sides, such as TSV, JSON lines, Parquet, TMX."""

    model_config = ConfigDict(
        title="source files: per split two texts, line by line, or one .tsv, .jsonl, .tmx, .xml, .parquet or .arrow, "
        "OPUS's .txt.zip, or a folder of mtdata; text may be compressed, and a FILE an address"
    )

    source: Literal["files"] = "files"
    src_lang: Language = Field(description="language code of the source side, for example en")
    tgt_lang: Language = Field(description="language code of the target side, for example de")
    src: Texts | None = Field(
        None,
        description="source side of the training text; several files, or a pattern in quotes, follow each other, here "
        "and below",
    )
    tgt: Texts | None = Field(None, description="target side of the training text")
    valid_src: Texts | None = Field(None, description="source side of the validation text")
    valid_tgt: Texts | None = Field(None, description="target side of the validation text")
    test_src: Texts | None = Field(None, description="source side of the test text")
    test_tgt: Texts | None = Field(None, description="target side of the test text")
    train: Texts | None = Field(
        None, description="both sides of the training text; a corpus of OPUS by name: opus:Books/v1"
    )
    valid: Texts | None = Field(None, description="both sides of the validation text")
    test: Texts | None = Field(None, description="both sides of the test text")
    scores: Texts | None = Field(None, description="a score of each training pair, one a line, by any other tool")
    min_score: Annotated[FiniteFloat, Placeholder("X")] | None = Field(
        None, description="drop training pairs with a lower score"
    )
    alignments: Texts | None = Field(
        None,
        description="word alignments of the training text, such as 0-0 1-2, a line for each pair, by any other tool",
    )
    cache_dir: Folder | None = Field(None, description="where downloads are kept")
    offline: bool = Field(False, description="use the cache only")

    @model_validator(mode="after")
    def _go_together(self) -> Self:
        if (self.scores is None) != (self.min_score is None):
            raise ValueError("--scores and --min-score go together: give both or none")
        if self.alignments and self.unescape:
            raise ValueError(
                "--unescape may change the words that --alignments counts: unescape the text first, then align it"
            )
        return self


class MonoOptions(TextOptions):
    """Text of one language, without a translation, and held-out text that it must not have."""

    model_config = ConfigDict(title="text")

    source: Literal["mono"] = "mono"
    lang: Language = Field(description="language code of the text, for example de")
    text: Texts = Field(description="one sentence a line; several files, or a pattern in quotes, follow each other")
    held_out_text: Texts | None = Field(None, description="drop the sentences of these files, such as a test set")
    cache_dir: Folder | None = Field(None, description="where downloads are kept")
    offline: bool = Field(False, description="use the cache only")

    def record(self) -> dict[str, Option]:
        """Return the options that decide what the text holds. Each sentence is taken as a pair with itself."""
        record = super().record()
        return record | {"src_lang": self.lang, "tgt_lang": self.lang}


class HubOptions(DividedOptions):
    """Any data set of the Hugging Face hub with two columns of text, or a local copy of one."""

    model_config = ConfigDict(title="source hub: a data set of the Hugging Face hub")

    source: Literal["hub"] = "hub"
    name: Annotated[str, AfterValidator(check_utf8), Placeholder("NAME")] | None = Field(
        None, description="the data set on the hub, such as Helsinki-NLP/opus-100; or give --hub-path"
    )
    subset: Annotated[str, Placeholder("NAME")] | None = Field(None, description="its subset, such as de-en")
    src_lang: Language = Field(description="language code of the source side, for example en")
    tgt_lang: Language = Field(description="language code of the target side, for example de")
    splits: Annotated[str, AfterValidator(check_hub_splits), Placeholder("HOW")] = Field(
        "train,validation,test",
        description="its splits for training, validation and test; of these names the last ones may be missing",
    )
    columns: Annotated[str, AfterValidator(check_columns), Placeholder("NAMES")] | None = Field(
        None,
        description="its columns: SRC,TGT, or one that holds an object with both languages (without: "
        "translation, or the language codes)",
    )
    revision: str = Field("main", description="revision of the hub's data set")
    hub_path: Folder | None = Field(None, description="a local copy in the hub's layout")
    cache_dir: Folder | None = Field(None, description="where `datasets` keeps downloads")
    offline: bool = Field(False, description="use the cache only")

    @model_validator(mode="after")
    def _name_something(self) -> Self:
        if self.name is None and self.hub_path is None:
            raise ValueError("source hub needs --name, such as Helsinki-NLP/opus-100, or --hub-path")
        return self


class Wmt14Options(TextOptions):
    """WMT 2014 from the hub, or from a local copy in the same layout."""

    model_config = ConfigDict(title="source wmt14")

    source: Literal["wmt14"] = "wmt14"
    pair: Literal["de-en", "fr-en"] = Field("de-en", description="language pair")
    src_lang: Language = Field("en", description="language code of the source side, for example en")
    tgt_lang: Language = Field(
        default_factory=lambda options: str(options["pair"]).removesuffix("-en"),
        description="language code of the target side, for example de",
        json_schema_extra={"default": "by --pair"},
    )
    revision: str = Field("main", description="revision of the hub's data set")
    hub_path: Folder | None = Field(None, description="a local copy in the hub's layout")
    cache_dir: Folder | None = Field(None, description="where `datasets` keeps downloads")
    offline: bool = Field(False, description="use the cache only")


class TreesOptions(_SourceOptions):
    """Constituency trees: a corpus for a parser, whose source side is the words and whose target side the tree."""

    model_config = ConfigDict(title="source trees: files in the format of the Penn Treebank, for a parser")

    source: Literal["trees"] = "trees"
    src_lang: Language = Field("en", description="language code of the source side, for example en")
    tgt_lang: Literal["tree"] = Field("tree", description="always tree")
    trees: TextFile | None = Field(
        None, description="a treebank: a .mrg file, a folder of them, or a pattern in quotes; may be gzipped"
    )
    splits: Annotated[str, AfterValidator(check_splits), Placeholder("HOW")] = Field(
        "wsj",
        description="how the treebank is divided: wsj (sections 02 to 21, 22, 23 by file name), files:DEV,TEST (the "
        "last files, as shares), random:DEV,TEST (sentences, as shares), or none; one share is for both",
    )
    valid_trees: TextFile | None = Field(None, description="trees for validation, instead of a part of the treebank")
    test_trees: TextFile | None = Field(None, description="trees for the test, instead of a part of the treebank")
    machine_trees: TextFile | None = Field(
        None, description="trees of a parser, added to the training trees (semi-supervised)"
    )
    repeat: PositiveCount = Field(1, description="how often the treebank's training trees are used in an epoch")
    phrases: Count = Field(
        0, description="also train on the phrases of 2 to N words inside the treebank's training trees, for small ones"
    )
    tags: Literal["keep", "xx", "numbered"] = Field(
        "keep", description="part-of-speech tags: keep them, write XX for all, or number the words on both sides"
    )
    closing: Literal["label", "bare"] = Field("label", description="closing brackets: with their label, or bare")
    seed: Seed = Field(1, description="seed of random splits")


#: The options of a source. `sources/opening.py` opens each kind.
SourceOptions = ToyOptions | FilesOptions | HubOptions | Wmt14Options | TreesOptions

#: A Unicode normalisation form, or none.
NormalForm = Literal["nfkc", "nfc", "none"]

#: Options that say how near duplicates are found.
_NEAR_DETAILS = ("near_text", "near_shingles", "near_size", "near_seed")

#: The options that decide a vocabulary whose models are given.
_OF_GIVEN_MODELS = ("joint", "src_tokenizer_model", "tokenizer_model", "symbols")


class CleanOptions(Options):
    """How training pairs are cleaned. Lengths are in words, which spaces separate; else see the guide."""

    model_config = ConfigDict(title="cleaning of the training text")

    normalise: NormalForm = Field("nfkc", description="Unicode form of the source side, which a model reads")
    normalise_target: NormalForm = Field("nfc", description="Unicode form of the target side, which a model writes")
    max_words: PositiveCount = Field(250, description="drop pairs with more words on either side")
    min_words: PositiveCount | None = Field(None, description="drop pairs with fewer words on either side")
    max_ratio: Annotated[FiniteFloat, Field(ge=1), Placeholder("R")] = Field(
        4.0, description="drop pairs whose longer side has more than R * (words of the shorter + 1) words"
    )
    punctuation: Literal["keep", "moses"] = Field(
        "keep", description="punctuation: keep it, or write it as Moses' normalize-punctuation does"
    )
    drop_identical: bool = Field(False, description="drop pairs whose sides are the same text")
    min_script: Annotated[FiniteFloat, Field(ge=0, le=1), Placeholder("SHARE")] = Field(
        0.0, description="drop pairs with a side of whose letters less than SHARE are of its language's script"
    )
    drop_numbers: bool = Field(False, description="drop pairs whose sides have different numbers")
    drop_placeholders: bool = Field(
        False,
        description="for messages of programs: drop pairs whose placeholders ({0}, $name, printf) or tags differ",
    )
    drop_accelerators: bool = Field(
        False, description="for messages of programs: drop pairs one side of which marks a key (_File, &File, ~File)"
    )
    min_language: Annotated[FiniteFloat, Field(ge=0, le=1), Placeholder("P")] = Field(
        0.0, description="drop pairs with a side whose language is not the one it should be with probability P"
    )
    dedup: bool = Field(True, description="drop repeated pairs")
    near_duplicates: Annotated[FiniteFloat, Ge(0.5), Le(1), Placeholder("J")] | None = Field(
        None,
        description="drop pairs whose text is like an earlier pair's, by a Jaccard index of J or more, such as 0.8",
    )
    near_text: Literal["both", "src", "tgt"] = Field("both", description="the text that --near-duplicates compares")
    near_shingles: Literal["chars", "words"] = Field(
        "chars", description="what --near-duplicates counts: overlapping runs of characters or of words"
    )
    near_size: Annotated[int, Field(ge=1, le=20), Placeholder("N")] = Field(5, description="length of such a run")
    near_seed: Seed = Field(1, description="seed of the hash functions that --near-duplicates finds candidates with")
    drop_overlap: bool = Field(
        False,
        description="drop training pairs whose source sentence is in the validation or test set, "
        "which are otherwise only counted",
    )

    @model_validator(mode="after")
    def _near_options_go_together(self) -> Self:
        given = sorted(name for name in self.model_fields_set if name in _NEAR_DETAILS)
        if given and self.near_duplicates is None:
            raise ValueError(f"--{given[0].replace('_', '-')} needs --near-duplicates: give both or none")
        return self

    def record(self) -> dict[str, Option]:
        """Return the options that decide what the corpus holds; of near duplicates only if they are dropped."""
        record = super().record()
        return {k: v for k, v in record.items() if self.near_duplicates is not None or k not in _NEAR_DETAILS}


#: The options of cleaning that mean something for text of one language.
MONO_CLEANING = (
    "normalise",
    "max_words",
    "min_words",
    "punctuation",
    "min_script",
    "min_language",
    "dedup",
    "near_duplicates",
    "near_shingles",
    "near_size",
    "near_seed",
)


class VocabOptions(Options):
    """How the tokenizers are trained, or which one is reused."""

    model_config = ConfigDict(title="vocabulary")

    tokenizer: Literal["bpe", "unigram"] = Field("bpe", description="kind of tokenizer")
    vocab_size: Annotated[int, Field(ge=1, le=10**7), Placeholder("N")] = Field(
        37_000, description="pieces, special ones included; with --no-joint of each language"
    )
    joint: bool = Field(True, description="one vocabulary for both languages; --no-joint: one for each")
    tokenizer_sample: PositiveCount = Field(5_000_000, description="train on at most N lines")
    tokenizer_seed: Seed = Field(1, description="seed of that sample")
    # The bounds are SentencePiece's.
    character_coverage: Annotated[FiniteFloat, Field(ge=0.98, le=1), Placeholder("SHARE")] = Field(
        1.0, description="share of characters that get their own piece; the rest is spelled in bytes"
    )
    tokenizer_model: TextFile | None = Field(
        None, description="reuse this tokenizer instead of training one; with --no-joint that of the target language"
    )
    src_tokenizer_model: TextFile | None = Field(None, description="with --no-joint: that of the source language")
    symbols: Symbols = Field(
        (), description="your own pieces, such as <ph1>, which stay whole wherever they occur in a text"
    )

    @model_validator(mode="after")
    def _is_trained_or_given(self) -> Self:
        if self.tokenizer_model and self.model_fields_set & {"tokenizer", "vocab_size"}:
            raise ValueError("--tokenizer-model has its own kind and size: leave out --tokenizer and --vocab-size")
        if self.src_tokenizer_model and self.joint:
            raise ValueError("--src-tokenizer-model is for a vocabulary of each language: give --no-joint too")
        if not self.joint and (self.tokenizer_model is None) != (self.src_tokenizer_model is None):
            raise ValueError("--no-joint takes both --src-tokenizer-model and --tokenizer-model, or trains both")
        return self

    def record(self) -> dict[str, Option]:
        """Return the options, symbols as words; of reused tokenizers only their names and the symbols they have."""
        record = super().record() | {"symbols": " ".join(self.symbols)}
        if not self.symbols:
            del record["symbols"]
        if not self.tokenizer_model:
            return record
        if self.joint:
            del record["joint"]
        return {name: value for name, value in record.items() if name in _OF_GIVEN_MODELS}


class EncodeOptions(Options):
    """How pairs are encoded and stored."""

    model_config = ConfigDict(title="encoding")

    max_tokens: Annotated[int, Field(ge=1, le=10**6), Placeholder("N")] = Field(
        256, description="drop training pairs with more tokens on either side"
    )
    shard_rows: PositiveCount = Field(1_000_000, description="pairs per shard")

    @model_validator(mode="after")
    def _fits_arrow(self) -> Self:
        if self.shard_rows * self.max_tokens >= 1 << 31:
            raise ValueError(
                f"--shard-rows {self.shard_rows} with --max-tokens {self.max_tokens} may need more than 2^31 tokens "
                f"in one shard: give at most --shard-rows {((1 << 31) - 1) // self.max_tokens}"
            )
        return self


#: The options of every stage that has any.
STAGES: dict[str, type[Options]] = {"clean": CleanOptions, "vocab": VocabOptions, "encode": EncodeOptions}

#: The sources by their names.
SOURCES: dict[str, type[SourceOptions]] = {
    model.model_fields["source"].default: model for model in get_args(SourceOptions)
}


def option_kind(field: FieldInfo) -> Any:
    """Return the type of an option's value, without None and annotated with its bounds."""
    if type(None) in get_args(field.annotation):
        return get_args(field.annotation)[0]
    return Annotated[field.annotation, *field.metadata] if field.metadata else field.annotation
