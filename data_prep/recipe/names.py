"""Names that users give: languages, sources, tags, symbols, splits, columns, and files here or on servers."""

from __future__ import annotations

import os
import re
import unicodedata
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationInfo

from dstransformer.errors import shown, without_secrets

_ADDRESS = re.compile(r"[a-z][a-z0-9+.-]+://|opus:")
_OPUS = re.compile(r"opus:[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)
_LANGUAGE = re.compile(r"([A-Za-z]{2,8}|[Xx](?=[-_]))([-_][A-Za-z0-9]{1,8})*")
_SOURCE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,39}")
_TAG = re.compile(r"<[A-Za-z0-9][A-Za-z0-9_-]{0,38}>|>>[A-Za-z0-9][A-Za-z0-9_-]{0,36}<<")

#: Texts of the pieces that every tokenizer has, bytes included.
_TAKEN = re.compile(r"<(?:/s|s|unk|pad|0x[0-9A-Fa-f]{2})>")

#: Categories of spaces, of control characters and of others that cannot be seen.
_INVISIBLE = ("Zs", "Zl", "Zp", "Cc", "Cf", "Cs")

#: Maximum characters of a symbol.
_MAX_SYMBOL_LENGTH = 100

#: The splits of a corpus, in the order in which ``--splits`` names those of a data set of the hub.
HUB_SPLITS = ("train", "validation", "test")


def check_language(code: str, options: ValidationInfo) -> str:
    """Return a language code. Alone, without the option ``any_language`` beside it, only its form is checked.

    Raises:
        ValueError: The code has another form, is longer than 35 characters, or no table knows it.
    """
    from dstransformer.io.languages import code_problem  # `--help` must answer at once

    if not _LANGUAGE.fullmatch(code) or len(code) > 35:
        raise ValueError(f"{code[:40]!r} is not a language code such as en, pt-BR or zho_Hans")
    is_checked = options.data and not options.data.get("any_language", True)
    if is_checked and (problem := code_problem(code, "--any-language, in a recipe any_language: true,")):
        raise ValueError(problem)
    return code


def check_source(name: str) -> str:
    """Return the name of a source.

    Raises:
        ValueError: The name is empty, too long, or has other characters than letters, digits, - and _.
    """
    if not _SOURCE.fullmatch(name):
        raise ValueError(f"{name[:40]!r} is not a name: use letters, digits, - and _, at most 40")
    return name


def check_tag(tag: str) -> str:
    """Return the tag of a source.

    Raises:
        ValueError: The tag is not in angle brackets, or is the name of a special piece.
    """
    if not _TAG.fullmatch(tag) or _TAKEN.fullmatch(tag):
        raise ValueError(
            f"{tag[:40]!r} is not a tag such as <bt> or >>deu<<: letters, digits, - and _ in angle brackets"
        )
    return tag


def check_symbol(symbol: str) -> str:
    """Return a user-defined symbol, which is never divided.

    Raises:
        ValueError: The symbol is empty, too long, or has characters that text cannot have.
    """
    problem = None
    if not symbol:
        problem = "is empty"
    elif any(unicodedata.category(character) in _INVISIBLE for character in symbol):
        problem = "has a space or an invisible character"
    elif "▁" in symbol:
        problem = "has a ▁, which stands for a space"
    elif _TAKEN.search(symbol):
        problem = "holds the name of a special piece"
    elif len(symbol) > _MAX_SYMBOL_LENGTH:
        problem = f"has {len(symbol)} characters, more than {_MAX_SYMBOL_LENGTH}"
    if problem:
        raise ValueError(f"the symbol {symbol[:40]!r} {problem}: choose one such as <ph1>")
    return symbol


def check_list(values: object) -> object:
    """Return a list of symbols.

    Raises:
        ValueError: The value is not a list.
    """
    if not isinstance(values, list | tuple):
        raise ValueError("write a list, such as [<ph1>, <ph2>]")
    return values


def check_distinct(symbols: tuple[str, ...]) -> tuple[str, ...]:
    """Return the symbols.

    Raises:
        ValueError: A symbol is given twice.
    """
    if twice := [symbol for symbol, times in Counter(symbols).items() if times > 1]:
        raise ValueError(f"the symbol {twice[0]!r} is given twice: leave one out")
    return symbols


def split_shares(how: str) -> tuple[float, float]:
    """The shares for validation and test of ``random:0.05,0.1``; of ``random:0.05`` it is the same for both.

    Raises:
        ValueError: The text after the colon is not one or two numbers.
    """
    first, *second = map(float, how.partition(":")[2].split(","))
    (other,) = second or [first]
    return first, other


def check_splits(how: str) -> str:
    """Return how a treebank is divided.

    Raises:
        ValueError: It is none of the ways, or leaves nothing for training.
    """
    if how in ("wsj", "none"):
        return how
    try:
        shares = split_shares(how)
    except ValueError:
        shares = (1.0, 1.0)
    if how.partition(":")[0] not in ("files", "random") or not all(0 <= n < 1 for n in shares) or sum(shares) >= 1:
        raise ValueError(
            f"{how[:40]!r} is none of wsj, files:DEV,TEST, random:DEV,TEST and none, with shares such as 0.05,0.1 (or "
            "one for both) that leave a part for training"
        )
    return how


def check_hub_splits(names: str) -> str:
    """Return the names of one to three splits.

    Raises:
        ValueError: A name is empty, or there are too many.
    """
    splits = names.split(",")
    if not 1 <= len(splits) <= len(HUB_SPLITS) or not all(splits):
        raise ValueError(f"{names[:40]!r}: name the splits for training, validation and test, such as train,dev,test")
    return names


def check_columns(names: str) -> str:
    """Return the names of one or two columns.

    Raises:
        ValueError: A name is empty, or there are too many.
    """
    if not 1 <= len(names.split(",")) <= 2 or not all(names.split(",")):
        raise ValueError(
            f"{names[:40]!r}: name the columns of source and target, such as en,de, or one that holds both"
        )
    return names


@dataclass(frozen=True, repr=False)
class Address:
    """A file on a server: ``https://host/train.en.gz``, or ``opus:Books/v1``. As text its passwords are masked."""

    url: str

    def __str__(self) -> str:
        return without_secrets(self.url)

    __repr__ = __str__


def is_address(name: str) -> bool:
    """Whether a name is an address, such as ``s3://bucket/train.en`` and ``opus:Books/v1``."""
    return bool(_ADDRESS.match(name))


def to_path(name: Any) -> Any:
    """Convert a name, which need not be UTF-8; an empty one, as from an unset variable, would be the working folder."""
    if name == "":
        raise ValueError("the name is empty; is a variable unset?")
    if isinstance(name, str) and is_address(name):
        raise ValueError(f"{without_secrets(name)[:60]!r} is an address; download the file first")
    return Path(name) if isinstance(name, str) else name


def to_text(name: Any) -> Any:
    """Convert a name, which may be an address."""
    if not isinstance(name, str) or not is_address(name):
        return to_path(name)
    if name.startswith("file:"):
        raise ValueError(f"{name[:60]!r} is a file of this machine: leave out file://")
    if name.startswith("opus:") and not _OPUS.fullmatch(name):
        raise ValueError(f"{shown(name)} is not a corpus of OPUS with its version, such as opus:Books/v1")
    if not name.isprintable():
        raise ValueError(f"{shown(name)} is not an address: it has characters that no address has")
    return Address(name)


def to_texts(names: Any) -> Any:
    """Convert one name, or a list of names."""
    if not isinstance(names, list | tuple):
        return (to_text(names),)
    if not names:
        raise ValueError("the list is empty; name a file")
    return tuple(map(to_text, names))


def check_utf8(path: Path) -> Path:
    """Refuse a name that is not UTF-8, which Arrow cannot open."""
    try:
        os.path.realpath(path).encode()
    except UnicodeEncodeError:
        raise ValueError(f"{str(path)!r}, in full, is not a name in UTF-8: choose or rename it") from None
    return path


def printable_name(path: Path) -> str:
    """Return the name of a file without its folder, with bytes that are not UTF-8 escaped.

    Of a member of an archive, ``FILE.tgz::MEMBER``, the member keeps its folders.
    """
    archive, separator, member = str(path).partition("::")
    return f"{Path(archive).name}{separator}{member}".encode("utf-8", "backslashreplace").decode()
