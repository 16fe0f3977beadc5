"""Files as users name them: by paths of this machine, or by addresses of servers."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dstransformer.errors import shown, without_secrets

_ADDRESS = re.compile(r"[a-z][a-z0-9+.-]+://")


@dataclass(frozen=True, repr=False)
class Address:
    """A file on a server, such as ``https://host/train.en.gz``. As text its passwords are masked."""

    url: str

    def __str__(self) -> str:
        return without_secrets(self.url)

    __repr__ = __str__


def is_address(name: str) -> bool:
    """Whether a name is an address, such as ``s3://bucket/train.en``."""
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
    if not name.isprintable():
        raise ValueError(f"{shown(name)} is no address: it has characters that none has")
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
