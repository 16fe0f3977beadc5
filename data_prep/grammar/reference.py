"""Reference alignments of held-out text: those of the grammar, for text that it has drawn."""

from __future__ import annotations

from data_prep.grammar.grammar import GRAMMAR_REVISION, generate_aligned_pairs
from dstransformer.data import Corpus
from dstransformer.data.alignment import ReferenceAlignment
from dstransformer.errors import DataError, UserError


def reference_alignments(corpus: Corpus, split: str) -> list[ReferenceAlignment]:
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
    drawn = generate_aligned_pairs(validation + test, seed)
    pairs = drawn[:validation] if split == "validation" else drawn[validation:]
    stored = corpus.split(split)
    sides = [stored.src_texts(), stored.tgt_texts()]
    swapped = corpus.manifest.src_lang != "en"
    if source.revision != str(GRAMMAR_REVISION) or [pair[:2] for pair in pairs] != list(
        zip(*(sides[::-1] if swapped else sides), strict=True)
    ):
        raise DataError(f"{corpus.path} has other sentences than the grammar of this version draws: build it again")
    return [pair.alignment.swapped() if swapped else pair.alignment for pair in pairs]
