"""What a corpus is made from and how: its sources by name, and the options of every stage.

The package ships recipes in YAML; a file may extend another. A relative path in a file is relative to the folder of
that file, or to its ``root``, which may be an address; one in ``--set`` to the working folder.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, ValidationError, ValidationInfo, field_validator

from data_prep.recipe.names import is_address, printable_name
from data_prep.recipe.options import (
    SOURCES,
    STAGES,
    CleanOptions,
    EncodeOptions,
    Folder,
    Options,
    SourceName,
    SourceOptions,
    TextFile,
    Texts,
    VocabOptions,
    option_kind,
)
from dstransformer.config.loading import merge, read_yaml
from dstransformer.config.yaml_text import leading_comment, parse_yaml
from dstransformer.errors import ConfigError, shown
from dstransformer.io.files import file_sha256

if TYPE_CHECKING:  # imports NumPy and Arrow; `--help` must answer at once
    from dstransformer.data import InputFile, Option

RECIPES = Path(__file__).parent.parent / "recipes"

_SECTIONS = ("sources", *STAGES)
_EVERY_SOURCE = ("src_lang", "tgt_lang", "any_language")

#: The options whose values are paths.
_PATHS = {
    name
    for model in (*SOURCES.values(), *STAGES.values())
    for name, field in model.model_fields.items()
    if option_kind(field) in (TextFile, Texts, Folder)
}

#: Defaults that hold for one source, or for one pair of it, by stage. A tree is longer
#: than its sentence, and no character or repetition of it may be lost.
SOURCE_DEFAULTS: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "clean": {
        "trees": {
            "normalise": "none",
            "normalise_target": "none",
            "max_words": 10_000,
            "max_ratio": 1000.0,
            "dedup": False,
        },
        "mono": {"normalise": "nfc"},  # the text may become a target side
    },
    "vocab": {
        "toy": {"vocab_size": 1000},
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
        first = next(iter(sources))
        for name, option in itertools.product(sources, ("tags", "closing")):
            values = getattr(sources[first], option, None), getattr(sources[name], option, None)
            if values[0] != values[1]:
                raise ValueError(
                    f"{option} is {values[0]} for the source {first!r} and {values[1]} for {name!r}: the sources "
                    "of a corpus have it in common"
                )
        by_tag: dict[str | None, tuple[str, str]] = {}  # tags tell target languages
        for name, options in sources.items():
            before, tgt_lang = by_tag.setdefault(options.tag, (name, str(options.tgt_lang)))
            if tgt_lang != options.tgt_lang:
                has = f"the tag {options.tag}" if options.tag else "no tag"
                raise ValueError(
                    f"the sources {before!r} and {name!r} have {has}, but translate into {tgt_lang} and "
                    f"{options.tgt_lang}: give each target language its own tag, such as >>deu<<"
                )
        return sources


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


def recipe_summaries() -> dict[str, str]:
    """The recipes of the package by name, each with the comment at the top of its file."""
    return {path.stem: leading_comment(path.read_text(encoding="utf-8")) for path in sorted(RECIPES.glob("*.yaml"))}


def load_recipe(name: str, overrides: Sequence[str] = ()) -> Recipe:
    """Load a recipe and apply overrides.

    Args:
        name: A name from :func:`recipe_summaries`, or a path ending in ``.yaml`` or ``.yml``.
        overrides: ``section.key=value`` or ``sources.NAME.key=value``; the value is read as YAML.

    Raises:
        ConfigError: The recipe or a key is unknown, or a value cannot be used.
    """
    roots = [override.partition("=")[2] for override in overrides if override.partition("=")[0].strip() == "root"]
    tree = _resolve(name, Path(), (), roots[-1] if roots else None)
    for override in overrides:
        if override.partition("=")[0].strip() != "root":
            _apply(tree, override)
    every = {key: tree.pop(key) for key in _EVERY_SOURCE if key in tree}
    sources = tree.get("sources")
    if not isinstance(sources, dict) or not all(isinstance(source, dict) for source in sources.values()):
        raise ConfigError(f"recipe {shown(name)} has no sources: write `sources:`, and below it a section for each")
    tree["sources"] = {source: every | given for source, given in sources.items()}
    try:
        return Recipe.model_validate(tree)
    except ValidationError as error:
        raise ConfigError(f"recipe {shown(name)}: {_describe(error)}") from None


def identify_recipe(name: str | None) -> list[InputFile]:
    """The files of a recipe and of those that it extends, by name, hash and size; none if there is no recipe."""
    from dstransformer.data import InputFile  # imports NumPy and Arrow

    files: list[Path] = []
    while name is not None:
        files.append(_find(name, files[-1].parent if files else Path()))
        name = read_yaml(files[-1]).get("extends")
    return [InputFile(name=printable_name(path), sha256=file_sha256(path), size=path.stat().st_size) for path in files]


def _resolve(name: str, folder: Path, children: tuple[Path, ...], root: str | None) -> dict[str, Any]:
    """Read a recipe and merge it into the one that it extends.

    Args:
        name: Its name, or its path relative to ``folder``.
        folder: The folder of the file that extends it.
        children: The chain of files that extend it.
        root: Where its relative paths begin, if that is stated outside of it.
    """
    path = _find(name, folder)
    if os.path.realpath(path) in map(os.path.realpath, children):
        raise ConfigError(f"recipe {shown(name)} extends itself: {' -> '.join(map(str, (*children, path)))}")
    tree = read_yaml(path)
    for key in tree:
        if key not in (*_SECTIONS, *_EVERY_SOURCE, "extends", "root"):
            known = ("extends", "root", *_EVERY_SOURCE, *_SECTIONS)
            raise ConfigError(f"{path}: unknown key {shown(key)}{_hint(str(key), known)}")
        if key in _SECTIONS and not isinstance(tree[key], dict | None):
            raise ConfigError(f"{path}: {key} = {shown(tree[key])}: it is a section, write its keys below it")
    stated = "root" in tree
    own = tree.pop("root", ".")
    if root is None and own is None:
        raise ConfigError(f"recipe {shown(name)} needs the folder of its files: add --set root=FOLDER")
    if root is None and not isinstance(own, str):
        raise ConfigError(f"{path}: root = {shown(own)}: name a folder")
    base = _below(str(path.parent), str(own)) if root is None else root
    _anchor(tree, base)
    parent = tree.pop("extends", None)
    if parent is None:
        return {key: value for key, value in tree.items() if value is not None}
    if not isinstance(parent, str):
        raise ConfigError(f"{path}: extends = {shown(parent)}: name one recipe or file")
    return merge(_resolve(parent, path.parent, (*children, path), base if stated else root), tree)


def _find(name: str, folder: Path) -> Path:
    if name.endswith((".yaml", ".yml")):
        if not os.path.isfile(folder / name):  # noqa: PTH113  # also of a name that no file can have
            raise ConfigError(f"recipe {shown(str(folder / name), limit=200)} is not a file")
        return folder / name
    if name not in (names := recipe_summaries()):
        if any((folder / f"{name}{ending}").is_file() for ending in (".yaml", ".yml")):
            raise ConfigError(f"unknown recipe {shown(name)}: did you mean the file {name}.yaml?")
        hint = f"did you mean {near[0]!r}? " if (near := get_close_matches(name, names, n=1)) else ""
        raise ConfigError(f"unknown recipe {shown(name)}: {hint}`dst-prep recipes` lists all; a file ends in .yaml")
    return RECIPES / f"{name}.yaml"


def _anchor(tree: dict[str, Any], folder: str) -> None:
    """Make the relative paths of a file relative to the working folder."""
    sections = list((tree.get("sources") or {}).values())
    sections += [tree[name] for name in STAGES if name in tree]
    for section in sections:
        for key, value in section.items() if isinstance(section, dict) else ():
            if key in _PATHS and isinstance(value, list):
                section[key] = [_below(folder, one) if isinstance(one, str) and one else one for one in value]
            elif key in _PATHS and isinstance(value, str) and value:
                section[key] = _below(folder, value)


def _below(folder: str, name: str) -> str:
    """The path or address of a file in a folder, which may be an address."""
    if is_address(name) or (is_address(folder) and not name.startswith("/")):
        return name if is_address(name) else f"{folder.removesuffix('/')}/{name}"
    return str(Path(folder, name))


def _apply(tree: dict[str, Any], override: str) -> None:
    """Set a value; a missing section is created, and validation finds unknown keys."""
    name, equals, text = override.partition("=")
    keys = name.strip().split(".")
    given = f"--set {shown(override)}"
    if not equals or not all(keys) or len(keys) > 3:
        raise ConfigError(f"{given} is not of the form section.key=value or sources.NAME.key=value")
    if keys[0] not in (*_SECTIONS, *_EVERY_SOURCE):
        raise ConfigError(f"{given}: there is no key {shown(keys[0])}{_hint(keys[0], (*_SECTIONS, *_EVERY_SOURCE))}")
    if len(keys) != {"sources": 3, **dict.fromkeys(_EVERY_SOURCE, 1)}.get(keys[0], 2):
        raise ConfigError(f"{given} is not of the form section.key=value or sources.NAME.key=value")
    if keys[0] == "sources" and keys[1] not in (tree.get("sources") or {}):
        raise ConfigError(f"{given}: there is no source {shown(keys[1])}{_hint(keys[1], tree.get('sources') or {})}")
    node = tree
    for key in keys[:-1]:
        node = node.setdefault(key, {})
    node[keys[-1]] = parse_yaml(text, given)


def _describe(error: ValidationError) -> str:
    """Describe the first error, with the name of its key."""
    fault = min(error.errors(), key=lambda fault: fault["type"] != "extra_forbidden")
    where = [str(part) for part in fault["loc"] if part != "[key]"]
    kind = where.pop(2) if len(where) > 2 and where[0] == "sources" and where[2] in SOURCES else None
    name = shown(".".join(where), quote=False)
    message = fault["msg"].removeprefix("Value error, ")
    if fault["type"] == "extra_forbidden":
        return f"unknown key {name!r}{_hint(where[-1], (SOURCES[kind] if kind else STAGES[where[0]]).model_fields)}"
    if fault["type"] == "missing":
        return f"missing key {name!r}"
    if fault["type"] == "union_tag_not_found":
        return f"missing key '{name}.source': one of {', '.join(SOURCES)}"
    if fault["type"] == "union_tag_invalid":
        return f"{name}.source = {shown(fault['ctx']['tag'])}: choose one of {', '.join(SOURCES)}"
    if isinstance(fault["input"], Mapping):
        return f"{name}: {message}"
    if fault["type"] == "string_type" and isinstance(fault["input"], bool):
        message = 'an unquoted no, off, yes or on is not text in YAML: write it in quotes, as "no"'
    return f"{name} = {shown(fault['input'])}: {message[:1].lower()}{message[1:]}"


def _hint(key: str, known: Sequence[str] | Mapping[str, Any]) -> str:
    near = get_close_matches(key, list(known), n=1)
    return f", did you mean {near[0]!r}?" if near else f"; known: {', '.join(known)}"
