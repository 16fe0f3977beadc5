"""Opens the source ``toy``, the embedded grammar; and has the right alignments of its held-out sets."""

from collections.abc import Iterator
from functools import cache, partial

import pyarrow as pa

from data_prep.grammar.phrases import Pair
from data_prep.grammar.sentences import GRAMMAR_REVISION, generate_pairs
from data_prep.recipe.options import ToyOptions
from data_prep.sources import Source
from data_prep.store.pairs import text_table
from dstransformer.data import Corpus, SourceInfo
from dstransformer.data.alignment import Link, format_links
from dstransformer.errors import DataError, UserError


def open_toy(options: ToyOptions) -> Source:
    """Open the embedded grammar, English to German or German to English.

    Raises:
        UserError: Other languages are asked for, or an empty split.
    """
    if {options.src_lang, options.tgt_lang} != {"en", "de"}:
        raise UserError(
            f"the toy source has English and German, not {options.src_lang}-{options.tgt_lang}: "
            "use --src-lang en --tgt-lang de, or the other way round"
        )

    @cache
    def generate() -> dict[str, list[Pair]]:
        return toy_splits(options.pairs, options.seed, options.valid_size, options.test_size)

    def stream(split: str) -> Iterator[pa.Table]:
        english, german, links = zip(*generate()[split], strict=True)
        swapped = options.src_lang != "en"
        table = text_table(german, english) if swapped else text_table(english, german)
        if options.aligned and split == "train":
            lines = (format_links(_swap(one) if swapped else one) for one in links)
            table = table.append_column("alignment", pa.array(lines, pa.string()))
        yield table

    return Source(
        info=SourceInfo(name="toy", revision=str(GRAMMAR_REVISION), inputs=()),
        splits={name: partial(stream, name) for name in ("train", "validation", "test")},
        aligned=options.aligned,
    )


def toy_splits(count: int, seed: int, validation: int, test: int) -> dict[str, list[Pair]]:
    """Draw ``count`` training pairs and the held-out sets, which share no source sentence with each other.

    The held-out sets are drawn first: for one seed they do not depend on the size of the training set.

    Raises:
        UserError: A size is below 1.
    """
    for name, size in (("training", count), ("validation", validation), ("test", test)):
        if size < 1:
            raise UserError(f"the toy {name} set needs at least 1 sentence pair, not {size}: ask for a positive size")
    held_out = validation + test
    pairs = generate_pairs(count + held_out, seed)
    return {"train": pairs[held_out:], "validation": pairs[:validation], "test": pairs[validation:held_out]}


def reference_links(corpus: Corpus, split: str) -> list[tuple[Link, ...]]:
    """The links of a held-out split, between the whitespace-separated words of its raw text.

    The corpus does not store them: its pairs are drawn again, with the recorded seed.

    Args:
        corpus: A corpus of the toy source alone.
        split: ``validation`` or ``test``.

    Raises:
        UserError: The text is not the grammar's.
        DataError: The grammar of this version draws other pairs.
    """
    options, (source, *others) = corpus.manifest.options, corpus.manifest.sources
    if options["source"] != "toy" or others:
        raise UserError(
            f"--alignments: {corpus.path} is not of --source toy alone, whose grammar knows the right links: leave it "
            "out, or align the text by hand"
        )
    seed, validation, test = (int(str(options[name])) for name in ("seed", "valid_size", "test_size"))
    drawn = generate_pairs(validation + test, seed)
    pairs = drawn[:validation] if split == "validation" else drawn[validation:]
    stored = corpus.split(split)
    sides = [stored.src_texts(), stored.tgt_texts()]
    swapped = corpus.manifest.src_lang != "en"
    if source.revision != str(GRAMMAR_REVISION) or [pair[:2] for pair in pairs] != list(
        zip(*(sides[::-1] if swapped else sides), strict=True)
    ):
        raise DataError(f"{corpus.path} has other sentences than the grammar of this version draws: build it again")
    return [_swap(pair.links) if swapped else pair.links for pair in pairs]


def _swap(links: tuple[Link, ...]) -> tuple[Link, ...]:
    return tuple(sorted((tgt, src) for src, tgt in links))
