"""Sources of sentence pairs: toy text, files, the hub's data sets and treebanks. Each has a function that opens it."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pyarrow as pa

from dstransformer.data import SourceInfo


@dataclass(frozen=True)
class Source:
    """A source that is open: its content is identified, and its text can be read.

    Attributes:
        info: Identifies the content.
        splits: By the name of a split, a function that streams its pairs, in tables of the schema
            ``data_prep.store.pairs.TEXT``, some with more columns of ``SCHEMA``. Reading may raise a DataError.
        aligned: Whether the training pairs have a column ``alignment``.
        files: The names of the files of the training pairs if there are several, which a column ``file`` counts from 0.
    """

    info: SourceInfo
    splits: dict[str, Callable[[], Iterator[pa.Table]]]
    aligned: bool = False
    files: tuple[str, ...] = ()
