"""BLEU and chrF by sacrebleu (Post, 2018), each with its signature, and the BLEU that the paper reports."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacremoses import MosesTokenizer

from dstransformer.errors import DataError

_COMPOUND = re.compile(r"(\S)-(\S)")


@dataclass(frozen=True)
class Score:
    """A corpus-level score, from 0 to 100.

    Attributes:
        name: For a table: ``BLEU``, ``chrF2``, …
        value: Higher is better.
        signature: How it was computed: two scores compare where their signatures agree.
    """

    name: str
    value: float
    signature: str


@dataclass(frozen=True)
class Scores:
    """What every evaluation reports."""

    bleu: Score
    chrf: Score


def score(translations: Sequence[str], references: Sequence[str]) -> Scores:
    """Score detokenised text: cased BLEU with the 13a tokenizer (Papineni et al., 2002), and chrF2 (Popović, 2015).

    Raises:
        DataError: No sentences, or not as many translations as references.
    """
    _check_counts(translations, references)
    return Scores(
        _corpus_score(BLEU(tokenize="13a"), translations, references), _corpus_score(CHRF(), translations, references)
    )


def compound_split_bleu(translations: Sequence[str], references: Sequence[str], language: str) -> Score:
    """BLEU as the paper computed it for its tables, by the authors' ``get_ende_bleu.sh``.

    Both sides are tokenized by the rules of Moses, and compounds are split at their hyphens, ``rich-text`` becoming
    ``rich ##AT##-##AT## text``; then plain cased BLEU without smoothing. It comes out higher than sacrebleu's own and
    compares with nothing but scores of the same making.

    Args:
        translations: Detokenised text.
        references: Detokenised text.
        language: Code of the target language, for the tokenizer's abbreviations: ``de``, ``fr``, …

    Raises:
        DataError: No sentences, or not as many translations as references.
    """
    _check_counts(translations, references)
    moses = MosesTokenizer(lang=language)
    split = [[_split_compounds(moses, text) for text in side] for side in (translations, references)]
    scored = _corpus_score(BLEU(tokenize="none", smooth_method="none", force=True), *split)
    return Score("BLEU (compound-split)", scored.value, f"{scored.signature}|moses:{language}|compounds:split")


def _split_compounds(moses: MosesTokenizer, text: str) -> str:
    return _COMPOUND.sub(r"\1 ##AT##-##AT## \2", moses.tokenize(text, return_str=True))


def _corpus_score(metric: BLEU | CHRF, translations: Sequence[str], references: Sequence[str]) -> Score:
    result = metric.corpus_score(translations, [references])
    return Score(result.name, float(result.score), str(metric.get_signature()))


def _check_counts(translations: Sequence[str], references: Sequence[str]) -> None:
    if len(translations) != len(references):
        raise DataError(
            f"{len(translations)} translations but {len(references)} references: "
            "line n of one must belong to line n of the other"
        )
    if not translations:
        raise DataError("there are no sentences to score")
