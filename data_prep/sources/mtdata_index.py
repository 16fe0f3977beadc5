"""Data sets by the names that mtdata gives them. mtdata's index says where their files are and how they are read.

mtdata keeps its index as a pickle in the user's home, and reads that when it is imported. So it is imported only in a
process of its own, with an empty folder in place of that one, and leaves the index there as JSON too, which is kept.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
import subprocess
import sys
import zlib
from dataclasses import replace
from difflib import get_close_matches
from functools import cache
from importlib import metadata
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

from pydantic import BaseModel, Field, ValidationError

from data_prep.recipe.names import Address
from data_prep.sources.remote import fetch_texts
from data_prep.sources.texts import SEPARATOR, Text, find_member
from dstransformer.errors import DataError, UserError, shown
from dstransformer.io.compression import without_ending
from dstransformer.io.files import replacing, storage_errors, sync
from dstransformer.io.json_text import parse_json
from dstransformer.io.languages import find_code, matching_codes
from dstransformer.io.progress import Progress
from dstransformer.io.requirements import how_to_install

#: What mtdata calls files with a text for each side, and files with both, with the ending that has their reader.
_SIDES, _BOTH = {"txt": ".txt", "sgm": ".sgm"}, {"tsv": ".tsv", "tmx": ".tmx", "wmt21xml": ".xml"}

#: The data sets out of which mtdata drops pairs by a rule that its index does not tell.
_FILTERED = "Neulab-tedtalks_"

_NAME = re.compile(r'\{"did": ("[^"]+")')


class _Entry(BaseModel):
    """What the index says of a data set. Its languages, at the end of its name, are in the order of its texts."""

    did: str
    url: str | tuple[str, ...]
    ext: str
    in_ext: str = ""
    in_paths: tuple[str, ...] = ()
    cols: tuple[Annotated[int, Field(ge=0)], ...] = (0, 1)

    @property
    def kind(self) -> str:
        """The type of its texts."""
        return self.in_ext or without_ending(f".{self.ext}").removeprefix(".")


def fetch_mtdata(
    name: Address, languages: tuple[str, str], folder: Path, progress: Progress, *, offline: bool
) -> list[tuple[Text, ...]]:
    """Download the data set that ``mtdata:NAME`` stands for, unless the cache ``folder`` has it.

    Returns:
        Its files with both sides, or the pair of its texts in the order of ``languages``.

    Raises:
        UserError: mtdata is not installed, or does not know the name.
        DataError: The data set has other languages or a type that is not read, or it cannot be downloaded.
    """
    entry = _look_up(name.url.removeprefix("mtdata:"), languages, folder, progress)
    codes = entry.did.split("-")[3:]
    src, tgt = (codes.index(find_code(code, codes, str(name))) for code in languages)
    if src == tgt:
        raise DataError(f"{name} has one text for {languages[0]} and {languages[1]}: name two languages")
    urls = (entry.url,) if isinstance(entry.url, str) else entry.url
    two = entry.kind in _SIDES and len(entry.in_paths or urls) == 2 and (len(urls) == 1 or not entry.in_paths)
    one = entry.kind in _BOTH and len(urls) == 1 and len(entry.cols) == 2
    if not (two or one) or entry.did.startswith(_FILTERED):
        why = "with pairs that mtdata leaves out" if entry.did.startswith(_FILTERED) else "which is not read here"
        raise DataError(
            f"{name} is of the type {entry.kind}, {why}: give the folder that `mtdata get --langs {'-'.join(codes)} "
            f"--train {entry.did} --out FOLDER` writes"
        )
    texts = [text for url in urls for text in fetch_texts(Address(url), folder, progress, offline=offline)]
    members = [_member(texts[0], member) for member in entry.in_paths] or texts
    if two:
        kind = _SIDES[entry.kind]
        return [(replace(members[src], kind=kind), replace(members[tgt], kind=kind))]
    columns = (entry.cols[src], entry.cols[tgt]) if entry.kind == "tsv" else None
    return [(replace(member, kind=_BOTH[entry.kind], columns=columns),) for member in members]


def _member(archive: Text, pattern: str) -> Text:
    """A member of an archive by its name, or by a pattern that only one fits."""
    text = replace(archive, member=pattern)
    member = find_member(text) if set(pattern) & set("*?[") else pattern
    name = f"{archive}{SEPARATOR}{member}"
    return replace(archive, member=member, name=name, label=name)


def _look_up(wanted: str, languages: tuple[str, str], folder: Path, progress: Progress) -> _Entry:
    path, names = _index(folder, progress), []
    try:
        with gzip.open(path, "rt", encoding="utf-8") as lines:
            for line in lines:
                if line.startswith(f'{{"did": {json.dumps(wanted)},'):
                    return _Entry.model_validate_json(line)
                names += _NAME.findall(line)
    except (OSError, EOFError, zlib.error, UnicodeDecodeError, ValidationError) as error:
        raise DataError(f"{path} is damaged ({shown(error, quote=False, limit=80)}): remove it") from None

    @cache
    def means(code: str, language: str) -> bool:
        return bool(matching_codes(language, [code]))

    near = []
    for name in names:
        codes = name.strip('"').split("-")[3:]
        if len(codes) == 2 and all(any(means(code, one) for code in codes) for one in languages):
            near.append(parse_json(name))
    found = [f"mtdata:{name}" for name in get_close_matches(wanted, near, n=3, cutoff=0.5)]
    advice = "`mtdata list --id --langs deu-eng` lists those of a pair"
    if found:
        advice = f"did you mean {' or '.join(found)}?"
    raise UserError(f"mtdata has no data set {shown(wanted)}: {advice}")


def _index(folder: Path, progress: Progress) -> Path:
    """The index of the installed mtdata, a line of JSON for each data set, compressed."""
    try:
        version = metadata.version("mtdata")
    except metadata.PackageNotFoundError:
        raise UserError(how_to_install("mtdata") or "mtdata is not installed: pip install mtdata") from None
    path = folder.resolve() / "mtdata" / f"index-{version}.jsonl.gz"
    if not path.is_file():
        with storage_errors(path.parent, full="make room, or name another folder with --cache-dir"):
            path.parent.mkdir(parents=True, exist_ok=True)
            with progress.task(f"index of mtdata {version}"), TemporaryDirectory(dir=path.parent) as own:
                done = subprocess.run(
                    [sys.executable, "-P", "-c", "import mtdata.index"],
                    cwd=own, env={**os.environ, "MTDATA": own}, capture_output=True, check=False,
                )  # fmt: skip
                made = list(Path(own).glob("*.jsonl"))
                if done.returncode or len(made) != 1:
                    said = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
                    raise DataError(f"mtdata {version} cannot write its index ({shown(said, quote=False, limit=200)})")
                with made[0].open("rb") as plain, replacing(path) as aside:
                    with gzip.open(aside, "wb", compresslevel=6) as packed:
                        shutil.copyfileobj(plain, packed)
                    sync(aside)
    return path
