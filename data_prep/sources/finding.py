"""Finds the texts that names stand for, identifies their content, and checks that no file changes while it is read.

A name may stand for parallel text as others pack it: one of OPUS's Moses archives (``en-de.txt.zip``), or a folder of
``mtdata get``.
"""

import glob
import os
import re
import stat
import zipfile
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path, PurePosixPath

import pyarrow as pa

from data_prep.recipe.names import Address, printable_name
from data_prep.sources.texts import SEPARATOR, Text, local_text
from dstransformer.data import InputFile
from dstransformer.errors import DataError, shown
from dstransformer.io.compression import without_ending
from dstransformer.io.files import file_sha256, matching
from dstransformer.io.languages import find_code, list_codes, matching_codes
from dstransformer.io.progress import Progress

Stream = Callable[[], Iterator[pa.Table]]
Names = tuple[Path | Address, ...]

#: Files with their status before they were hashed.
Stats = dict[Path, os.stat_result]

#: ``Europarl.de-en.de``: a name, the languages of the pair, and that of the text.
_OPUS_MEMBER = re.compile(r"(?P<stem>.+\.(?P<one>[\w@]+)-(?P<other>[\w@]+))\.(?P<code>[\w@]+)")

#: The files of mtdata for each split, by their names without language.
_MTDATA = {"train": "train", "validation": "dev", "test": "test"}

#: Where mtdata puts training texts that it does not merge.
_TRAIN_PARTS = "train-parts"

#: A language as mtdata writes it: three letters, script, region.
_MTDATA_CODE = re.compile(r"[a-z]{3}(_[A-Z][a-z]{3})?(_[A-Z]{2})?")


class Finder:
    """Finds the texts that names stand for."""

    def __init__(self, cache: Path | None, progress: Progress, *, offline: bool) -> None:
        """Look for files here, and for downloads in the folder ``cache``; None is the default one."""
        self._cache, self._progress, self._offline = cache, progress, offline

    def groups(self, sides: Sequence[Names], split: str, languages: tuple[str, str]) -> list[tuple[Text, ...]]:
        """The texts of all sides of a split, with those that translate each other beside each other.

        One side holds both ``languages``; of what is packed, both texts are listed.

        Raises:
            DataError: A pattern fits no file, or the sides have different numbers of files.
        """
        if len(sides) == 1:
            groups: list[tuple[Text, ...]] = []
            for text in (text for name in sides[0] for text in self._texts(name, languages)):
                is_packed = not text.member and (text.ending == ".zip" or text.path.is_dir())
                groups += _unpack(text, split, *languages) if is_packed else [(text,)]
            return groups
        texts = [self.texts(side) for side in sides]
        if len(set(map(len, texts))) > 1:
            counts = " and ".join(
                f"{' '.join(map(str, names))} {len(side)}" for names, side in zip(sides, texts, strict=True)
            )
            raise DataError(
                f"the sides have different numbers of files ({counts}): file n of one must translate file n"
            )
        return list(zip(*texts, strict=True))

    def texts(self, names: Names) -> list[Text]:
        """The texts of one language that names, patterns such as ``part-*.en.gz`` and addresses stand for.

        Raises:
            UserError: A corpus of OPUS is not wanted here.
            DataError: A pattern fits no file, or a file cannot be downloaded.
        """
        return [text for name in names for text in self._texts(name, None)]

    def _texts(self, name: Path | Address, languages: tuple[str, str] | None) -> list[Text]:
        if isinstance(name, Path):
            if name.exists() or not glob.has_magic(str(name)):
                return [local_text(name)]
            if texts := [local_text(file) for file in matching(name) if not file.is_dir()]:
                return texts
            raise DataError(f"no file fits {name}: check the pattern and its folder")
        from data_prep.sources.remote import default_cache, fetch_texts, named_file

        name = named_file(name, languages)
        return fetch_texts(name, self._cache or default_cache(), self._progress, offline=self._offline)


def identify(text: Text, stats: Stats) -> InputFile:
    """Return a file's name and hash. Its status before it was hashed goes into ``stats``."""
    try:
        status = text.path.stat()
        if not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):
            if stat.S_ISSOCK(status.st_mode):
                raise DataError(f"{text} is a socket: name a file")
            raise DataError(f"{text} is a pipe or a device, but is read more than once: save it to a file first")
        sha256 = _hash(text.path, status.st_mtime_ns, status.st_size)
    except OSError as error:
        if str(text.path) == "-":
            raise DataError("standard input is not read here: name a file") from None
        raise DataError(f"cannot read {text}: {error.strerror}") from None
    stats[text.path] = status
    return InputFile(name=text.label, sha256=sha256, size=status.st_size)


@lru_cache
def _hash(path: Path, _: int, __: int) -> str:
    """The hash of a file, computed once for all members of an archive as long as its time and size stay."""
    return file_sha256(path)


def read_unchanged(stream: Stream, stats: Stats) -> Iterator[pa.Table]:
    """Yield from a stream of pairs, then check that no file has changed.

    Args:
        stream: The stream.
        stats: Its files with their status before they were hashed.

    Raises:
        DataError: A file was changed or removed while the stream was read.
    """
    yield from stream()
    for path, before in stats.items():
        try:
            now = path.stat()
        except OSError as error:
            raise DataError(f"{path} vanished while it was read: {error.strerror}") from None
        if (now.st_ino, now.st_size, now.st_mtime_ns) != (before.st_ino, before.st_size, before.st_mtime_ns):
            raise DataError(f"{path} changed while it was read: run the command again when it is complete")


def _unpack(text: Text, split: str, src_lang: str, tgt_lang: str) -> list[tuple[Text, Text]]:
    """The texts of both sides in an archive of OPUS or a folder of mtdata, which has texts for each split.

    The codes of the languages may be of any kind: ``de`` finds ``deu`` and ``de_DE``.

    Raises:
        DataError: It cannot be read, has another layout, or lacks a language.
    """
    texts = _list_mtdata(text.path, split) if text.path.is_dir() else _list_opus(text)
    pairs = []
    for name, by_code in texts.items():
        src, tgt = (by_code[find_code(code, list(by_code), name)] for code in (src_lang, tgt_lang))
        if src == tgt:
            raise DataError(f"{name} has one text for {src_lang} and {tgt_lang}, {src}: name two languages")
        pairs.append((src, tgt))
    return pairs


def _list_opus(text: Text) -> dict[str, dict[str, Text]]:
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
        match = _OPUS_MEMBER.fullmatch(name)
        if match and match["code"] in (match["one"], match["other"]):
            member = Text(text.path, name, f"{text}{SEPARATOR}{name}", f"{text.label}{SEPARATOR}{name}")
            pairs.setdefault(f"{text}{SEPARATOR}{match['stem']}", {})[match["code"]] = member
    if not pairs:
        raise DataError(
            f"{text} is no archive of OPUS with a pair such as Europarl.de-en.de and Europarl.de-en.en; it has "
            f"{list_codes(names)}. To read a member, name it: {text}{SEPARATOR}MEMBER"
        )
    return pairs


def _list_mtdata(folder: Path, split: str) -> dict[str, dict[str, Text]]:
    """The texts of a split. Training texts that mtdata has merged are taken in place of their parts."""
    stem = _MTDATA[split]
    merged = {name: texts for name, texts in _by_name(folder).items() if re.fullmatch(rf"{stem}\d*", name)}
    by_name = merged if merged or split != "train" else _by_name(folder / _TRAIN_PARTS)
    if not by_name:
        parts = f"a folder {_TRAIN_PARTS} or " if split == "train" else ""
        raise DataError(
            f"{folder} is not a folder of mtdata with {split} text: it needs {parts}files such as {stem}.deu and "
            f"{stem}.eng"
        )
    return {f"{folder}/{name}": texts for name, texts in by_name.items()}


def _by_name(folder: Path) -> dict[str, dict[str, Text]]:
    """The texts of a folder by name, in alphabetical order: ``NAME.deu`` and ``NAME.eng``, compressed or not."""
    try:
        files = sorted(path for path in folder.iterdir() if path.is_file()) if folder.is_dir() else []
    except OSError as error:
        raise DataError(f"cannot read {printable_name(folder)}: {error.strerror or error}") from None
    by_name: dict[str, dict[str, Text]] = {}
    for path in files:
        name, _, code = without_ending(path.name).rpartition(".")
        if name and not name.startswith(".") and not name.endswith(".meta") and _MTDATA_CODE.fullmatch(code):
            by_name.setdefault(name, {})[code] = local_text(path)
    # Of a name that ends in the languages of a pair, as mtdata's do, one text says that a side is missing.
    return {
        name: texts
        for name, texts in by_name.items()
        if len(texts) > 1 or any(matching_codes(code, name.split("-")[-2:]) for code in texts)
    }
