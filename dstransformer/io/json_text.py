"""Reads JSON within bounds of size and depth. Every failure is one error with a message of one line."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

from dstransformer.errors import DataError, check_format_version, shown
from dstransformer.io.files import read_bounded, read_error

T = TypeVar("T")

#: Maximum bytes of a JSON file, or of a line of JSON lines. Python uses up to 25 times as much memory.
MAX_BYTES = 16 * 2**20

#: Maximum nesting of objects and lists.
MAX_DEPTH = 64


class JsonError(ValueError):
    """A text is not JSON or exceeds a bound. The message, of one line, says how."""


def parse_json(text: str | bytes, *, nan: bool = False) -> Any:
    """Parse a JSON text of any size; bytes are UTF-8.

    Args:
        text: The text.
        nan: Accept ``NaN`` and ``Infinity``, which Python writes although JSON has no such numbers.

    Raises:
        JsonError: It is not JSON, it is nested more than :data:`MAX_DEPTH` deep, an object repeats a key, or an escape
            is a lone surrogate.
    """
    try:
        decoded = text if isinstance(text, str) else text.decode("utf-8-sig")
        content = (_WITH_NAN if nan else _STRICT)(decoded)
    except JsonError:
        raise
    except UnicodeDecodeError as error:
        raise JsonError(f"byte {error.start + 1}: not UTF-8; convert it") from None
    except ValueError as error:
        raise JsonError(shown(error, quote=False)) from None
    except RecursionError:
        raise JsonError(_TOO_DEEP) from None
    if decoded.count("[") + decoded.count("{") > MAX_DEPTH:
        _check_depth(content)
    if "\\u" in decoded:
        _check_characters(content)
    return content


def read_json(path: Path, *, nan: bool = False) -> Any:
    """Parse a JSON file, see :func:`parse_json`.

    Raises:
        JsonError: The content is not JSON or exceeds a bound, see :func:`parse_json`.
        OSError: The file cannot be read, or has more than :data:`MAX_BYTES` bytes.
    """
    return parse_json(read_bounded(path, MAX_BYTES), nan=nan)


def read_record(
    path: Path,
    build: Callable[[dict[str, Any]], T],
    *,
    newest: int | None = None,
    check: Callable[[dict[str, Any]], None] = lambda _: None,
    nan: bool = False,
    advice: str = "",
) -> T:
    """Read a file that holds one JSON object, and build what it describes.

    Args:
        path: The file.
        build: Builds the result from the object. A ``KeyError``, ``TypeError``, ``ValueError`` (of which pydantic's
            ``ValidationError`` is one), ``OverflowError`` or ``AttributeError`` that it raises means that the file is
            damaged.
        newest: The newest format version that this package reads. It also reads all earlier ones. None if the file has
            no format version.
        check: Called before the version is checked. It may raise a ``DataError``.
        nan: See :func:`parse_json`.
        advice: What to do if the file is damaged.

    Raises:
        DataError: The file cannot be read (``UnreadableError`` if reading it again may work), is damaged, or has a
            newer format version (``NewerFormatError``).
    """
    ending = f": {advice}" if advice else ""
    try:
        record = read_json(path, nan=nan)
    except OSError as error:
        raise read_error(path, error) from None
    except JsonError as error:
        raise DataError(f"{path} is damaged ({error}){ending}") from None
    if not isinstance(record, dict):
        raise DataError(f"{path} is damaged (it is not a JSON object){ending}")
    check(record)
    if newest is not None:
        check_format_version(record.get("format_version"), newest, path)
    try:
        return build(record)
    except (KeyError, TypeError, ValueError, OverflowError, AttributeError) as error:
        raise DataError(f"{path} is damaged ({_describe_fault(error)}){ending}") from None


def _describe_fault(error: Exception) -> str:
    """What :func:`read_record` says about an object from which nothing can be built."""
    from pydantic import ValidationError

    if isinstance(error, ValidationError):
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        value = f", found {first['input']!r:.60}" if isinstance(first["input"], str | int | float) else ""
        return f"{where}: {first['msg'].removeprefix('Value error, ')}{value}".removeprefix(": ")
    if isinstance(error, KeyError):
        return f"it lacks the key {shown(error.args[0])}"
    return shown(error, quote=False) if isinstance(error, ValueError) else "a value has the wrong type"


_TOO_DEEP = f"it is nested more than {MAX_DEPTH} deep"


def _build_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Refuse a repeated key, of which Python's parser would silently keep the last value."""
    content: dict[str, Any] = {}
    for key, value in pairs:
        if key in content:
            raise JsonError(f"repeated key {shown(key)}: state it once")
        content[key] = value
    return content


def _refuse_constant(text: str) -> Any:
    raise JsonError(f"{text} is not a JSON number")


_STRICT = json.JSONDecoder(object_pairs_hook=_build_object, parse_constant=_refuse_constant).decode
_WITH_NAN = json.JSONDecoder(object_pairs_hook=_build_object).decode


def _check_depth(content: Any) -> None:
    level = [content]
    for _ in range(MAX_DEPTH):
        parts = chain.from_iterable(value.values() if isinstance(value, dict) else value for value in level)
        level = [part for part in parts if isinstance(part, dict | list)]
        if not level:
            return
    raise JsonError(_TOO_DEEP)


def _check_characters(content: Any) -> None:
    r"""Refuse escapes such as ``\ud800`` that JSON can hold and UTF-8 cannot."""
    try:
        json.dumps(content, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise JsonError(f"{error.object[error.start]!a} is a lone surrogate") from None
