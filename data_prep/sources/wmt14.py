"""WMT 2014, a data set of the hub whose languages and splits are known."""

from dataclasses import replace

from data_prep.recipe.options import HUB_SPLITS, HubOptions, Wmt14Options
from data_prep.sources import Source
from data_prep.sources.hub import open_hub
from dstransformer.errors import UserError


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
    copy = options.hub_path / options.pair if options.hub_path else None
    same = options.model_dump(include={"src_lang", "tgt_lang", "revision", "cache_dir", "offline"})
    subset = None if copy else options.pair
    data_set = HubOptions(name="wmt/wmt14", subset=subset, hub_path=copy, splits=",".join(HUB_SPLITS), **same)
    source = open_hub(data_set)
    return replace(source, info=source.info.model_copy(update={"name": "wmt14"}))
