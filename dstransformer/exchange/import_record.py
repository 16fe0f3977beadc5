"""What importers share: their result, a number of a configuration, and the provenance of a bundle."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dstransformer import __version__
from dstransformer.errors import DataError, shown
from dstransformer.io.files import file_sha256
from dstransformer.model import Bundle


@dataclass(frozen=True)
class Imported:
    """The result of an import.

    Attributes:
        bundle: The bundle.
        absent: The pieces of its SentencePiece models that its vocabulary lacks.
    """

    bundle: Bundle
    absent: list[str]


def imported_from(format_name: str, files: Sequence[Path], languages: tuple[str | None, str | None]) -> dict[str, Any]:
    """The provenance of a model that was not trained here.

    Args:
        format_name: What kind of model it was.
        files: The files that it was read from.
        languages: Codes of the source and the target language, None if unknown.
    """
    src_lang, tgt_lang = languages
    hashes = {path.name: file_sha256(path) for path in files}
    return {
        "dstransformer": __version__,
        "imported": {"format": format_name, "path": str(files[0].absolute().parent), "files": hashes},
        "step": None,
        "src_lang": src_lang,
        "tgt_lang": tgt_lang,
    }


def whole_number(stated: Mapping[str, Any], name: str, path: Path) -> int:
    """A number from 1 on in a configuration.

    Raises:
        DataError: It is missing, or something else.
    """
    value = stated.get(name)
    if type(value) is not int or value < 1:
        raise DataError(f"{path}: {name} is {shown(value)}, not a number from 1 on: if it is damaged, copy it again")
    return value
