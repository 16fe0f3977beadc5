"""The embedded corpus: English-German sentence pairs from a synchronous grammar.

One random plan (``plan``) is put into words by an English and a German linearisation, so both sides are grammatical by
construction and each English sentence has exactly one translation. Drawing is seeded and the same on every platform.
"""

from collections.abc import Callable

from data_prep.sources.toy.grammar import SentenceSampler, realise
from data_prep.sources.toy.phrases import Chooser
from dstransformer.errors import UserError

__all__ = ["generate_pairs", "toy_splits"]

_ENGLISH_WORDS = range(4, 26)  # lengths of sentences that are kept
_PATIENCE = 10_000  # draws in a row that bring nothing new before the grammar counts as exhausted

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
        UserError: if ``count`` is below 1, or many draws in a row bring nothing new.
    """
    if count < 1:
        raise UserError(f"the toy corpus needs at least 1 sentence pair, not {count}: ask for a positive count")
    pairs: dict[str, str] = {}
    misses = 0
    while len(pairs) < count:
        source, target = draw()
        misses = misses + 1 if source in pairs else 0
        if misses > _PATIENCE:
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
