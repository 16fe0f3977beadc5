"""Translation of sentences with inline tags."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dstransformer.decoding import Output, Sampling, Translator
from dstransformer.decoding.translator import check_strings
from dstransformer.extras.markup.markup import parse_markup
from dstransformer.extras.markup.tag_placement import place_tags
from dstransformer.io.progress import Advance


class MarkupTranslator(Translator):
    """Translates sentences without their tags, and puts the tags into the translations."""

    def describe(self) -> dict[str, Any]:
        """See :meth:`Translator.describe`."""
        return super().describe() | {"markup": True}

    def search(
        self,
        sentences: Sequence[str],
        *,
        n_best: int = 1,
        prefixes: Sequence[str] | None = None,
        sampling: Sampling | None = None,
        alignments: bool = True,
        split: bool = False,
        progress: Advance | None = None,
        first: int = 1,
    ) -> list[list[Output]]:
        """See :meth:`Translator.search`. Alignments, which count the words without tags, are always found.

        In the texts of the outputs ``&``, ``<`` and ``>`` are entities.

        Raises:
            DataError: As there; or the tags of a sentence are not well-formed.
        """
        del alignments
        texts = check_strings("sentences", sentences)
        marked = [parse_markup(text, f"sentence {number}") for number, text in enumerate(texts, first)]
        outputs = super().search(
            [one.text for one in marked],
            n_best=n_best,
            prefixes=prefixes,
            sampling=sampling,
            alignments=True,
            split=split,
            progress=progress,
            first=first,
        )
        return [
            [one._replace(text=place_tags(source, one.text, one.alignment or ())) for one in found]
            for source, found in zip(marked, outputs, strict=True)
        ]
