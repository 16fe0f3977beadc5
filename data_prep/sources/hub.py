"""Data sets of the Hugging Face hub through ``datasets``: with its cache, or from a local copy in the same layout."""

import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from data_prep.recipe.names import HUB_SPLITS, printable_name
from data_prep.recipe.options import HubOptions, Wmt14Options
from data_prep.sources import Source
from data_prep.sources.finding import Stats, Stream, identify, read_unchanged
from data_prep.sources.records import pairs_of_table
from data_prep.sources.texts import Text
from dstransformer.data import SourceInfo
from dstransformer.errors import DataError, DstError, UserError, shown
from dstransformer.io.progress import is_quiet

_BATCH_ROWS = 10_000


def open_hub(options: HubOptions) -> Source:
    """Find the data set and its revision. It is downloaded when the first split is read.

    Raises:
        DataError: The data set is neither on the hub nor in the cache, or lacks the subset or a split.
    """
    builder = _open_builder(options)
    names = dict(zip(HUB_SPLITS, options.splits.split(","), strict=False))
    has = [str(name) for name in builder.config.data_files or builder.info.splits or ()]
    needed = names.values() if "splits" in options.model_fields_set else [names["train"]]
    if missing := [name for name in needed if name not in has]:
        advice = "complete the copy, or name them by --splits" if options.hub_path else "name them by --splits"
        raise DataError(f"{_where(options)} has no split {shown(missing[0])}; it has {', '.join(has)}: {advice}")
    for split in options.held_out_sizes:
        if split in names and names[split] in has:
            raise UserError(
                f"{_where(options)} has the split {names[split]!r} for {split}: leave it out of --splits, or hold no "
                "pairs out of the training text"
            )
    files = builder.config.data_files if options.hub_path else {}
    paths = [Path(str(file)) for name in names.values() if name in files for file in files[name]]
    stats: Stats = {}
    inputs = tuple(identify(Text(path, "", str(path), printable_name(path)), stats) for path in paths)
    info = SourceInfo(name="hub", revision=None if options.hub_path else builder.hash, inputs=inputs)
    streams: dict[str, Stream] = {
        split: partial(read_unchanged, partial(_stream, builder, options, name), stats)
        for split, name in names.items()
        if name in has
    }
    return Source(info=info, splits=streams)


def open_wmt14(options: Wmt14Options) -> Source:
    """Find WMT 2014, whose languages and splits are known; see :func:`open_hub`.

    Raises:
        UserError: The languages are not those of the pair.
        DataError: The data set is neither on the hub nor in the cache, or the local copy lacks it.
    """
    if {options.src_lang, options.tgt_lang} != set(options.pair.split("-")):
        raise UserError(
            f"--pair {options.pair} has no direction {options.src_lang}-{options.tgt_lang}: "
            "--src-lang and --tgt-lang must be its two languages"
        )
    copy = options.hub_path / options.pair if options.hub_path else None
    same = options.model_dump(include={"src_lang", "tgt_lang", "revision", "cache_dir", "offline"})
    subset = None if copy else options.pair
    data_set = HubOptions(name="wmt/wmt14", subset=subset, hub_path=copy, splits=",".join(HUB_SPLITS), **same)
    source = open_hub(data_set)
    return replace(source, info=source.info.model_copy(update={"name": "wmt14"}))


def _open_builder(options: HubOptions) -> Any:
    if is_quiet() or not sys.stderr.isatty():  # `datasets` reads these variables when it is imported
        os.environ["HF_DATASETS_DISABLE_PROGRESS_BARS"] = os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
    if options.offline:
        os.environ["HF_HUB_OFFLINE"] = os.environ["HF_DATASETS_OFFLINE"] = "1"
    from datasets import load_dataset_builder

    name = str(options.hub_path or options.name)
    if options.hub_path is not None and not options.hub_path.is_dir():
        raise DataError(f"--hub-path {options.hub_path} is not a folder: name a copy of the data set")
    cache_dir = str(options.cache_dir) if options.cache_dir else None
    revision = None if options.hub_path else options.revision
    try:
        return load_dataset_builder(name, options.subset, revision=revision, cache_dir=cache_dir)
    except Exception as error:  # of datasets, of the hub, of the network
        raise _unavailable(options, error) from None


def _stream(builder: Any, options: HubOptions, split: str) -> Iterator[pa.Table]:
    where, first = f"{_where(options)}, {split}", 0
    try:
        if options.hub_path is None:
            builder.download_and_prepare()
            data_set = builder.as_dataset(split=split)
        else:
            data_set = builder.as_streaming_dataset(split=split)
        for table in data_set.with_format("arrow").iter(batch_size=_BATCH_ROWS):
            yield pairs_of_table(_chosen(table, options, where), options.src_lang, options.tgt_lang, where, first)
            first += table.num_rows
    except (DstError, GeneratorExit):
        raise
    except Exception as error:  # of datasets, which wraps those of readers, and of the network
        raise _unavailable(options, error) from None


def _chosen(table: pa.Table, options: HubOptions, where: str) -> pa.Table:
    """The table with its two columns named by the languages."""
    if options.columns is None:
        return table
    names = options.columns.split(",")
    for name in names:
        if table.column_names.count(name) != 1:
            has = shown(", ".join(table.column_names), quote=False)
            raise DataError(f"{where} has no column {shown(name)}; it has {has}: name them by --columns")
    if len(names) == 2:
        return table.select(names).rename_columns([options.src_lang, options.tgt_lang])
    if not pa.types.is_struct(table.schema.field(names[0]).type):
        raise DataError(f"{where}: column {shown(names[0])} holds no object with two languages: name two columns")
    return pa.Table.from_struct_array(table[names[0]])


def _where(options: HubOptions) -> str:
    name = str(options.hub_path or options.name)
    return f"{name} {options.subset}" if options.subset else name


def _unavailable(options: HubOptions, error: Exception) -> DataError:
    reason = shown(next(iter(str(error).splitlines()), "") or type(error).__name__, quote=False, limit=300)
    return DataError(
        f"cannot read {_where(options)} ({reason}): check its name, its subset and the network, point --cache-dir at a "
        "filled cache, or give a local copy with --hub-path"
    )
