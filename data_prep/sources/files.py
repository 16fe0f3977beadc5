"""Local files, plain or compressed: line-aligned texts, TSV, JSON lines, Parquet."""

import glob
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import lru_cache, partial
from itertools import islice, zip_longest
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from data_prep.options import FilesOptions, printable_name
from data_prep.pairs import TEXT
from data_prep.sources import Source
from data_prep.sources.records import pair_of_record, pairs_of_table
from data_prep.sources.scores import mark_low
from data_prep.sources.texts import archive_of, iter_sentences
from dstransformer.compression import ENDINGS
from dstransformer.corpus import InputFile, SourceInfo
from dstransformer.errors import DataError, UserError, counted
from dstransformer.files import file_sha256
from dstransformer.json_text import JsonError, parse_json
from dstransformer.textfiles import is_same_file

_BATCH_LINES = 10_000
_BOTH_SIDES = (".tsv", ".jsonl", ".parquet")

Stream = Callable[[], Iterator[pa.Table]]


#: Lines of both sides that are compared with each other.
_COMPARED_LINES = 100


def open_files(options: FilesOptions) -> Source:
    """Find the files of each split and identify them.

    Raises:
        UserError: The options do not go together.
        DataError: A file cannot be read.
    """
    if options.src_lang == options.tgt_lang:
        raise UserError(f"--src-lang and --tgt-lang are both {options.src_lang!r}; a corpus needs two languages")
    given = {
        "train": _Given("", options.src, options.tgt, "--train", options.train),
        "validation": _Given("valid-", options.valid_src, options.valid_tgt, "--valid", options.valid),
        "test": _Given("test-", options.test_src, options.test_tgt, "--test", options.test),
    }
    inputs: list[InputFile] = []
    splits: dict[str, Stream] = {}
    for name, split in given.items():
        groups = expand(split.paths())
        streams: list[Stream] = []
        for paths in groups:
            _check_ending(paths)
            seen = {}
            for path in paths:
                identified, seen[path] = _identify(path)
                inputs.append(identified)
            streams.append(partial(_stream, paths, seen, options.src_lang, options.tgt_lang))
        if streams:
            splits[name] = partial(_chain, streams)
    if options.scores and options.min_score is not None and "train" in splits:
        scores = [paths[0] for paths in expand((options.scores,))]
        inputs += [_identify(path)[0] for path in scores]
        splits["train"] = partial(_mark_low, splits["train"], scores, options.min_score)
    if "train" not in splits:
        raise UserError("no training text: give --src FILE and --tgt FILE, or --train FILE")
    for name, size, flag in (("validation", options.valid_size, "valid"), ("test", options.test_size, "test")):
        if name in splits and size:
            raise UserError(f"--{flag}-size {size} holds pairs out of the training text, but a {name} set is given too")
    return Source(info=SourceInfo(name="files", revision=None, inputs=tuple(inputs)), splits=splits)


def swapped_sides(options: FilesOptions) -> str | None:
    """Return a warning if the two file names of a split end in each other's language."""
    for flag, src, tgt in (
        ("", options.src, options.tgt),
        ("valid-", options.valid_src, options.valid_tgt),
        ("test-", options.test_src, options.test_tgt),
    ):
        languages = (f".{options.tgt_lang}".lower(), f".{options.src_lang}".lower())
        if src and tgt and (_ending(src), _ending(tgt)) == languages:
            return (
                f"warning: --{flag}src {src} is taken for {options.src_lang} and --{flag}tgt {tgt} for "
                f"{options.tgt_lang}: are the sides swapped?"
            )
    return None


def same_sides(options: FilesOptions) -> str | None:
    """Return a warning if source and target of a split begin with the same lines."""
    for flag, src, tgt in (
        ("", options.src, options.tgt),
        ("valid-", options.valid_src, options.valid_tgt),
        ("test-", options.test_src, options.test_tgt),
    ):
        if src and tgt and src.is_file() and tgt.is_file():  # a pipe is read only once
            with suppress(DataError, UserError):  # reported when it is read
                lines = list(islice(zip(iter_sentences(src), iter_sentences(tgt), strict=False), _COMPARED_LINES))
                if len(lines) > 1 and all(one == other for one, other in lines):
                    return (
                        f"warning: the first {len(lines)} lines of --{flag}src {src} and --{flag}tgt {tgt} are the "
                        "same: is one text given for both sides?"
                    )
    return None


class _Given:
    """The files that the options name for one split."""

    def __init__(self, prefix: str, src: Path | None, tgt: Path | None, flag: str, both: Path | None) -> None:
        self._src_flag, self._tgt_flag, self._flag = f"--{prefix}src", f"--{prefix}tgt", flag
        self._src, self._tgt, self._both = src, tgt, both

    def paths(self) -> tuple[Path, ...]:
        """Return no file, one or two.

        Raises:
            UserError: The options do not go together.
        """
        if self._both and (self._src or self._tgt):
            raise UserError(f"{self._flag} and {self._src_flag} or {self._tgt_flag} name the same split; give one")
        if bool(self._src) != bool(self._tgt):
            there, lacking = (self._src_flag, self._tgt_flag) if self._src else (self._tgt_flag, self._src_flag)
            raise UserError(f"{there} is given without {lacking}")
        if self._src and self._tgt and is_same_file(self._src, self._tgt):
            raise UserError(f"{self._src_flag} and {self._tgt_flag} are the same file, {self._tgt}: name one per side")
        return tuple(path for path in (self._src, self._tgt, self._both) if path)


def expand(paths: tuple[Path, ...]) -> list[tuple[Path, ...]]:
    """The files that names stand for, which may be patterns such as ``part-*.en.gz``.

    Args:
        paths: No name, the name of a file with both sides, or those of the two sides.

    Returns:
        The files in alphabetical order, with those of both sides beside each other.

    Raises:
        DataError: A pattern fits no file, or the sides have different numbers of files.
    """
    sides = [_matches(path) for path in paths]
    if len({len(side) for side in sides}) > 1:
        counts = " and ".join(f"{path} {len(side)}" for path, side in zip(paths, sides, strict=True))
        raise DataError(f"the sides have different numbers of files ({counts}): file n of one must translate file n")
    return list(zip(*sides, strict=True))


def _matches(path: Path) -> list[Path]:
    if path.exists() or not glob.has_magic(str(path)):
        return [path]
    if found := sorted(Path(name) for name in glob.glob(str(path), recursive=True) if not Path(name).is_dir()):  # noqa: PTH207
        return found
    raise DataError(f"no file fits {path}")


def _chain(streams: list[Stream]) -> Iterator[pa.Table]:
    for stream in streams:
        yield from stream()


def _mark_low(stream: Stream, scores: list[Path], least: float) -> Iterator[pa.Table]:
    return mark_low(stream(), scores, least)


def _identify(path: Path) -> tuple[InputFile, os.stat_result]:
    """Return a file's name and hash, and its status before it was hashed."""
    try:
        found = archive_of(path).stat()
        if not (stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode)):
            if stat.S_ISSOCK(found.st_mode):
                raise DataError(f"{path} is a socket: name a file")
            raise DataError(f"{path} is a pipe or a device, but is read more than once: save it to a file first")
        identified = InputFile(
            name=printable_name(path), sha256=_hash(archive_of(path), found.st_mtime_ns, found.st_size)
        )
    except OSError as error:
        if str(path) == "-":
            raise DataError("standard input is not read here: name a file") from None
        raise DataError(f"cannot read {path}: {error.strerror}") from None
    if not found.st_size:
        raise DataError(f"{path} is empty")
    return identified, found


@lru_cache
def _hash(path: Path, _: int, __: int) -> str:
    """The hash of a file, computed once for all members of an archive as long as its time and size stay."""
    return file_sha256(path)


def _unchanged(stream: Iterator[pa.Table], seen: Mapping[Path, os.stat_result]) -> Iterator[pa.Table]:
    """Pass the stream on, and raise a DataError at its end if a file has changed since it was hashed."""
    yield from stream
    for path, before in seen.items():
        try:
            now = archive_of(path).stat()
        except OSError as error:
            raise DataError(f"{path} vanished while it was read: {error.strerror}") from None
        if (now.st_ino, now.st_size, now.st_mtime_ns) != (before.st_ino, before.st_size, before.st_mtime_ns):
            raise DataError(f"{path} changed while it was read: run the command again when it is complete")


def _ending(path: Path) -> str:
    suffixes = [suffix.lower() for suffix in path.suffixes if suffix.lower() not in ENDINGS]
    return suffixes[-1] if suffixes else ""


def _check_ending(paths: tuple[Path, ...]) -> None:
    """Refuse one file for both sides without the suffix of such a format, and two files with one."""
    ending = _ending(paths[0])
    if len(paths) == 1 and ending not in _BOTH_SIDES:
        raise DataError(f"{paths[0]}: {ending or 'no ending'} is not .tsv, .jsonl or .parquet; rename or convert it")
    for path in paths:
        if len(paths) == 2 and _ending(path) in (".jsonl", ".parquet"):
            raise DataError(f"{path} is not plain text: give a file with both sides as --train, --valid or --test")


def _stream(
    paths: tuple[Path, ...], seen: Mapping[Path, os.stat_result], src_lang: str, tgt_lang: str
) -> Iterator[pa.Table]:
    if len(paths) == 2:
        return _unchanged(_read_two_texts(*paths), seen)
    match _ending(paths[0]):
        case ".tsv":
            stream = _read_tsv(paths[0], src_lang, tgt_lang)
        case ".jsonl":
            stream = _read_json_lines(paths[0], src_lang, tgt_lang)
        case _:
            stream = _read_parquet(paths[0], src_lang, tgt_lang)
    return _unchanged(stream, seen)


def _read_two_texts(src: Path, tgt: Path) -> Iterator[pa.Table]:
    src_lines, tgt_lines = _read_lines(src), _read_lines(tgt)
    src_count = tgt_count = 0
    for src_batch, tgt_batch in zip_longest(src_lines, tgt_lines, fillvalue=list[str]()):
        src_count, tgt_count = src_count + len(src_batch), tgt_count + len(tgt_batch)
        if len(src_batch) != len(tgt_batch):
            src_count += sum(map(len, src_lines))
            tgt_count += sum(map(len, tgt_lines))
            raise DataError(
                f"{src} has {counted(src_count, 'line')} but {tgt} has {tgt_count}: "
                "line n of one must translate line n of the other"
            )
        yield _table(src_batch, tgt_batch)


def _check_header(path: Path, row: list[str], src_lang: str, tgt_lang: str) -> None:
    """Refuse a header line, which would become a sentence pair; one in the other order means that sides are swapped."""
    names = [cell.strip().lower() for cell in row]
    languages = [src_lang.lower(), tgt_lang.lower()]
    if names == languages[::-1]:
        raise DataError(
            f"{path}, line 1: the columns are {names[0]} and {names[1]}, but --src-lang is {src_lang}: swap --src-lang "
            "and --tgt-lang or the columns, and remove that line"
        )
    if names == languages or names in (["source", "target"], ["src", "tgt"]):
        raise DataError(
            f"{path}, line 1: {row[0]!r} and {row[1]!r} are a header, not a sentence pair: remove that line"
        )


def _read_tsv(path: Path, src_lang: str, tgt_lang: str) -> Iterator[pa.Table]:
    first = 1
    for lines in _read_lines(path):
        rows = [line.split("\t") for line in lines]
        for number, row in enumerate(rows, first):
            if len(row) != 2:
                found = f"{len(row)} columns" if len(row) > 1 else "no tab"
                raise DataError(f"{path}, line {number}: {found}, wanted source, tab, target")
        if first == 1:
            _check_header(path, rows[0], src_lang, tgt_lang)
        yield _table([row[0] for row in rows], [row[1] for row in rows])
        first += len(lines)


def _read_json_lines(path: Path, src_lang: str, tgt_lang: str) -> Iterator[pa.Table]:
    first = 1
    for lines in _read_lines(path):
        pairs = []
        for number, line in enumerate(lines, first):
            where = f"{path}, line {number}"
            try:
                record = parse_json(line)
            except JsonError as error:
                raise DataError(f"{where}: not a JSON object ({error})") from None
            pairs.append(pair_of_record(record, src_lang, tgt_lang, where))
        yield _table([src for src, _ in pairs], [tgt for _, tgt in pairs])
        first += len(lines)


def _read_parquet(path: Path, src_lang: str, tgt_lang: str) -> Iterator[pa.Table]:
    first = 0
    try:
        for batch in pq.ParquetFile(path).iter_batches(batch_size=_BATCH_LINES):
            yield pairs_of_table(pa.Table.from_batches([batch]), src_lang, tgt_lang, str(path), first)
            first += batch.num_rows
    except (pa.ArrowException, OSError, UnicodeError) as error:
        reason = " ".join(str(error).split())
        advice = "write the text as UTF-8" if "UTF8" in reason or isinstance(error, UnicodeError) else "copy it again"
        raise DataError(f"{path} cannot be read as Parquet ({reason}): {advice}, or convert it to .jsonl") from None


def _read_lines(path: Path) -> Iterator[list[str]]:
    """Read the lines of a file in batches."""
    lines = iter_sentences(path)
    while batch := list(islice(lines, _BATCH_LINES)):
        yield batch


def _table(src: list[str], tgt: list[str]) -> pa.Table:
    return pa.table([pa.array(src, pa.string()), pa.array(tgt, pa.string())], schema=TEXT)
