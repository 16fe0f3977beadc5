"""Files, here or on a server: line-aligned texts, or files with both sides (TSV, JSON lines, Parquet, Arrow, XML)."""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice, zip_longest
from pathlib import Path
from typing import TypeVar

import pyarrow as pa

from data_prep.recipe.options import FilesOptions, MonoOptions
from data_prep.sources import Source
from data_prep.sources.finding import Finder, Names, Stats, Stream, identify, read_unchanged
from data_prep.sources.messages import iter_messages
from data_prep.sources.records import pair_of_record, read_arrow, read_parquet
from data_prep.sources.texts import Pair, Text, check_no_archive, iter_sentences, local_text
from data_prep.sources.xml_pairs import iter_xml_pairs
from data_prep.store.pairs import text_table
from dstransformer.data import InputFile, SourceInfo
from dstransformer.data.alignment import format_links, parse_links
from dstransformer.errors import DataError, UserError, counted, shown
from dstransformer.io.json_text import JsonError, parse_json
from dstransformer.io.progress import Progress
from dstransformer.io.text import is_same_file

Value = TypeVar("Value")

_BATCH_LINES = 10_000


def open_files(options: FilesOptions, progress: Progress | None = None) -> Source:
    """Find the files of each split and identify them. Those on servers are downloaded, unless they are in the cache.

    Args:
        options: What to read.
        progress: Shows what is downloaded.

    Raises:
        UserError: The options do not go together.
        DataError: A file cannot be read.
    """
    if options.src_lang == options.tgt_lang:
        raise UserError(f"--src-lang and --tgt-lang are both {options.src_lang!r}; a corpus needs two languages")
    find = Finder(options.cache_dir, progress or Progress(), offline=options.offline)
    languages = (options.src_lang, options.tgt_lang)
    inputs: list[InputFile] = []
    splits: dict[str, Stream] = {}
    files: list[str] = []
    for name, split in _files_by_split(options).items():
        streams: list[Stream] = []
        for texts in find.groups(split.sides(), name, languages):
            split.check(texts)
            streams.append(_unchanged(partial(_read, texts, *languages), texts, inputs))
            files += [", ".join(text.label for text in texts)] if name == "train" else []
        if streams:
            splits[name] = partial(_chain, streams)
    if "train" not in splits:
        raise UserError("no training text: give --src FILE and --tgt FILE, or --train FILE")
    if options.scores and options.min_score is not None:
        scores = find.texts(options.scores)
        splits["train"] = _unchanged(partial(_add_low, splits["train"], scores, options.min_score), scores, inputs)
    if options.alignments:
        alignments = find.texts(options.alignments)
        splits["train"] = _unchanged(partial(_add_alignment, splits["train"], alignments), alignments, inputs)
    for name, size in options.held_out_sizes.items():
        if name in splits:
            raise UserError(
                f"--{name.removesuffix('ation')}-size {size} holds pairs out of the training text, but a {name} set is "
                "given too: leave one out"
            )
    info = SourceInfo(name="files", revision=None, inputs=tuple(inputs))
    several = tuple(files) if len(files) > 1 else ()
    return Source(info=info, splits=splits, aligned=options.alignments is not None, files=several)


def open_mono(options: MonoOptions, progress: Progress) -> Source:
    """Find the files of one language and identify them. The held-out text is the split ``test``.

    Raises:
        DataError: A file cannot be read.
    """
    find = Finder(options.cache_dir, progress, offline=options.offline)
    inputs: list[InputFile] = []
    splits: dict[str, Stream] = {}
    for split, names in (("train", options.text), ("test", options.held_out_text or ())):
        texts = find.texts(names)
        for text in texts:
            check_no_archive(text)
            if text.ending in _ENDINGS:
                raise DataError(
                    f"{text} is not plain text: write one sentence a line, and name it without {text.ending}"
                )
        if texts:
            splits[split] = _unchanged(partial(_read_alone, texts), texts, inputs)
    return Source(info=SourceInfo(name="mono", revision=None, inputs=tuple(inputs)), splits=splits)


def _unchanged(stream: Stream, texts: Sequence[Text], inputs: list[InputFile]) -> Stream:
    """Identify the texts that a stream reads, add them to ``inputs``, and check at its end that they are the same."""
    stats: Stats = {}
    for text in texts:
        inputs.append(identify(text, stats))
        if not inputs[-1].size:
            raise DataError(f"{text} is empty")
    return partial(read_unchanged, stream, stats)


class _SplitFiles:
    """The files that the options name for one split."""

    def __init__(self, prefix: str, src: Names | None, tgt: Names | None, flag: str, both: Names | None) -> None:
        self.src_flag, self.tgt_flag, self._flag = f"--{prefix}src", f"--{prefix}tgt", flag
        self.src, self.tgt, self._both = src, tgt, both

    def sides(self) -> tuple[Names, ...]:
        """Return the files of no side, of one that holds both, or of two.

        Raises:
            UserError: The options do not go together.
        """
        if self._both and (self.src or self.tgt):
            raise UserError(f"{self._flag} and {self.src_flag} or {self.tgt_flag} name the same split; give one")
        if bool(self.src) != bool(self.tgt):
            given, missing = (self.src_flag, self.tgt_flag) if self.src else (self.tgt_flag, self.src_flag)
            raise UserError(f"{given} is given without {missing}")
        return tuple(side for side in (self.src, self.tgt, self._both) if side)

    def check(self, texts: tuple[Text, ...]) -> None:
        """Refuse archives, one file for both sides without the ending of such a format, and two that are not the sides.

        Raises:
            UserError: Both are the same file.
            DataError: An ending is wrong, or a file is missing.
        """
        for text in texts:
            check_no_archive(text)
        if len(texts) == 1 and texts[0].ending not in _ENDINGS:
            if not texts[0].path.exists():
                raise DataError(f"cannot read {texts[0]}: No such file or directory")
            endings = f"{', '.join(_ENDINGS[:-1])} or {_ENDINGS[-1]}"
            raise DataError(f"{texts[0]}: {texts[0].ending or 'no ending'} is not {endings}; rename or convert it")
        if len(texts) == 2:
            for text in texts:
                if text.ending in _ENDINGS:
                    raise DataError(f"{text} is not the text of one side: give it as --train, --valid or --test")
            if texts[0].member == texts[1].member and is_same_file(texts[0].path, texts[1].path):
                raise UserError(f"{self.src_flag} and {self.tgt_flag} are the same file, {texts[1]}: name one per side")


def _files_by_split(options: FilesOptions) -> dict[str, _SplitFiles]:
    return {
        "train": _SplitFiles("", options.src, options.tgt, "--train", options.train),
        "validation": _SplitFiles("valid-", options.valid_src, options.valid_tgt, "--valid", options.valid),
        "test": _SplitFiles("test-", options.test_src, options.test_tgt, "--test", options.test),
    }


def swapped_sides(options: FilesOptions) -> str | None:
    """Return a warning if the two file names of a split end in each other's language."""
    languages = (f".{options.tgt_lang}".lower(), f".{options.src_lang}".lower())
    for split in _files_by_split(options).values():
        for src, tgt in zip(split.src or (), split.tgt or (), strict=False):
            if (local_text(Path(str(src))).ending, local_text(Path(str(tgt))).ending) == languages:
                return (
                    f"warning: {split.src_flag} {src} is taken for {options.src_lang} and {split.tgt_flag} {tgt} for "
                    f"{options.tgt_lang}: are the sides swapped?"
                )
    return None


def _chain(streams: list[Stream]) -> Iterator[pa.Table]:
    """The tables of streams, with the number of their stream as the column ``file``."""
    for number, stream in enumerate(streams):
        for table in stream():
            yield table.append_column("file", pa.array([number] * table.num_rows, pa.uint32()))


def _add_low(pairs: Stream, scores: Sequence[Text], min_score: float) -> Iterator[pa.Table]:
    """Add a column ``low`` to pairs: whether the score that a tool such as Bicleaner gave is below ``min_score``."""
    values = (_score(line, where) for where, line in _lines(scores))
    for table, batch in _with_lines(pairs, scores, values, "scores", "line n must be the score of pair n"):
        yield table.append_column("low", pa.array([score < min_score for score in batch], pa.bool_()))


def _score(line: str, where: str) -> float:
    try:
        score = float(line)
    except ValueError:
        score = math.nan
    if math.isnan(score):
        raise DataError(f"{where}: {shown(line)} is not a number")
    return score


def _add_alignment(pairs: Stream, alignments: Sequence[Text]) -> Iterator[pa.Table]:
    """Add a column ``alignment`` to pairs: their links in the Pharaoh format, sorted.

    Links are of whitespace-separated words, from 0, and are checked against the words of each pair.
    """
    rule = "line n must align the words of pair n"
    for table, lines in _with_lines(pairs, alignments, _lines(alignments), "alignments", rule):
        texts = zip(table["src"].to_pylist(), table["tgt"].to_pylist(), strict=True)
        links = [
            format_links(parse_links(line, (len(src.split()), len(tgt.split())), where))
            for (where, line), (src, tgt) in zip(lines, texts, strict=True)
        ]
        yield table.append_column("alignment", pa.array(links, pa.string()))


def _lines(texts: Sequence[Text]) -> Iterator[tuple[str, str]]:
    """The lines of files that follow each other, each after the name of its place."""
    for text in texts:
        yield from ((f"{text}, line {number}", line) for number, line in enumerate(iter_sentences(text), 1))


def _with_lines(
    pairs: Stream, texts: Sequence[Text], values: Iterator[Value], noun: str, rule: str
) -> Iterator[tuple[pa.Table, list[Value]]]:
    """Tables of pairs, each with the values of its pairs, which are read from the lines of ``texts``.

    Raises:
        DataError: The number of lines is not that of the pairs.
    """
    count, names = 0, ", ".join(map(str, texts))
    for table in pairs():
        batch = list(islice(values, table.num_rows))
        count += len(batch)
        if len(batch) < table.num_rows:
            raise DataError(f"{names}: {count:,} {noun}, fewer than pairs: {rule}")
        yield table, batch
    if next(values, None) is not None:
        raise DataError(f"{names}: more {noun} than the {count:,} pairs: {rule}")


def _read(texts: tuple[Text, ...], src_lang: str, tgt_lang: str) -> Iterator[pa.Table]:
    """Read the pairs of two texts, or of a file that holds both sides."""
    if texts[0].ending in _TABLE_READERS and len(texts) == 1:
        yield from _TABLE_READERS[texts[0].ending](texts[0], src_lang, tgt_lang)
        return
    pairs = _iter_aligned(*texts) if len(texts) == 2 else _PAIR_READERS[texts[0].ending](texts[0], src_lang, tgt_lang)
    while batch := list(islice(pairs, _BATCH_LINES)):
        yield text_table(*zip(*batch, strict=True))


def _read_alone(texts: Sequence[Text]) -> Iterator[pa.Table]:
    """Read the lines of texts, each as a pair with itself."""
    for text in texts:
        sentences = iter_sentences(text)
        while batch := list(islice(sentences, _BATCH_LINES)):
            yield text_table(batch, batch)


def _iter_aligned(src: Text, tgt: Text) -> Iterator[Pair]:
    src_lines, tgt_lines = iter_sentences(src), iter_sentences(tgt)
    for pairs, (src_line, tgt_line) in enumerate(zip_longest(src_lines, tgt_lines)):
        if src_line is None or tgt_line is None:
            src_count = pairs + (src_line is not None) + sum(1 for _ in src_lines)
            tgt_count = pairs + (tgt_line is not None) + sum(1 for _ in tgt_lines)
            raise DataError(
                f"{src} has {counted(src_count, 'line')} but {tgt} has {tgt_count:,}: "
                "line n of one must translate line n of the other"
            )
        yield src_line, tgt_line


def _check_header(text: Text, row: list[str], src_lang: str, tgt_lang: str) -> None:
    """Refuse a header line, which would become a sentence pair; one in the other order means that sides are swapped."""
    names = [cell.strip(' "').lower() for cell in row]
    languages = [src_lang.lower(), tgt_lang.lower()]
    if names == languages[::-1]:
        raise DataError(
            f"{text}, line 1: the columns are {names[0]} and {names[1]}, but --src-lang is {src_lang}: swap --src-lang "
            "and --tgt-lang or the columns, and remove that line"
        )
    if names == languages or names in (["source", "target"], ["src", "tgt"]):
        raise DataError(
            f"{text}, line 1: {row[0]!r} and {row[1]!r} are a header, not a sentence pair: remove that line"
        )


def _iter_tsv(text: Text, src_lang: str, tgt_lang: str) -> Iterator[Pair]:
    for number, line in enumerate(iter_sentences(text), 1):
        row = line.split("\t")
        if len(row) != 2:
            columns = f"{len(row)} columns" if len(row) > 1 else "no tab"
            advice = ": leave out the others, for example with `cut -f 1,2`" if len(row) > 1 else ""
            raise DataError(f"{text}, line {number}: {columns}, wanted source, tab, target{advice}")
        if number == 1:
            _check_header(text, row, src_lang, tgt_lang)
        yield row[0], row[1]


def _iter_json_lines(text: Text, src_lang: str, tgt_lang: str) -> Iterator[Pair]:
    for number, line in enumerate(iter_sentences(text), 1):
        where = f"{text}, line {number}"
        try:
            record = parse_json(line)
        except JsonError as error:
            raise DataError(f"{where}: not a JSON object ({error})") from None
        yield pair_of_record(record, src_lang, tgt_lang, where)


#: The readers of files with both sides, by ending: of pairs, and of tables of them.
_PAIR_READERS: dict[str, Callable[[Text, str, str], Iterator[Pair]]] = {
    ".tsv": _iter_tsv,
    ".jsonl": _iter_json_lines,
    ".tmx": iter_xml_pairs,
    ".xml": iter_xml_pairs,
    ".po": iter_messages,
    ".mo": iter_messages,
}
_TABLE_READERS = {".parquet": read_parquet, ".arrow": read_arrow, ".feather": read_arrow}

_ENDINGS = (*_PAIR_READERS, *_TABLE_READERS)
