"""Opens the sources of a recipe."""

import html
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import assert_never

import pyarrow as pa

from data_prep.recipe.options import (
    DividedOptions,
    FilesOptions,
    HubOptions,
    MonoOptions,
    SourceOptions,
    TextOptions,
    ToyOptions,
    TreesOptions,
    Wmt14Options,
)
from data_prep.sources import Source
from data_prep.sources.files import open_files
from data_prep.sources.hub import open_hub, open_wmt14
from data_prep.sources.toy import open_toy
from data_prep.sources.trees import open_trees
from dstransformer.errors import UserError
from dstransformer.io.progress import Progress

#: An entity of HTML. Python also takes ``&copy`` without semicolon for one, as in ``?a=1&copy=2``.
ENTITY = re.compile("&(?:#[0-9]{1,7}|#[xX][0-9a-fA-F]{1,6}|[A-Za-z]{2,31}[0-9]{0,2});")

#: A field of a table in quotes.
QUOTED = re.compile('"(?:[^"]|"")*"')


@dataclass(frozen=True)
class Part:
    """A source of a recipe by its name, opened."""

    name: str
    options: SourceOptions | MonoOptions
    source: Source

    @property
    def languages(self) -> tuple[str, str]:
        """The codes of both languages."""
        record = self.options.record()
        return str(record["src_lang"]), str(record["tgt_lang"])

    @property
    def held_out_sizes(self) -> dict[str, int]:
        """The sizes of the splits that are to be held out of its training text, by their names."""
        return self.options.held_out_sizes if isinstance(self.options, DividedOptions) else {}

    def tables(self, split: str) -> Iterator[pa.Table]:
        """Stream the pairs of a split, as plain text where the options say that they are not."""
        tables, options = self.source.splits[split](), self.options
        if isinstance(options, TextOptions) and (options.unquote or options.unescape):
            return (_plain(table, options) for table in tables)
        return tables


def _plain(table: pa.Table, options: TextOptions) -> pa.Table:
    """Pairs without the quotes of a table and the entities of a page."""
    for side in ("src", "tgt"):
        texts = table[side].to_pylist()
        if options.unquote:
            texts = [text[1:-1].replace('""', '"') if QUOTED.fullmatch(text) else text for text in texts]
        if options.unescape == "html":
            texts = [ENTITY.sub(lambda entity: html.unescape(entity[0]), text) for text in texts]
        table = table.set_column(table.column_names.index(side), side, pa.array(texts, pa.string()))
    return table


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
    for split in ("validation", "test"):
        having = [part for part in parts if split in {*part.source.splits, *part.held_out_sizes}]
        first: dict[tuple[str, str], str] = {}
        for part in having:
            if (before := first.setdefault(part.languages, part.name)) != part.name:
                raise UserError(
                    f"the sources {before!r} and {part.name!r} both have a {split} set, and a corpus has one for each "
                    f"direction: set sources.{part.name}.held_out to false"
                )
        if split == "validation" and not having and any(isinstance(part.options, DividedOptions) for part in parts):
            raise UserError(
                "no validation text: give --valid-src and --valid-tgt, or --valid, or of a data set its split, "
                "or --valid-size N to hold N pairs out of the training text"
            )
    return parts


def open_source(options: SourceOptions, progress: Progress | None = None) -> Source:
    """Check that the source exists and identify it; the text itself is read later.

    Raises:
        UserError: The options do not go together.
        DataError: A file or data set is missing or cannot be used.
    """
    match options:
        case ToyOptions():
            source = open_toy(options)
        case FilesOptions():
            source = open_files(options, progress)
        case TreesOptions():
            source = open_trees(options)
        case HubOptions():
            source = open_hub(options)
        case Wmt14Options():
            source = open_wmt14(options)
        case _:
            assert_never(options)
    return source if options.held_out else replace(source, splits={"train": source.splits["train"]})
