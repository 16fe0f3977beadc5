"""A look at some sentences of each side before a corpus is built: are they in the right languages?

Scripts cost nothing. Languages of one script are told apart by fastText's small model, where its package is installed.
"""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from data_prep.sources.opening import Part
from data_prep.stages.rules import script_share
from dstransformer.errors import DataError, UserError
from dstransformer.io.detection import load_detector
from dstransformer.io.languages import language

#: Pairs that are looked at, spread over the first table of a source, and how many lines and letters of a side must be
#: there to judge it.
_PAIRS = 1000
_MIN_LINES, _MIN_LETTERS = 30, 200

#: Bytes of a line that fastText can judge: 20 Latin letters, 7 Chinese characters.
_MIN_BYTES = 20

#: A side is taken for another language if less than this share fits its own, and more than that share the other.
_FEW, _MOST = 0.2, 0.5

#: Languages that fastText confuses.
_RELATED = (
    {"no", "nn", "da"}, {"hr", "bs", "sr", "sh"}, {"id", "ms"}, {"zh", "yue", "wuu"}, {"ar", "arz"}, {"cs", "sk"},
    {"gl", "pt"}, {"ca", "oc"}, {"af", "nl"}, {"de", "als", "bar", "nds"}, {"ru", "uk", "be"}, {"fa", "ckb", "mzn"},
)  # fmt: skip


class Sample(NamedTuple):
    """Some lines of a side and the code of the language that they should be in."""

    lines: Sequence[str]
    code: str

    def fits(self, code: str) -> float | None:
        """The share of the letters that are of a language's scripts; None if they are not known or too few."""
        scripts = language(code).scripts
        if scripts is None or sum(map(str.isalpha, "".join(self.lines))) < _MIN_LETTERS:
            return None
        return script_share("".join(self.lines), scripts)

    def labels(self) -> dict[str, float]:
        """The languages that fastText finds, with their shares of the lines, the most frequent first.

        Empty without its package, and if too few lines are long enough.
        """
        long = [line for line in self.lines if len(line.encode()) >= _MIN_BYTES]
        if len(long) < _MIN_LINES:
            return {}
        try:
            detector = load_detector()
        except UserError:
            return {}
        found = Counter(map(detector.label, long))
        return {name: count / len(long) for name, count in found.most_common()}


def look_at(part: Part) -> str | None:
    """Compare the text of a source with its languages.

    Returns:
        A warning with figures if the sides may be swapped or in other languages; None if nothing is suspicious.

    Raises:
        DataError: Neither side is in the script of its language.
    """
    codes = part.languages
    if part.options.source == "toy" or codes[0] == codes[1] or codes[1] == "tree":
        return None
    tables = part.source.splits["train"]()
    table = next(iter(tables), None)
    if table is None:
        return None
    rows = table.take(np.linspace(0, table.num_rows - 1, min(_PAIRS, table.num_rows)).astype(np.int64))
    src, tgt = (Sample(rows[side].to_pylist(), code) for side, code in zip(("src", "tgt"), codes, strict=True))
    return _judge_scripts(part.name, src, tgt) or _judge_languages(part.name, src, tgt)


def _judge_scripts(name: str, src: Sample, tgt: Sample) -> str | None:
    own = {sample.code: sample.fits(sample.code) for sample in (src, tgt)}
    wrong = {code: share for code, share in own.items() if share is not None and share < _FEW}
    if not wrong:
        return None
    shares = ", ".join(
        f"{share:.0%} of the letters that should be {code} are of its script" for code, share in wrong.items()
    )
    if (src.fits(tgt.code) or 0.0) > _MOST and (tgt.fits(src.code) or 0.0) > _MOST:
        return f"warning: the sides of {name} may be swapped: {shares}"
    if len(wrong) == 2:
        raise DataError(f"the text of {name} fits neither language: {shares}; correct --src-lang and --tgt-lang")
    return f"warning: a side of {name} may be in another language: {shares}"


def _judge_languages(name: str, src: Sample, tgt: Sample) -> str | None:
    wrong = {}
    for sample in (src, tgt):
        own, labels = language(sample.code).fasttext, sample.labels()
        best = next(iter(labels), own)
        related = next((group for group in _RELATED if own in group), {own})
        if own is not None and best not in related and labels[str(best)] > _MOST and labels.get(own, 0.0) < _FEW:
            wrong[sample.code] = (
                str(best),
                f"{labels.get(own, 0.0):.0%} of the lines that should be {sample.code} look "
                f"like it, {labels[str(best)]:.0%} like {best}",
            )
    if not wrong:
        return None
    found = "; ".join(text for _, text in wrong.values())
    if [best for best, _ in wrong.values()] == [language(tgt.code).fasttext, language(src.code).fasttext]:
        return f"warning: the sides of {name} may be swapped: by fastText {found}"
    return f"warning: a side of {name} may be in another language: by fastText {found}"
