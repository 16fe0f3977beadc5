"""Test sets in the layouts in which they are published, from a folder on this machine.

FLORES-200 and FLORES+ (NLLB Team, 2022), NTREX-128 (Federmann et al., 2022), WMT24++ (Deutsch et al., 2025) and BOUQuET
(Omnilingual MT Team, 2025).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from dstransformer.errors import DataError, UserError, shown
from dstransformer.evaluation.testset import TestSet, check_lines
from dstransformer.io.json_text import JsonError, parse_json
from dstransformer.io.languages import divide_codes, find_code, list_codes
from dstransformer.io.text import iter_lines

#: The splits of the sets that have several. The first is taken if none is named.
_SPLITS = {"flores200": ("devtest", "dev"), "bouquet": ("test", "dev")}

_NTREX_SRC, _NTREX_REF = "newstest2019-src.", "newstest2019-ref."


def is_published(name: str) -> bool:
    """Whether a name of ``--test-set`` is that of a published set with its folder, as in ``ntrex:DIR``."""
    return name.partition(":")[0].partition("/")[0] in _READERS and ":" in name


def published_test_set(name: str, languages: str) -> TestSet:
    """Read a test set from a folder.

    Args:
        name: Such as ``flores200:DIR``, ``flores200/dev:DIR``, ``ntrex:DIR``, ``wmt24pp:DIR``, ``bouquet:DIR``.
        languages: Codes of any kind: ``en-de``, ``eng_Latn-deu_Latn``. The set's own codes name the result.

    Raises:
        UserError: The set has no such split, or the languages are not two codes.
        DataError: The folder is missing or has another layout, lacks a language, or its files do not belong together.
    """
    kind, _, where = name.partition(":")
    kind, _, split = kind.partition("/")
    folder = Path(where).expanduser()  # no shell expands a ~ that follows a colon
    if not where:
        raise UserError(f"--test-set {name}: name the folder of the set, {kind}:DIR")
    if not folder.is_dir():
        raise DataError(f"--test-set {name}: {folder} is not a folder; download the set, and name its folder")
    splits = _SPLITS.get(kind, ("",))
    split = split or splits[0]
    if split not in splits:
        known = f"; it has {' and '.join(splits)}" if kind in _SPLITS else ""
        raise UserError(f"--test-set {name}: {kind} has no split {shown(split)}{known}")
    title = kind if split == splits[0] else f"{kind}/{split}"
    return _READERS[kind](title, folder, split, languages)


def _read_flores(title: str, folder: Path, split: str, languages: str) -> TestSet:
    folder = folder if folder.name == split else folder / split
    files: dict[str, Path] = {}
    for ending in (f".{split}", ".jsonl", ".parquet") if folder.is_dir() else ():
        files = {path.name.removesuffix(ending): path for path in _listed(folder) if path.name.endswith(ending)}
        if files:
            break
    if not files:
        raise DataError(
            f"{folder} is not of FLORES-200: it has no file such as eng_Latn.{split}, eng_Latn.jsonl or "
            "eng_Latn.parquet"
        )
    return _two_files(title, folder, files, languages)


def _read_ntrex(title: str, folder: Path, _: str, languages: str) -> TestSet:
    folder = folder / "NTREX-128" if (folder / "NTREX-128").is_dir() else folder
    files = {
        path.name.removeprefix(begin).removesuffix(".txt"): path
        for begin in (_NTREX_REF, _NTREX_SRC)
        for path in _listed(folder)
        if path.name.startswith(begin) and path.name.endswith(".txt")
    }
    if not files:
        raise DataError(f"{folder} is not of NTREX-128: it has no file such as {_NTREX_SRC}eng.txt")
    return _two_files(title, folder, files, languages)


def _read_wmt24pp(title: str, folder: Path, _: str, languages: str) -> TestSet:
    """Read a set from English; the sentences that its authors mark as bad sources are left out."""
    files = {path.stem.partition("-")[2]: path for path in _listed(folder) if path.match("en-*.jsonl")}
    if not files:
        raise DataError(f"{folder} is not of WMT24++: it has no file such as en-de_DE.jsonl")
    src, tgt = _codes(languages, ["en", *files], str(folder))
    if src != "en":
        raise DataError(f"{folder}: WMT24++ translates from en, not from {src}; into {list_codes(list(files))}")
    path = files[tgt]
    rows = []
    for where, record in _records(path):
        is_bad = record.get("is_bad_source", False)
        if not isinstance(is_bad, bool):
            raise DataError(f"{where}: is_bad_source is {shown(is_bad)}, not true or false")
        if not is_bad:
            rows.append((_text(record, "source", where), _text(record, "target", where)))
    if not rows:
        raise DataError(f"{path} has no sentence whose source is not marked as bad")
    sources, references = zip(*rows, strict=True)
    return TestSet(f"{title} {src}-{tgt}", sources, references, str(path), str(path))


def _read_bouquet(title: str, folder: Path, split: str, languages: str) -> TestSet:
    """Read its sentences. The file of a language has that on its source side, and English on the other."""
    inner = folder / "data" / "sentence_level" / split
    files = {path.stem: path for path in _listed(inner) if path.suffix == ".parquet"} if inner.is_dir() else {}
    if not files:
        raise DataError(f"{folder} is not of BOUQuET: it has no data/sentence_level/{split}/eng_Latn.parquet")
    return _two_files(title, inner, files, languages, ("uniq_id", "src_text"))


_READERS: Mapping[str, Callable[[str, Path, str, str], TestSet]] = {
    "flores200": _read_flores,
    "ntrex": _read_ntrex,
    "wmt24pp": _read_wmt24pp,
    "bouquet": _read_bouquet,
}


def _listed(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if path.is_file())
    except OSError as error:
        raise DataError(f"cannot read {folder}: {error.strerror or error}") from None


def _codes(languages: str, codes: Sequence[str], where: str) -> tuple[str, str]:
    """The codes of a set for two languages.

    Raises:
        UserError: The languages are not two codes.
        DataError: The set lacks one of them.
    """
    src, tgt = (find_code(code, codes, where) for code in divide_codes(languages, codes))
    if src == tgt:
        raise UserError(f"--langpair {languages}: both are {src}; name two languages")
    return src, tgt


def _two_files(
    title: str, folder: Path, files: Mapping[str, Path], languages: str, columns: tuple[str, str] = ("id", "text")
) -> TestSet:
    """The test set of two of the files of a folder, which are given by the codes of their languages."""
    pair = _codes(languages, list(files), str(folder))
    src, ref = (files[code] for code in pair)
    sources, references = _sentences(src, *columns), _sentences(ref, *columns)
    check_lines(src, len(sources), ref, len(references))
    if apart := sources.keys() ^ references.keys():
        only = f"only one has a record whose {columns[0]} is {min(apart)}"
        raise DataError(f"{src} and {ref} do not belong together: {only}")
    return TestSet(f"{title} {'-'.join(pair)}", tuple(sources.values()), tuple(references.values()), str(src), str(ref))


def _sentences(path: Path, key: str, column: str) -> dict[Any, str]:
    """The sentences of a file in order: its lines by number, or the texts of its records by their keys."""
    if path.suffix == ".jsonl":
        records = list(_records(path))
    elif path.suffix == ".parquet":
        records = [(f"{path}, row {row}", record) for row, record in enumerate(_rows(path, key, column), 1)]
    else:
        return dict(enumerate(iter_lines(path), 1))
    keys, kind = [record.get(key) for _, record in records], int if key == "id" else str
    if not all(type(one) is kind for one in keys) or len(set(keys)) < len(keys):
        raise DataError(f"{path}: its records need a different {key} each")
    return dict(sorted((record[key], _text(record, column, where)) for where, record in records))


def _records(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    for number, line in enumerate(iter_lines(path), 1):
        where = f"{path}, line {number}"
        try:
            record = parse_json(line)
        except JsonError as error:
            raise DataError(f"{where}: not a JSON object ({error})") from None
        if not isinstance(record, dict):
            raise DataError(f"{where}: not a JSON object, but {shown(record)}")
        yield where, record


def _rows(path: Path, *wanted: str) -> list[dict[str, Any]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(path)
        columns = [name for name in wanted if name in file.schema_arrow.names]
        rows: list[dict[str, Any]] = file.read(columns=columns).to_pylist()
    except (pa.ArrowException, OSError, UnicodeError) as error:
        raise DataError(f"{path} cannot be read as Parquet ({shown(error, quote=False)}): copy it again") from None
    return rows


def _text(record: Mapping[str, Any], key: str, where: str) -> str:
    text = record.get(key)
    if not isinstance(text, str):
        raise DataError(f"{where}: {key} is {shown(text)}, not a text")
    return " ".join(text.splitlines())
