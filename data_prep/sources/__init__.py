"""Where sentence pairs come from. A source knows what identifies its content and streams each split."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pyarrow as pa

from data_prep.options import FilesOptions, SourceOptions, ToyOptions
from dstransformer.corpus import SourceInfo


@dataclass(frozen=True)
class Source:
    """``info`` identifies the content; ``splits`` maps a split's name to a function that streams its pairs.

    The streamed tables have the schema of `data_prep.pairs.SCHEMA`; reading may raise a DataError.
    """

    info: SourceInfo
    splits: dict[str, Callable[[], Iterator[pa.Table]]]


def open_source(options: SourceOptions) -> Source:
    """Check that the source is there and identify it; the text itself is read later."""
    if isinstance(options, ToyOptions):
        from data_prep.sources.grammar import open_toy

        return open_toy(options)
    if isinstance(options, FilesOptions):
        from data_prep.sources.files import open_files

        return open_files(options)
    from data_prep.sources.wmt14 import open_wmt14

    return open_wmt14(options)
