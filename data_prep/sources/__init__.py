"""Sources of sentence pairs. A source identifies its content and streams each split."""

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path

import pyarrow as pa

from data_prep.recipe.options import FilesOptions, SourceOptions, ToyOptions, TreesOptions
from data_prep.store.pairs import TEXT
from dstransformer.corpus import SourceInfo
from dstransformer.errors import UserError
from dstransformer.terminal.progress import Progress


@dataclass(frozen=True)
class Source:
    """``info`` identifies the content; ``splits`` maps a split's name to a function that streams its pairs.

    The streamed tables have the schema of ``data_prep.store.pairs.TEXT``; reading may raise a DataError.
    """

    info: SourceInfo
    splits: dict[str, Callable[[], Iterator[pa.Table]]]


@dataclass(frozen=True)
class Part:
    """A source of a recipe by its name, opened."""

    name: str
    options: SourceOptions
    source: Source


def open_parts(sources: Mapping[str, SourceOptions], progress: Progress | None = None) -> list[Part]:
    """Check that all sources of a recipe exist, and that their held-out sets go together.

    Args:
        sources: The sources by name.
        progress: Shows what is downloaded.

    Raises:
        UserError: The options do not go together, or two sources give the same held-out set.
        DataError: A file or data set is missing or cannot be used.
    """
    parts = [Part(name, options, open_source(options, progress)) for name, options in sources.items()]
    for split, option in (("validation", "valid_size"), ("test", "test_size")):
        givers = [
            part.name
            for part in parts
            if split in part.source.splits or (isinstance(part.options, FilesOptions) and getattr(part.options, option))
        ]
        if len(givers) > 1:
            raise UserError(
                f"the sources {givers[0]!r} and {givers[1]!r} both have a {split} set, and a corpus has one: set "
                f"sources.{givers[1]}.held_out to false"
            )
        if split == "validation" and not givers and any(isinstance(part.options, FilesOptions) for part in parts):
            raise UserError(
                "no validation text: give --valid-src and --valid-tgt, or --valid, "
                "or --valid-size N to hold N pairs out of the training text"
            )
    return parts


def open_source(options: SourceOptions, progress: Progress | None = None) -> Source:
    """Check that the source exists and identify it; the text itself is read later.

    Raises:
        UserError: The options do not go together.
        DataError: A file or data set is missing or cannot be used.
    """
    source = _open(options, progress)
    return source if options.held_out else replace(source, splits={"train": source.splits["train"]})


def _open(options: SourceOptions, progress: Progress | None) -> Source:
    if isinstance(options, ToyOptions):
        return open_toy(options)
    if isinstance(options, FilesOptions):
        from data_prep.sources.files import open_files

        return open_files(options, progress)
    if isinstance(options, TreesOptions):
        from data_prep.sources.trees import open_trees

        return open_trees(options)
    from data_prep.sources.wmt14 import open_wmt14

    return open_wmt14(options)


def open_toy(options: ToyOptions) -> Source:
    """Open the embedded grammar, English to German or German to English.

    Raises:
        UserError: Other languages are asked for.
    """
    if {options.src_lang, options.tgt_lang} != {"en", "de"}:
        raise UserError(
            f"the toy source has English and German, not {options.src_lang}-{options.tgt_lang}: "
            "use --src-lang en --tgt-lang de, or the other way round"
        )

    @cache
    def generate() -> dict[str, list[tuple[str, str]]]:
        from data_prep.sources.toy import toy_splits

        return toy_splits(options.pairs, options.seed, options.valid_size, options.test_size)

    def stream(split: str) -> Iterator[pa.Table]:
        english, german = zip(*generate()[split], strict=True)
        src, tgt = (english, german) if options.src_lang == "en" else (german, english)
        yield pa.table([pa.array(src, pa.string()), pa.array(tgt, pa.string())], schema=TEXT)

    return Source(
        info=SourceInfo(name="toy", revision=grammar_revision(), inputs=()),
        splits={name: partial(stream, name) for name in ("train", "validation", "test")},
    )


def grammar_revision() -> str:
    """Hash the grammar's code, so that corpora of different grammars have different keys."""
    files = sorted((Path(__file__).parent / "toy").glob("*.py"))
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()
