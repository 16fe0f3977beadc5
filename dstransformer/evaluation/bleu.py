"""BLEU, chrF and TER by sacrebleu (Post, 2018) with their signatures, and BLEU as the paper reports it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER
from sacremoses import MosesTokenizer

from dstransformer.errors import DataError
from dstransformer.evaluation.result import Score

_COMPOUND = re.compile(r"(\S)-(\S)")

#: Typographic quotation marks and the ellipsis, in plain characters.
_PLAIN_MARKS = str.maketrans({**dict.fromkeys("„“”‟«»", '"'), **dict.fromkeys("‚‘’‛‹›", "'"), "…": "..."})


def score(translations: Sequence[str], references: Sequence[str]) -> tuple[Score, ...]:
    """Score detokenised text: cased BLEU with the 13a tokenizer (Papineni et al., 2002), and chrF2 (Popović, 2015).

    Raises:
        DataError: There are no sentences, or the numbers of translations and references differ.
    """
    _check_counts(translations, references)
    return (
        _corpus_score("bleu", BLEU(tokenize="13a"), translations, references),
        _corpus_score("chrf", CHRF(), translations, references),
    )


def ter(translations: Sequence[str], references: Sequence[str], *, asian: bool = False) -> Score:
    """Translation edit rate (Snover et al., 2006) in percent: edits per word of the reference; lower is better.

    It takes far longer than BLEU, so training does without it.

    Args:
        translations: Detokenised translations.
        references: Detokenised references.
        asian: Whether each Chinese character is a word, as sacrebleu's ``asian_support`` has it; without, a sentence in
            Chinese or Japanese is hardly divided. That acts on normalised text only, so punctuation is divided too.

    Raises:
        DataError: There are no sentences, or the numbers of translations and references differ.
    """
    _check_counts(translations, references)
    return _corpus_score("ter", TER(normalized=asian, asian_support=asian), translations, references)


def compound_split_bleu(translations: Sequence[str], references: Sequence[str], language: str) -> Score:
    """BLEU as computed for the paper's tables by the authors' ``get_ende_bleu.sh``, in four steps on both sides.

    1. Plain quotation marks: „ “ ” ‟ « » become ``"``; ‚ ‘ ’ ‛ ‹ › become ``'``; … becomes ``...``. The script replaces
       “ ” ’ … in translations (Moses' ``replace-unicode-punctuation.perl``), and the authors' reference has ``"``
       where newstest2014 has „ and “ (tensor2tensor, issue 317). Here all of them are replaced, on both sides.
    2. Tokens by Moses rules.
    3. Compounds split at hyphens: ``rich-text`` becomes ``rich ##AT##-##AT## text``.
    4. Cased BLEU without smoothing.

    The score is higher than sacrebleu's default and comparable only to scores computed in the same way: issue 317 has
    29.02 for a model that sacrebleu gives 27.52. Full-width punctuation, which that Moses script replaces too, stays.

    Args:
        translations: Detokenised translations.
        references: Detokenised references.
        language: Code of the target language, which selects the tokenizer's list of abbreviations: ``de``, ``fr``, …

    Raises:
        DataError: There are no sentences, or the numbers of translations and references differ.
    """
    _check_counts(translations, references)
    moses = MosesTokenizer(lang=language)
    split = [[_split_compounds(moses, text) for text in side] for side in (translations, references)]
    scored = _corpus_score("bleu_compound_split", BLEU(tokenize="none", smooth_method="none", force=True), *split)
    return replace(scored, signature=f"{scored.signature}|moses:{language}|quotes:plain|compounds:split")


def _split_compounds(moses: MosesTokenizer, text: str) -> str:
    return _COMPOUND.sub(r"\1 ##AT##-##AT## \2", moses.tokenize(text.translate(_PLAIN_MARKS), return_str=True))


def _corpus_score(
    name: str, metric: BLEU | CHRF | TER, translations: Sequence[str], references: Sequence[str]
) -> Score:
    result = metric.corpus_score(translations, [references])
    return Score(name, float(result.score), str(metric.get_signature()))


def _check_counts(translations: Sequence[str], references: Sequence[str]) -> None:
    if len(translations) != len(references):
        raise DataError(
            f"{len(translations)} translations but {len(references)} references: "
            "line n of one must belong to line n of the other"
        )
    if not translations:
        raise DataError("there are no sentences to score")
