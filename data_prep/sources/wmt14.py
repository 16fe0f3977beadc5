"""WMT 2014 through ``datasets``: from the hub, with its cache, or from a local copy in the same layout."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from data_prep.recipe.options import Wmt14Options, printable_name
from data_prep.sources import Source
from data_prep.sources.finding import Stats, read_unchanged
from data_prep.sources.hub import BATCH_ROWS, open_split, prepare_datasets
from data_prep.sources.records import pairs_of_table
from dstransformer.data import InputFile, SourceInfo
from dstransformer.errors import DataError, UserError
from dstransformer.io.files import file_sha256

_HUB_NAME = "wmt/wmt14"
_SPLITS = ("train", "validation", "test")


def open_wmt14(options: Wmt14Options) -> Source:
    """Find the data set and its revision. It is downloaded when the first split is read.

    Raises:
        UserError: The languages are not those of the pair.
        DataError: The data set is neither on the hub nor in the cache, or the local copy lacks it.
    """
    if {options.src_lang, options.tgt_lang} != set(options.pair.split("-")):
        raise UserError(
            f"--pair {options.pair} has no direction {options.src_lang}-{options.tgt_lang}: "
            "--src-lang and --tgt-lang must be its two languages"
        )
    prepare_datasets(options)
    stats: Stats = {}
    if options.hub_path:
        info, builder, stats = _open_copy(options.hub_path / options.pair)
    else:
        info, builder = _open_hub(options)
    stream = partial(_stream, builder, options)
    return Source(info=info, splits={name: partial(read_unchanged, partial(stream, name), stats) for name in _SPLITS})


def _open_copy(folder: Path) -> tuple[SourceInfo, Any, Stats]:
    from datasets import load_dataset_builder

    files = [path for name in _SPLITS for path in sorted(folder.glob(f"{name}-*.parquet"))]
    missing = [name for name in _SPLITS if not any(path.name.startswith(f"{name}-") for path in files)]
    if missing:
        raise DataError(
            f"{folder} has no {missing[0]}-*.parquet: --hub-path must be a copy of the hub's {_HUB_NAME}, "
            "with a folder of Parquet files for each language pair"
        )
    stats = {path: path.stat() for path in files}
    inputs = tuple(
        InputFile(name=printable_name(path), sha256=file_sha256(path), size=found.st_size)
        for path, found in stats.items()
    )
    return SourceInfo(name="wmt14", revision=None, inputs=inputs), load_dataset_builder(str(folder)), stats


def _open_hub(options: Wmt14Options) -> tuple[SourceInfo, Any]:
    from datasets import load_dataset_builder

    cache_dir = str(options.cache_dir) if options.cache_dir else None
    try:
        builder = load_dataset_builder(_HUB_NAME, options.pair, revision=options.revision, cache_dir=cache_dir)
    except (OSError, ValueError) as error:
        raise _unreachable(error) from None
    return SourceInfo(name="wmt14", revision=builder.hash, inputs=()), builder


def _stream(builder: Any, options: Wmt14Options, split: str) -> Iterator[pa.Table]:
    where = f"{options.hub_path / options.pair if options.hub_path else f'{_HUB_NAME} {options.pair}'}, {split}"
    first = 0
    try:
        for table in _open_split(builder, options, split).iter(batch_size=BATCH_ROWS):
            yield pairs_of_table(table, options.src_lang, options.tgt_lang, where, first)
            first += table.num_rows
    except (pa.ArrowException, UnicodeError) as error:
        raise DataError(f"{where}: not readable as Parquet ({' '.join(str(error).split())})") from None


def _open_split(builder: Any, options: Wmt14Options, split: str) -> Any:
    try:
        return open_split(builder, split, streamed=options.hub_path is not None)
    except (ConnectionError, FileNotFoundError) as error:
        raise _unreachable(error) from None


def _unreachable(error: Exception) -> DataError:
    reason = str(error).splitlines()[0] if str(error) else type(error).__name__
    return DataError(
        f"cannot get {_HUB_NAME} ({reason}): check the network, point --cache-dir at a filled cache, "
        "or give a local copy with --hub-path"
    )
