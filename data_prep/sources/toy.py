"""The embedded grammar as a source of text."""

from collections.abc import Iterator
from functools import cache, partial

import pyarrow as pa

from data_prep.grammar.grammar import GRAMMAR_REVISION, AlignedPair, SentencePair, aligned_toy_splits, toy_splits
from data_prep.recipe.options import ToyOptions
from data_prep.sources import Source
from data_prep.store.pairs import text_table
from dstransformer.data import SourceInfo
from dstransformer.data.alignment import format_links
from dstransformer.errors import UserError


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
    def generate() -> dict[str, list[AlignedPair]] | dict[str, list[SentencePair]]:
        split = aligned_toy_splits if options.aligned else toy_splits
        return split(options.pairs, options.seed, options.valid_size, options.test_size)

    def stream(split: str) -> Iterator[pa.Table]:
        english, german, *alignments = zip(*generate()[split], strict=True)
        swapped = options.src_lang != "en"
        src, tgt = (german, english) if swapped else (english, german)
        table = text_table(src, tgt)
        if alignments and split == "train":
            links = [(one.swapped() if swapped else one).sure for one in alignments[0]]
            table = table.append_column("alignment", pa.array(map(format_links, links), pa.string()))
        yield table

    return Source(
        info=SourceInfo(name="toy", revision=str(GRAMMAR_REVISION), inputs=()),
        splits={name: partial(stream, name) for name in ("train", "validation", "test")},
        aligned=options.aligned,
    )
