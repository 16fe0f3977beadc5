"""Parallel text as others pack it: OPUS's Moses archives (``en-de.txt.zip``) and the folders of ``mtdata get``."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from data_prep.recipe.names import printable_name
from data_prep.sources.texts import SEPARATOR, Text, local_text
from dstransformer.errors import DataError, shown
from dstransformer.io.compression import without_ending
from dstransformer.io.languages import find_code, list_codes, matching_codes

#: ``Europarl.de-en.de``: a name, the languages of the pair, and that of the text.
_OPUS_MEMBER = re.compile(r"(?P<stem>.+\.(?P<one>[\w@]+)-(?P<other>[\w@]+))\.(?P<code>[\w@]+)")

#: The files of mtdata for each split, by their names without language.
_MTDATA = {"train": "train", "validation": "dev", "test": "test"}

#: Where mtdata puts training texts that it does not merge.
_TRAIN_PARTS = "train-parts"

#: A language as mtdata writes it: three letters, script, region.
_MTDATA_CODE = re.compile(r"[a-z]{3}(_[A-Z][a-z]{3})?(_[A-Z]{2})?")

#: The texts of a name by their language codes.
_ByCode = Mapping[str, Text]


def is_packed(text: Text) -> bool:
    """Whether the name of a file for both sides is that of a zip archive or a folder."""
    return not text.member and (text.ending == ".zip" or text.path.is_dir())


def open_packed(text: Text, split: str, src_lang: str, tgt_lang: str) -> list[tuple[Text, Text]]:
    """The texts of both sides in an archive of OPUS or a folder of mtdata.

    Args:
        text: The archive or folder.
        split: The split that it is for; mtdata's folders have texts for each.
        src_lang: Code of the source language, of any kind: ``de`` finds ``deu`` and ``de_DE``.
        tgt_lang: Code of the target language.

    Raises:
        DataError: It cannot be read, has another layout, or lacks a language.
    """
    found = _list_mtdata(text.path, split) if text.path.is_dir() else _list_opus(text)
    pairs = []
    for name, by_code in found.items():
        src, tgt = (by_code[find_code(code, list(by_code), name)] for code in (src_lang, tgt_lang))
        if src == tgt:
            raise DataError(f"{name} has one text for {src_lang} and {tgt_lang}, {src}: name two languages")
        pairs.append((src, tgt))
    return pairs


def _list_opus(text: Text) -> dict[str, _ByCode]:
    try:
        with zipfile.ZipFile(text.path) as archive:
            names = archive.namelist()
    except OSError as error:
        raise DataError(f"cannot read {text}: {error.strerror or error}") from None
    except (zipfile.BadZipFile, ValueError, NotImplementedError) as error:
        raise DataError(
            f"{text} cannot be read as a zip archive ({shown(error, quote=False)}): copy it again"
        ) from None
    pairs: dict[str, dict[str, Text]] = {}
    for name in names:
        if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name.replace("\\", "/")).parts:
            raise DataError(f"{text} has the member {shown(name)}, which leads out of the archive: download it again")
        found = _OPUS_MEMBER.fullmatch(name)
        if found and found["code"] in (found["one"], found["other"]):
            member = Text(text.path, name, f"{text}{SEPARATOR}{name}", f"{text.label}{SEPARATOR}{name}")
            pairs.setdefault(f"{text}{SEPARATOR}{found['stem']}", {})[found["code"]] = member
    if not pairs:
        raise DataError(
            f"{text} is no archive of OPUS with a pair such as Europarl.de-en.de and Europarl.de-en.en; it has "
            f"{list_codes(names)}. To read a member, name it: {text}{SEPARATOR}MEMBER"
        )
    return dict(pairs)


def _list_mtdata(folder: Path, split: str) -> dict[str, _ByCode]:
    """The texts of a split. Training texts that mtdata has merged are taken in place of their parts."""
    wanted = _MTDATA[split]
    whole = {name: texts for name, texts in _by_name(folder).items() if re.fullmatch(rf"{wanted}\d*", name)}
    found = whole if whole or split != "train" else _by_name(folder / _TRAIN_PARTS)
    if not found:
        parts = f"a folder {_TRAIN_PARTS} or " if split == "train" else ""
        raise DataError(
            f"{folder} is not a folder of mtdata with {split} text: it needs {parts}files such as {wanted}.deu and "
            f"{wanted}.eng"
        )
    return {f"{folder}/{name}": texts for name, texts in found.items()}


def _by_name(folder: Path) -> dict[str, _ByCode]:
    """The texts of a folder by name, in alphabetical order: ``NAME.deu`` and ``NAME.eng``, compressed or not."""
    try:
        files = sorted(path for path in folder.iterdir() if path.is_file()) if folder.is_dir() else []
    except OSError as error:
        raise DataError(f"cannot read {printable_name(folder)}: {error.strerror or error}") from None
    found: dict[str, dict[str, Text]] = {}
    for path in files:
        name, _, code = without_ending(path.name).rpartition(".")
        if name and not name.startswith(".") and not name.endswith(".meta") and _MTDATA_CODE.fullmatch(code):
            found.setdefault(name, {})[code] = local_text(path)
    # Of a name that ends in the languages of a pair, as mtdata's do, one text says that a side is missing.
    return {
        name: texts
        for name, texts in found.items()
        if len(texts) > 1 or any(matching_codes(code, name.split("-")[-2:]) for code in texts)
    }
