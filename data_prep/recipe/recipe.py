"""What a corpus is made from and how: its sources by name, and the options of every stage."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, ValidationInfo, field_validator

from data_prep.recipe.options import CleanOptions, EncodeOptions, Options, SourceName, SourceOptions, VocabOptions

if TYPE_CHECKING:  # imports NumPy and Arrow; `--help` must answer at once
    from dstransformer.data import Option

#: Defaults that hold for one source, or for one pair of it, by stage. A tree is longer
#: than its sentence, and no character or repetition of it may be lost.
SOURCE_DEFAULTS: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "clean": {"trees": {"normalise": "none", "max_words": 10_000, "max_ratio": 1000.0, "dedup": False}},
    "vocab": {
        "toy": {"vocab_size": 2000},
        "wmt14": {"character_coverage": 0.9998},
        "wmt14 fr-en": {"vocab_size": 32_000, "tokenizer": "unigram"},
        "trees": {"vocab_size": 16_000},
    },
    "encode": {"trees": {"max_tokens": 1000}},
}


def with_source_defaults(given: Mapping[str, Any], stage: str, source: str, pair: object) -> dict[str, Any]:
    """Complete the options ``given`` for a stage with the source's own defaults.

    Args:
        given: Options by name.
        stage: The stage: ``clean``, ``vocab`` or ``encode``.
        source: The name of the source.
        pair: Its language pair, if it has several.
    """
    if given.get("tokenizer_model"):
        return dict(given)
    defaults = SOURCE_DEFAULTS[stage]
    return {**defaults.get(source, {}), **defaults.get(f"{source} {pair}", {}), **given}


class Recipe(Options):
    """The sources by name, and the options of all stages. ``SOURCE_DEFAULTS`` has defaults by source."""

    sources: Annotated[
        dict[SourceName, Annotated[SourceOptions, Field(discriminator="source")]], Field(min_length=1, max_length=1000)
    ]
    clean: CleanOptions = Field({}, validate_default=True)
    vocab: VocabOptions = Field({}, validate_default=True)
    encode: EncodeOptions = Field({}, validate_default=True)

    @field_validator("clean", "vocab", "encode", mode="before")
    @classmethod
    def _fill_in_by_source(cls, given: Any, info: ValidationInfo) -> Any:
        sources = info.data.get("sources")
        if not sources or not isinstance(given, Mapping):
            return given
        read = record_sources(sources)
        return with_source_defaults(given, str(info.field_name), str(read["source"]), read.get("pair"))

    @field_validator("sources", mode="after")
    @classmethod
    def _go_together(cls, sources: dict[str, SourceOptions]) -> dict[str, SourceOptions]:
        (first, one), *others = sources.items()
        for name, other in others:
            for option in ("tags", "closing"):
                values = getattr(one, option, None), getattr(other, option, None)
                if values[0] != values[1]:
                    raise ValueError(
                        f"{option} is {values[0]} for the source {first!r} and {values[1]} for {name!r}: the sources "
                        "of a corpus have it in common"
                    )
        _check_directions(sources)
        return sources


def _check_directions(sources: Mapping[str, SourceOptions]) -> None:
    """Check that the tag of a source sentence tells its target language.

    Raises:
        ValueError: Two sources have the same tag, or none, and different target languages.
    """
    first: dict[str | None, tuple[str, str]] = {}
    for name, options in sources.items():
        languages = str(options.src_lang), str(options.tgt_lang)
        before, tgt_lang = first.setdefault(options.tag, (name, languages[1]))
        if tgt_lang != languages[1]:
            has = f"the tag {options.tag}" if options.tag else "no tag"
            raise ValueError(
                f"the sources {before!r} and {name!r} have {has}, but translate into {tgt_lang} and {languages[1]}: "
                "give each target language its own tag, such as >>deu<<"
            )


def record_sources(sources: Mapping[str, Options]) -> dict[str, Option]:
    """Return the options of all sources for the manifest and the stage's key.

    What several sources have in common has a plain name; what differs is named ``sources.NAME.option``. ``source`` is
    ``several`` if their kinds differ.
    """
    records = {name: options.record() for name, options in sources.items()}
    first, *others = records.values()
    common = {key: value for key, value in first.items() if all(key in o and o[key] == value for o in others)}
    own = {
        f"sources.{name}.{key}": v for name, record in records.items() for key, v in record.items() if key not in common
    }
    return {"source": "several"} | common | own if others else first
