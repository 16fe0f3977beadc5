"""The options of a command as the fields of a class, where name, type, check, help and default are written once."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import MISSING, Field, dataclass, field, fields
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Self, Union, dataclass_transform, get_args, get_origin, get_type_hints


def argument(
    metavar: str | None, help: str, *, default: Any = MISSING, one_of: str | None = None, required: bool = False
) -> Any:
    """A field that is given by its place on the command line; with a default it may be left out.

    The rest is as for :func:`option`.
    """
    usage = {"by_place": True, "flag": None, "one_of": one_of, "required": required}
    return field(default=default, metadata={**usage, "settings": {"metavar": metavar, "help": help}})


def option(
    help: str,
    metavar: str | tuple[str, ...] | None = None,
    *,
    default: Any = None,
    required: bool = False,
    flag: str | None = None,
    one_of: str | None = None,
    **settings: Any,
) -> Any:
    """A field that is given by an option, ``--batch-tokens`` for ``batch_tokens``.

    Args:
        help: What ``--help`` says of it.
        metavar: What help calls its value.
        default: Its value if it is not given.
        required: Whether it must be given; of the first of ``one_of``, whether one of them must.
        flag: Its name, if it is not that of the field.
        one_of: A name shared by options of which one at most may be given.
        settings: What ``argparse`` takes in place of what follows from the type.
    """
    if required and one_of is None:
        default = MISSING
    settings |= {"help": help, **({} if metavar is None else {"metavar": metavar})}
    usage = {"by_place": False, "flag": flag, "one_of": one_of, "required": required}
    return field(default=default, metadata={**usage, "settings": settings})


@dataclass_transform(kw_only_default=True, field_specifiers=(argument, option))
class Options:
    """The base of classes whose fields are options: a subclass is a dataclass, and may have several bases.

    A field is a switch (``bool``), one of some words (``Literal``), a value of a type that converts text, or several of
    them (``Sequence``). ``Annotated[Path, folder]`` is what ``folder`` makes of the text. A field made by neither
    :func:`argument` nor :func:`option` is no option.
    """

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        dataclass(kw_only=True)(cls)

    @classmethod
    def add_to(cls, parser: argparse.ArgumentParser) -> None:
        """Add the options to a parser."""
        kinds = get_type_hints(cls, include_extras=True)
        groups: dict[str | None, Any] = {None: parser}
        for each in fields(cls):  # type: ignore[arg-type]
            if not each.metadata:
                continue
            one_of, required = each.metadata["one_of"], each.metadata["required"]
            if one_of not in groups:
                groups[one_of] = parser.add_mutually_exclusive_group(required=required)
            settings = _settings(each, kinds[each.name])
            if each.metadata["by_place"]:
                groups[one_of].add_argument(each.name, **settings)
            else:
                flag = each.metadata["flag"] or f"--{each.name.replace('_', '-')}"
                groups[one_of].add_argument(flag, dest=each.name, required=required and one_of is None, **settings)

    @classmethod
    def of(cls, parsed: argparse.Namespace) -> Self:
        """The options of a parsed command line."""
        names = [each.name for each in fields(cls)]  # type: ignore[arg-type]
        return cls(**{name: getattr(parsed, name) for name in names if name in parsed})


def _settings(each: Field[Any], kind: Any) -> dict[str, Any]:
    """What ``argparse`` is told of a field, besides its name."""
    settings: dict[str, Any] = each.metadata["settings"]
    if settings.get("action") == "append":  # one value at a time
        (kind,) = get_args(kind)
    settings = _settings_of_type(kind) | settings
    if each.default is not MISSING and settings.get("action") != "store_true":
        settings["default"] = [*each.default] if isinstance(each.default, tuple) else each.default
        if each.metadata["by_place"]:
            settings["nargs"] = "*" if "nargs" in settings else "?"
    return settings


def _settings_of_type(kind: Any) -> dict[str, Any]:
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return _settings_of_type(next(each for each in arguments if each is not NoneType))
    if origin is Sequence:
        return {"nargs": "+", **_settings_of_type(arguments[0])}
    if origin is Annotated:
        return {"type": kind.__metadata__[0]}
    if origin is Literal:
        return {"choices": arguments}
    return {"action": "store_true"} if kind is bool else {} if kind is str else {"type": kind}
