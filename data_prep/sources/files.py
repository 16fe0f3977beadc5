"""Local files, plain or gzipped: line-aligned texts, TSV, JSON lines, Parquet."""

import json
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice, zip_longest
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from data_prep.options import FilesOptions
from data_prep.pairs import SCHEMA
from data_prep.sources import Source
from data_prep.sources.records import pair_of_record, pairs_of_table
from dstransformer.corpus import InputFile, SourceInfo
from dstransformer.corpus.lines import iter_lines
from dstransformer.corpus.manifest import file_sha256
from dstransformer.errors import DataError, UserError

_BATCH_LINES = 10_000

Stream = Callable[[], Iterator[pa.Table]]


def open_files(options: FilesOptions) -> Source:
    """Check which files make which split; UserError for a combination, DataError for a file that cannot be read."""
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
        paths = split.paths()
        for path in paths:
            _check_readable(path)
            inputs.append(InputFile(name=path.name, sha256=file_sha256(path)))
        if paths:
            splits[name] = partial(_stream, paths, options.src_lang, options.tgt_lang)
    if "train" not in splits:
        raise UserError("no training text: give --src FILE and --tgt FILE, or --train FILE")
    for name, size, flag in (("validation", options.valid_size, "valid"), ("test", options.test_size, "test")):
        if name in splits and size:
            raise UserError(f"--{flag}-size {size} holds pairs out of the training text, but a {name} set is given too")
    if "validation" not in splits and not options.valid_size:
        raise UserError(
            "no validation text: give --valid-src and --valid-tgt, or --valid, "
            "or --valid-size N to hold N pairs out of the training text"
        )
    return Source(info=SourceInfo(name="files", revision=None, inputs=tuple(inputs)), splits=splits)


class _Given:
    """The files that the command line names for one split."""

    def __init__(self, prefix: str, src: Path | None, tgt: Path | None, flag: str, both: Path | None) -> None:
        self._src_flag, self._tgt_flag, self._flag = f"--{prefix}src", f"--{prefix}tgt", flag
        self._src, self._tgt, self._both = src, tgt, both

    def paths(self) -> tuple[Path, ...]:
        """None, one or two files."""
        if self._both and (self._src or self._tgt):
            raise UserError(f"{self._flag} and {self._src_flag} or {self._tgt_flag} name the same split; give one")
        if bool(self._src) != bool(self._tgt):
            there, lacking = (self._src_flag, self._tgt_flag) if self._src else (self._tgt_flag, self._src_flag)
            raise UserError(f"{there} is given without {lacking}")
        return tuple(path for path in (self._src, self._tgt, self._both) if path)


def _check_readable(path: Path) -> None:
    try:
        with path.open("rb") as file:
            first = file.read(1)
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from None
    if not first:
        raise DataError(f"{path} is empty")


def _stream(paths: tuple[Path, ...], src_lang: str, tgt_lang: str) -> Iterator[pa.Table]:
    if len(paths) == 2:
        return _read_two_texts(*paths)
    path = paths[0]
    suffixes = [suffix for suffix in path.suffixes if suffix != ".gz"]
    match suffixes[-1] if suffixes else "":
        case ".tsv":
            return _read_tsv(path)
        case ".jsonl":
            return _read_json_lines(path, src_lang, tgt_lang)
        case ".parquet":
            return _read_parquet(path, src_lang, tgt_lang)
        case other:
            raise DataError(f"{path}: {other or 'no ending'} is not .tsv, .jsonl or .parquet; rename or convert it")


def _read_two_texts(src: Path, tgt: Path) -> Iterator[pa.Table]:
    src_lines, tgt_lines = _read_lines(src), _read_lines(tgt)
    src_count = tgt_count = 0
    for src_batch, tgt_batch in zip_longest(src_lines, tgt_lines, fillvalue=list[str]()):
        src_count, tgt_count = src_count + len(src_batch), tgt_count + len(tgt_batch)
        if len(src_batch) != len(tgt_batch):
            src_count += sum(map(len, src_lines))
            tgt_count += sum(map(len, tgt_lines))
            raise DataError(
                f"{src} has {src_count} lines but {tgt} has {tgt_count}: "
                "line n of one must translate line n of the other"
            )
        yield _table(src_batch, tgt_batch)


def _read_tsv(path: Path) -> Iterator[pa.Table]:
    first = 1
    for lines in _read_lines(path):
        rows = [line.split("\t") for line in lines]
        for number, row in enumerate(rows, first):
            if len(row) != 2:
                raise DataError(f"{path}, line {number}: {len(row)} columns, wanted source, tab, target")
        yield _table([row[0] for row in rows], [row[1] for row in rows])
        first += len(lines)


def _read_json_lines(path: Path, src_lang: str, tgt_lang: str) -> Iterator[pa.Table]:
    first = 1
    for lines in _read_lines(path):
        pairs = []
        for number, line in enumerate(lines, first):
            where = f"{path}, line {number}"
            try:
                record = json.loads(line)
            except ValueError as error:
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
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{path} is not a readable Parquet file: {error}") from None


def _read_lines(path: Path) -> Iterator[list[str]]:
    """The lines of a file in batches."""
    lines = iter_lines(path)
    while batch := list(islice(lines, _BATCH_LINES)):
        yield batch


def _table(src: list[str], tgt: list[str]) -> pa.Table:
    return pa.table([pa.array(src, pa.string()), pa.array(tgt, pa.string())], schema=SCHEMA)
