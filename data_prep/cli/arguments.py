"""Generates the command line of ``dst-prep`` from the recipe's models, and builds recipes from the options given.

Each value is checked when it is parsed, so that the error names its flag, and again as part of the recipe.
"""

import argparse
import shlex
from collections.abc import Callable, Container, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin

from annotated_types import Ge, Le, Lt
from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from data_prep.recipe.names import printable_name
from data_prep.recipe.options import (
    MONO_CLEANING,
    RECIPE_ONLY,
    SOURCES,
    STAGES,
    CleanOptions,
    Folder,
    MonoOptions,
    OneText,
    Placeholder,
    SourceOptions,
    TextFile,
    Texts,
    option_kind,
)
from data_prep.recipe.recipe import SOURCE_DEFAULTS, Recipe, load_recipe, with_source_defaults
from dstransformer.errors import UserError, without_secrets
from dstransformer.io.command import CommandParser

Model = TypeVar("Model", bound=BaseModel)

_Processes = Annotated[int, Ge(1), Le(1024)]

_SOURCE_NAMES = tuple(dict.fromkeys(name for model in SOURCES.values() for name in model.model_fields))

#: A column of a file of scores.
_Column = Annotated[int, Ge(1), Le(1000)]

#: A share of pairs to drop.
_Share = Annotated[float, Ge(0.0), Lt(1.0)]


def add_options(parser: CommandParser, command: str) -> None:
    """Add the options of a command of ``dst-prep``."""
    match command:
        case "build":
            # A recipe takes the place of the options of the source and the stages.
            parser.add_argument(
                "recipe",
                nargs="?",
                metavar="RECIPE",
                help="one of `dst-prep recipes`, or a .yaml file; or give --source",
            )
            parser.add_argument(
                "--set",
                nargs="+",
                action="extend",
                metavar="KEY=VALUE",
                help="values in place of the recipe's, by name",
            )
            _add_source(parser, required=False)
            for name in STAGES:
                _add_stage(parser, name)
            _add_out(parser)
            _add_work(parser, "folder for unfinished work (default: OUT.work)", required=False)
        case "read":
            _add_work(parser, "folder shared by the stages", required=True)
            _add_source(parser, required=True)
        case "clean" | "vocab" | "encode":
            _add_work(parser, "folder shared by the stages", required=True)
            _add_stage(parser, command)
            if command == "encode":
                _add_out(parser)
        case "mono":
            _add_mono(parser)
            _add_work(parser, "folder for unfinished work (default: OUT.work)", required=False)
        case "filter":
            _add_filter(parser)
        case "completion":
            parser.add_argument("shell", choices=("bash", "zsh", "fish"), help="the shell")
        case "info" | "verify" | "report" | "text":
            _add_for_corpus(parser, command)


def _add_source(parser: argparse.ArgumentParser, *, required: bool) -> None:
    """Add the options of every source: a group of those that several sources share, and one for each source."""
    options: dict[str, dict[str, FieldInfo]] = {}
    for source, model in SOURCES.items():
        for name, field in model.model_fields.items():
            if field.json_schema_extra != RECIPE_ONLY:
                options.setdefault(name, {})[source] = field
    del options["source"]
    shared = parser.add_argument_group("source")
    shared.add_argument("--source", choices=tuple(SOURCES), required=required, help="where the text comes from")
    groups = {source: parser.add_argument_group(model.model_config.get("title")) for source, model in SOURCES.items()}
    for name, fields in options.items():
        source, field = next(iter(fields.items()))
        _add_option(shared if len(fields) > 1 else groups[source], name, field, _describe_by_source(fields))


def _add_mono(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``dst-prep mono``: text of one language, where it goes, and its options of cleaning."""
    fields = MonoOptions.model_fields
    for flag, name in (("--in", "text"), ("--held-out", "held_out_text")):
        parser.add_argument(
            flag,
            dest=name,
            type=read_as(OneText),
            nargs="+",
            action="extend",
            required=fields[name].is_required(),
            metavar="FILE",
            help=fields[name].description,
        )
    for name in ("lang", "any_language", "unquote", "unescape", "cache_dir", "offline"):
        _add_option(parser, name, fields[name], str(fields[name].description), required=fields[name].is_required())
    parser.add_argument(
        "--out",
        type=read_path,
        required=True,
        metavar="FILE",
        help="the text to write, gzipped if it ends in .gz; its record is written to FILE.json",
    )
    parser.add_argument("--overwrite", action="store_true", help="replace an existing text")
    _add_stage(parser, "clean", MONO_CLEANING)


def _add_stage(parser: argparse.ArgumentParser, stage: str, only: Container[str] | None = None) -> None:
    """Add the options of a stage, ``clean``, ``vocab`` or ``encode``, or ``only`` those with these names."""
    model, by_source = STAGES[stage], SOURCE_DEFAULTS[stage]
    if only is None:
        group = parser.add_argument_group(model.model_config.get("title"))
    else:
        group = parser.add_argument_group("cleaning", "Each sentence is taken as a pair of the text with itself.")
    for name, field in model.model_fields.items():
        if only is not None and name not in only:
            continue
        defaults = [f"default: {words}"] if (words := _default_text(field)) else []
        defaults += [f"for {source}: {_words(own[name])}" for source, own in by_source.items() if name in own]
        _add_option(group, name, field, _with_note(field.description, defaults))


def _add_out(parser: argparse.ArgumentParser) -> None:
    """Add the output folder."""
    parser.add_argument("--out", type=read_as(Folder), required=True, metavar="CORPUS", help="the corpus to make")
    parser.add_argument("--overwrite", action="store_true", help="replace another corpus at CORPUS")


def _add_work(parser: argparse.ArgumentParser, text: str, *, required: bool) -> None:
    """Add the work folder, and the number of processes, or the cluster that takes their place."""
    parser.add_argument("--work", type=read_as(Folder), required=required, metavar="DIR", help=text)
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--workers", type=read_as(_Processes), metavar="N", help="processes (default: all cores)")
    group.add_argument(
        "--cluster",
        type=read_as(TextFile),
        metavar="FILE",
        help="work on the machines of a Dask cluster: the file that its scheduler wrote (--scheduler-file)",
    )


def _add_filter(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``dst-prep filter``."""
    _add_file(parser, "--src", "source text, one sentence per line")
    _add_file(parser, "--tgt", "its translation, line by line")
    _add_file(
        parser, "--scores", "scores, a line for each pair, in columns separated by tabs, as dst score writes them"
    )
    _add_file(parser, "--out-src", "the source text of the pairs that are kept, gzipped if it ends in .gz")
    _add_file(parser, "--out-tgt", "their translation")
    parser.add_argument("--column", type=read_as(_Column), default=1, metavar="N", help="column of the score (1)")
    share = parser.add_mutually_exclusive_group(required=True)
    lowest, highest = "drop this share of the pairs, those with the lowest scores", "drop those with the highest"
    share.add_argument("--drop-lowest", type=read_as(_Share), metavar="SHARE", help=lowest)
    share.add_argument("--drop-highest", type=read_as(_Share), metavar="SHARE", help=highest)
    parser.add_argument("--overwrite", action="store_true", help="replace existing files")


def _add_for_corpus(parser: argparse.ArgumentParser, command: str) -> None:
    """Add the corpus, and the options of a command that reads it."""
    parser.add_argument("corpus", type=read_as(Folder), metavar="CORPUS", help="a corpus folder")
    match command:
        case "info":
            parser.add_argument("--json", action="store_true", help="print the manifest")
        case "verify":
            parser.add_argument(
                "--inputs",
                nargs="+",
                type=read_path,
                metavar="PATH",
                help="also compare the files it was made from, which are or lie in PATH, with their hashes and sizes",
            )
        case "report":
            _add_file(parser, "--out", "the page, an .html file")
            parser.add_argument("--overwrite", action="store_true", help="replace an existing file")
        case "text":
            parser.add_argument("--split", default="test", metavar="NAME", help="validation or test (default: test)")
            _add_file(parser, "--src", "source text, one sentence per line (-: standard output)")
            _add_file(parser, "--tgt", "its translation, line by line")
            parser.add_argument(
                "--alignments",
                type=read_path,
                metavar="FILE",
                help="right links, line by line, for dst align --reference: of --source toy, whose grammar knows them",
            )
            parser.add_argument("--overwrite", action="store_true", help="replace existing files")


def _add_file(parser: argparse.ArgumentParser, flag: str, text: str) -> None:
    parser.add_argument(flag, required=True, type=read_path, metavar="FILE", help=text)


def read_as(kind: Any) -> Callable[[str], Any]:
    """Build the ``type`` of an argument, which parses and checks a value.

    Args:
        kind: What Pydantic validates: a type, annotated with its bounds.
    """

    def read(text: str) -> Any:
        try:
            return TypeAdapter(kind).validate_python(text)
        except ValidationError as error:
            raise argparse.ArgumentTypeError(_explain(text, error, kind)) from None

    return read


read_path = read_as(TextFile)


def read_recipe(arguments: argparse.Namespace) -> Recipe:
    """Build the recipe that a command line describes.

    Raises:
        UserError: An option is missing, or options do not go together.
    """
    stages: dict[str, Any] = {stage: _given(arguments, model.model_fields) for stage, model in STAGES.items()}
    source = _given(arguments, _SOURCE_NAMES)
    if arguments.recipe is not None:
        flags = [name for options in (source, *stages.values()) for name in options]
        if flags:
            flag = f"--{flags[0].replace('_', '-')}"
            raise UserError(f"{flag} and the recipe {arguments.recipe} do not go together: use --set, or leave one out")
        return load_recipe(arguments.recipe, arguments.set or ())
    if arguments.set:
        raise UserError(f"--set {arguments.set[0]} needs a recipe: name one of `dst-prep recipes`, or a .yaml file")
    if "source" not in source:
        raise UserError(
            f"no recipe and no --source: name one of `dst-prep recipes`, a .yaml file, or --source {'|'.join(SOURCES)}"
        )
    return _validate(Recipe, stages | {"sources": {source["source"]: source}})


def read_source(arguments: argparse.Namespace) -> SourceOptions:
    """Build the options of the source.

    Raises:
        UserError: An option is missing or belongs to another source.
    """
    return _validate(SOURCES[arguments.source], _given(arguments, _SOURCE_NAMES))


def read_stage(arguments: argparse.Namespace, kind: type[Model], stage: str, read: Mapping[str, object]) -> Model:
    """Build the options of a stage: ``clean``, ``vocab`` or ``encode``.

    Args:
        arguments: The command line.
        kind: The model of the stage's options.
        stage: The stage.
        read: The options with which the source was read; some defaults depend on it.

    Raises:
        UserError: Options do not go together.
    """
    options = _given(arguments, kind.model_fields)
    return _validate(kind, with_source_defaults(options, stage, str(read["source"]), read.get("pair")))


def read_mono(arguments: argparse.Namespace) -> tuple[MonoOptions, CleanOptions]:
    """Build the options of ``dst-prep mono``: the text, and how it is cleaned.

    Raises:
        UserError: Options do not go together.
    """
    text = _validate(MonoOptions, _given(arguments, MonoOptions.model_fields))
    cleaning = _given(arguments, CleanOptions.model_fields)
    cleaning |= {"near_text": "src"} if "near_duplicates" in cleaning else {}
    return text, _validate(CleanOptions, with_source_defaults(cleaning, "clean", "mono", None))


def _add_option(group: Any, name: str, field: FieldInfo, text: str, *, required: bool = False) -> None:
    """Add one option. It is None unless given, because the model holds the default."""
    flag = f"--{name.replace('_', '-')}"
    kind = option_kind(field)
    base, *metadata = get_args(kind) if get_origin(kind) is Annotated else [kind]
    if base is bool:
        group.add_argument(flag, action=argparse.BooleanOptionalAction, default=None, help=text)
        return
    placeholder = next((mark.name for mark in metadata if isinstance(mark, Placeholder)), None)
    choices = get_args(base) if get_origin(base) is Literal else None
    if get_origin(base) is tuple:
        item = OneText if kind == Texts else get_args(base)[0]
        group.add_argument(flag, type=read_as(item), nargs="+", action="extend", metavar=placeholder, help=text)
        return
    group.add_argument(
        flag,
        type=str if choices else read_as(kind),
        choices=choices,
        required=required,
        metavar=placeholder,
        help=text,
    )


def _describe_by_source(fields: Mapping[str, FieldInfo]) -> str:
    """Describe an option of several sources, whose meaning and default may differ between them."""
    described: dict[str, dict[str, list[str]]] = {}
    for source, field in fields.items():
        words = "required" if field.is_required() else _default_text(field)
        described.setdefault(str(field.description), {}).setdefault(words, []).append(source)
    texts = {}
    for description, defaults in described.items():
        notes = [
            f"required for {', '.join(sources)}"
            if words == "required"
            else f"default for {', '.join(sources)}: {words}"
            for words, sources in defaults.items()
        ]
        if len(defaults) == 1:
            notes = [f"default: {words}" for words in defaults if words]
        texts[", ".join(source for sources in defaults.values() for source in sources)] = _with_note(description, notes)
    if len(texts) == 1:
        return next(iter(texts.values()))
    return "; ".join(f"{sources}: {text}" for sources, text in texts.items())


def _with_note(description: str | None, notes: Iterable[str]) -> str:
    note = "; ".join(notes)
    return f"{description} ({note})" if note else str(description)


def _default_text(field: FieldInfo) -> str:
    if isinstance(field.json_schema_extra, dict):
        return str(field.json_schema_extra["default"])
    value = field.default
    return "" if field.is_required() or value is None or value is False or value == () else _words(value)


def _words(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _explain(text: str, error: ValidationError, kind: Any) -> str:
    """Explain what is wrong with a value and what is expected."""
    fault = error.errors()[0]
    if fault["type"] == "value_error":
        return str(fault["ctx"]["error"])
    base, *metadata = get_args(kind) or [kind]
    low = next((mark.ge for mark in metadata if isinstance(mark, Ge)), None)
    high = next((mark.le for mark in metadata if isinstance(mark, Le)), None)
    if kind is _Share:
        return f"{text[:40]!r} is not a share: give a number of 0 or more, less than 1"
    if base is int:
        if fault["type"] in ("less_than_equal", "int_parsing_size"):
            return f"{text[:40]!r} is too large: give at most {high}"
        return f"{text[:40]!r} is not a whole number of {low} or more"
    if base is float:
        return f"{text[:40]!r} is not a number {f'of {low} or more' if high is None else f'from {low} to {high}'}"
    return f"{text[:40]!r}: {fault['msg']}"


def _given(arguments: argparse.Namespace, names: Iterable[str]) -> dict[str, Any]:
    """Those of the options with these names that the command line gives."""
    values = {name: getattr(arguments, name, None) for name in names}
    return {name: value for name, value in values.items() if value is not None}


def _validate(kind: type[Model], given: Mapping[str, Any]) -> Model:
    try:
        return TypeAdapter(kind).validate_python(given)
    except ValidationError as error:
        fault = min(error.errors(), key=lambda fault: fault["type"] != "extra_forbidden")
    name = str(fault["loc"][-1]) if fault["loc"] else ""
    flag = f"--{name.replace('_', '-')}"
    source = str(next(iter(given["sources"])) if kind is Recipe else given.get("source"))
    if fault["type"] == "value_error":
        prefix = f"{flag}: " if name in SOURCES.get(source, kind).model_fields else ""
        raise UserError(f"{prefix}{fault['ctx']['error']}")
    if fault["type"] == "extra_forbidden":
        raise UserError(f"{flag} is not an option of source {source}: leave it out")
    if fault["type"] == "missing":
        raise UserError(f"{flag} is missing: {SOURCES[source].model_fields[name].description}")
    raise UserError(f"{flag}: {fault['msg']}")


def recipe_command(arguments: argparse.Namespace) -> str:
    """The command line of a build from a recipe, without its folders; empty for a build from flags."""
    if arguments.recipe is None:
        return ""
    words = ["dst-prep", "build", shlex.quote(printable_name(Path(arguments.recipe)))]
    overrides = [shlex.quote(without_secrets(override)) for override in arguments.set or ()]
    return " ".join([*words, "--set", *overrides] if overrides else words)
