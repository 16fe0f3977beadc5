"""Draws the pairs of the embedded corpus, and opens it as a source."""

from collections.abc import Callable, Iterator
from functools import cache, partial

import pyarrow as pa

from data_prep.recipe.options import ToyOptions
from data_prep.sources.source import Source
from data_prep.sources.toy.grammar import SentenceSampler, realise
from data_prep.sources.toy.phrases import Chooser
from data_prep.store.pairs import TEXT
from dstransformer.corpus import SourceInfo
from dstransformer.errors import UserError

#: Raise it when the sentences change; a test compares them with those of this revision.
GRAMMAR_REVISION = 1

_ENGLISH_WORDS = range(4, 26)  # lengths of sentences that are kept
_MAX_MISSES = 10_000  # consecutive draws without a new sentence before the grammar counts as exhausted

Pair = tuple[str, str]


def generate_pairs(count: int, seed: int) -> list[Pair]:
    """Draw ``count`` (English, German) pairs, no two with the same English side, of 4 to 25 English words.

    A smaller count with the same seed gives a prefix of the same list.

    Raises:
        UserError: if ``count`` is below 1 or above what the grammar yields in reasonable time.
    """
    sampler = SentenceSampler(Chooser(seed))

    def draw() -> Pair:
        while True:
            pair = realise(sampler.sentence())
            if pair[0].count(" ") + 1 in _ENGLISH_WORDS:
                return pair

    return draw_distinct(draw, count)


def draw_distinct(draw: Callable[[], Pair], count: int) -> list[Pair]:
    """Draw until there are ``count`` pairs with different sources.

    Raises:
        UserError: if ``count`` is below 1, or many consecutive draws give no new sentence.
    """
    if count < 1:
        raise UserError(f"the toy corpus needs at least 1 sentence pair, not {count}: ask for a positive count")
    pairs: dict[str, str] = {}
    misses = 0
    while len(pairs) < count:
        source, target = draw()
        misses = misses + 1 if source in pairs else 0
        if misses > _MAX_MISSES:
            raise UserError(
                f"the toy grammar yields no more than about {len(pairs)} distinct sentences, not {count}: ask for fewer"
            )
        pairs.setdefault(source, target)
    return list(pairs.items())


def toy_splits(count: int, seed: int, validation: int, test: int) -> dict[str, list[Pair]]:
    """Draw ``count`` training pairs and the held-out sets, which share no source sentence with each other.

    The held-out sets are drawn first: for one seed they do not depend on the size of the training set.

    Raises:
        UserError: if a size is below 1 or the total cannot be drawn.
    """
    for name, size in (("training", count), ("validation", validation), ("test", test)):
        if size < 1:
            raise UserError(f"the toy {name} set needs at least 1 sentence pair, not {size}: ask for a positive size")
    pairs = generate_pairs(count + validation + test, seed)
    held_out = validation + test
    return {"train": pairs[held_out:], "validation": pairs[:validation], "test": pairs[validation:held_out]}


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
    def generate() -> dict[str, list[tuple[str, str]]]:
        return toy_splits(options.pairs, options.seed, options.valid_size, options.test_size)

    def stream(split: str) -> Iterator[pa.Table]:
        english, german = zip(*generate()[split], strict=True)
        src, tgt = (english, german) if options.src_lang == "en" else (german, english)
        yield pa.table([pa.array(src, pa.string()), pa.array(tgt, pa.string())], schema=TEXT)

    return Source(
        info=SourceInfo(name="toy", revision=str(GRAMMAR_REVISION), inputs=()),
        splits={name: partial(stream, name) for name in ("train", "validation", "test")},
    )
