"""A look at some sentences of each side of a text: are they in the right languages, and has each a translation?

Scripts cost nothing. Languages of one script are told apart by fastText's small model, where its package is installed.
"""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from dstransformer.errors import DataError, UserError
from dstransformer.io.detection import load_detector
from dstransformer.io.languages import MULTIPLE, language, script_share

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
    own = {sample.code: sample.fits(sample.code) for sample in (src, tgt)}
    wrong = {code: share for code, share in own.items() if share is not None and share < _FEW}
    foreign = {sample.code: share for sample in (src, tgt) if (share := sample.foreign_lines()) > _PART}
    if not wrong:
        mixed = ", ".join(f"{share:.0%} of the lines that should be {code} are not" for code, share in foreign.items())
        return f"a side of {name} may be partly in another language: by their script {mixed}" if mixed else None
    shares = ", ".join(
        f"{share:.0%} of the letters that should be {code} are of its script" for code, share in wrong.items()
    )
    if (src.fits(tgt.code) or 0.0) > _MOST and (tgt.fits(src.code) or 0.0) > _MOST:
        return f"the sides of {name} may be swapped: {shares}"
    if len(wrong) == 2:
        raise DataError(f"the text of {name} fits neither language: {shares}")
    return f"a side of {name} may be in another language: {shares}"


def _judge_labels(name: str, src: Sample, tgt: Sample) -> str | None:
    wrong: dict[str, tuple[str, str]] = {}
    mixed: dict[str, tuple[str, str]] = {}
    for sample in (src, tgt):
        for labels, sides in zip(sample.labels(), (wrong, mixed), strict=False):
            (_, own), (best, share), *rest = [*labels.items(), ("", 0.0)]
            others = share + sum(more for _, more in rest if more > _NOISE)
            if (share > _MOST and own < _FEW) if sides is wrong else others > _PART:
                text = f"{own:.0%} of the lines that should be {sample.code} look like it, {share:.0%} like {best}"
                sides[sample.code] = (best, text)
    found = "; ".join(text for _, text in (wrong or mixed).values())
    if not wrong:
        return f"a side of {name} may be partly in another language: by fastText {found}" if mixed else None
    if [best for best, _ in wrong.values()] == [language(tgt.code).fasttext, language(src.code).fasttext]:
        return f"the sides of {name} may be swapped: by fastText {found}"
    return f"a side of {name} may be in another language: by fastText {found}"


def judge_empty(name: str, sources: Sequence[str] | None, references: Sequence[str]) -> str | None:
    """A warning of the held-out sentences of which one side is empty; without sources, of empty references.

    Raises:
        DataError: Every line of a side is empty.
    """
    sides = {"references": references} if sources is None else {"sources": sources, "references": references}
    empty = {side: [not line.strip() for line in lines] for side, lines in sides.items()}
    for side, lines in empty.items():
        if lines and all(lines):
            raise DataError(f"all {len(lines):,} {side} of {name} are empty: check which files were named")
    both = 0 if sources is None else sum(map(all, zip(*empty.values(), strict=True)))
    counts = {side: count for side, lines in empty.items() if (count := sum(lines) - both)}
    text = " and ".join(f"{count:,} of {len(references):,} {side}" for side, count in counts.items())
    return f"{text} of {name} are empty: scores count them as errors; leave these sentences out" if text else None
