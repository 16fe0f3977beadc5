"""Sources of sentence pairs. A source identifies its content and streams each split."""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import pyarrow as pa

from data_prep.pairs import SCHEMA
from data_prep.recipe import FilesOptions, SourceOptions, ToyOptions, TreesOptions
from dstransformer.corpus import SourceInfo
from dstransformer.errors import UserError


@dataclass(frozen=True)
class Source:
    """``info`` identifies the content; ``splits`` maps a split's name to a function that streams its pairs.

    The streamed tables have the schema of ``data_prep.pairs.SCHEMA``; reading may raise a DataError.
    """

    info: SourceInfo
    splits: dict[str, Callable[[], Iterator[pa.Table]]]


def open_source(options: SourceOptions) -> Source:
    """Check that the source exists and identify it; the text itself is read later.

    Raises:
        UserError: The options do not go together.
        DataError: A file or data set is missing or cannot be used.
    """
    if isinstance(options, ToyOptions):
        return open_toy(options)
    if isinstance(options, FilesOptions):
        from data_prep.sources.files import open_files

        return open_files(options)
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
        yield pa.table([pa.array(src, pa.string()), pa.array(tgt, pa.string())], schema=SCHEMA)

    return Source(
        info=SourceInfo(name="toy", revision=_grammar_revision(), inputs=()),
        splits={name: partial(stream, name) for name in ("train", "validation", "test")},
    )


def _grammar_revision() -> str:
    """Hash the grammar's code, so that corpora of different grammars have different keys."""
    files = sorted((Path(__file__).parent / "toy").glob("*.py"))
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()
