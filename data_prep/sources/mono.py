"""Text of one language. Each sentence is a pair with itself, so that it is cleaned as pairs are."""

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice

import pyarrow as pa

from data_prep.recipe.options import MonoOptions
from data_prep.sources import Source
from data_prep.sources.finding import Finder, Stats, Stream, identify, read_unchanged
from data_prep.sources.texts import Text, check_no_archive, iter_sentences
from data_prep.store.pairs import text_table
from dstransformer.data import InputFile, SourceInfo
from dstransformer.errors import DataError
from dstransformer.io.progress import Progress

_BATCH_LINES = 10_000

#: The endings of files with both sides of pairs.
_OF_PAIRS = (".tsv", ".jsonl", ".tmx", ".xml", ".parquet", ".arrow", ".feather")


def open_mono(options: MonoOptions, progress: Progress) -> Source:
    """Find the files and identify them. The held-out text is the split ``test``.

    Raises:
        DataError: A file cannot be read.
    """
    find = Finder(options.cache_dir, progress, offline=options.offline)
    inputs: list[InputFile] = []
    splits: dict[str, Stream] = {}
    for split, names in (("train", options.text), ("test", options.held_out_text or ())):
        texts, stats = find.texts(names), Stats()
        for text in texts:
            check_no_archive(text)
            if text.ending in _OF_PAIRS:
                raise DataError(
                    f"{text} is not plain text: write one sentence a line, and name it without {text.ending}"
                )
            inputs.append(identify(text, stats))
        if texts:
            splits[split] = partial(read_unchanged, partial(_read, texts), stats)
    return Source(info=SourceInfo(name="mono", revision=None, inputs=tuple(inputs)), splits=splits)


def _read(texts: Sequence[Text]) -> Iterator[pa.Table]:
    for text in texts:
        sentences = iter_sentences(text)
        while batch := list(islice(sentences, _BATCH_LINES)):
            yield text_table(batch, batch)
