"""Translation of sentences with inline tags."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dstransformer.decoding import Output, Sampling, Translator
from dstransformer.decoding.translator import check_strings
from dstransformer.extras.markup.markup import parse_markup
from dstransformer.extras.markup.tag_placement import Translated, place_in_sentences, place_tags, with_breaks
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
        if not split:
            outputs = super().search(
                [one.text for one in marked],
                n_best=n_best,
                prefixes=prefixes,
                sampling=sampling,
                alignments=True,
                progress=progress,
                first=first,
            )
            return [
                [one._replace(text=place_tags(source, one.text, one.alignment or ())) for one in found]
                for source, found in zip(marked, outputs, strict=True)
            ]
        found = self._search_parts(
            [with_breaks(one) for one in marked], n_best, prefixes, sampling, True, True, progress, first
        )
        divided: list[list[Translated]] = [[] for _ in marked]
        for part, (best, *_) in zip(found.parts, found.outputs, strict=True):
            links = [(src - part.first_word, tgt) for src, tgt in best.alignment or ()]
            divided[part.owner].append(Translated(part.text, best.text, links))
        joined = [
            place_in_sentences(source, text, parts)
            for source, text, parts in zip(marked, found.texts, divided, strict=True)
        ]
        # A line may come with its end, which is a space in the text.
        ends = [text[len(text.rstrip("\r\n")) :] for text in texts]
        joined = [text.removesuffix(" ") + end if end else text for text, end in zip(joined, ends, strict=True)]
        outputs = found.join(keep_spaces=True)
        return [[one._replace(text=text)] for (one,), text in zip(outputs, joined, strict=True)]
