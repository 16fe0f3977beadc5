"""What a source of sentence pairs is: it identifies its content and streams each split."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pyarrow as pa

from data_prep.recipe.options import SourceOptions
from dstransformer.corpus import SourceInfo


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
