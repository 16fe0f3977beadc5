"""``dst-prep report``: what a corpus holds and what cleaning dropped, as an HTML file that needs no network."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from jinja2 import Environment, PackageLoader, StrictUndefined

from data_prep.stages.text import Counts
from data_prep.store.pairs import shortened
from dstransformer.data import Corpus, Manifest, Split, Tokenizer
from dstransformer.io.languages import MULTIPLE

#: Maximum training pairs whose pieces, and whose words, are counted.
_MAX_COUNTED_PAIRS = 200_000
_MAX_READ_PAIRS = 10_000

#: Maximum held-out pairs that are shown, and maximum characters and pieces of a side.
_MAX_SAMPLES = 8
_MAX_SAMPLE_LENGTH = 400

#: Width and height of a histogram, in the units of its SVG, and its number of bars.
_WIDTH, _HEIGHT, _BARS = 640, 180, 50


def render_report(corpus: Corpus, name: str) -> str:
    """The page as HTML.

    Args:
        corpus: The corpus.
        name: Its name on the page.
    """
    manifest, train = corpus.manifest, corpus.split("train")
    languages = _side_names(manifest)
    environment = Environment(
        loader=PackageLoader("data_prep.cli"), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    return environment.get_template("report.html").render(
        name=name,
        manifest=manifest,
        languages=languages,
        cleaned=_words_before_and_after(manifest),
        histograms=[
            _histogram(f"{language}, in tokens", "tokens", np.bincount(lengths))
            for language, lengths in zip(languages, (train.src_lengths, train.tgt_lengths), strict=True)
        ],
        size=(_WIDTH, _HEIGHT),
        words=None if manifest.trees else _words(train, corpus.tokenizer, languages),
        pieces=_pieces(train, corpus.tokenizer, languages),
        samples=_samples(corpus),
        longest_drop=max([1, *manifest.cleaning.dropped.values()]),
    )


def _side_names(manifest: Manifest) -> tuple[str, str]:
    """The languages of source and target, or the names of the sides if one has several languages."""
    names = manifest.src_lang, manifest.tgt_lang
    return ("source", "target") if MULTIPLE in names else names


def _words_before_and_after(manifest: Manifest) -> list[dict[str, Any]]:
    """The words of the sentences that cleaning read, and what it kept of them; nothing for trees."""
    before, after = manifest.cleaning.before, manifest.cleaning.after
    if before is None or after is None or manifest.trees:
        return []
    src, tgt = _side_names(manifest)
    sides = ((src, before.src, after.src), (tgt, before.tgt, after.tgt))
    return [_histogram(f"{name}, in words", "words", np.array(old), np.array(new)) for name, old, new in sides]


def _histogram(name: str, unit: str, lengths: Counts, kept: Counts | None = None) -> dict[str, Any]:
    """Draw the numbers of sentences of each length, and how many of them were kept if not all are.

    Returns:
        The name, the width of a bar, the bars with their place and heights in the SVG, the last for all longer
        sentences, and the places and labels of the ticks below them.
    """
    shown = lengths if kept is None else kept
    longest = max(int(np.searchsorted(np.cumsum(shown), 0.995 * shown.sum())), 1)
    step = -(-longest // (_BARS - 1))
    bar_of = np.minimum(np.arange(len(lengths)) // step, _BARS - 1)
    counts = np.bincount(bar_of, weights=lengths, minlength=_BARS).astype(np.int64)
    left = counts if kept is None else np.bincount(bar_of[: len(kept)], weights=kept, minlength=_BARS).astype(np.int64)
    width, scale = _WIDTH / _BARS, _HEIGHT / max(int(counts.max()), 1)
    bars = []
    for number, (count, stays) in enumerate(zip(counts.tolist(), left.tolist(), strict=True)):
        first, last = number * step, (number + 1) * step - 1
        reach = f"{first} and more" if number == _BARS - 1 else f"{first}" if first == last else f"{first} to {last}"
        said = f"{count:,} sentences" if kept is None else f"{count:,} sentences before cleaning, {stays:,} after"
        heights = {"height": stays * scale, "dropped": (count - stays) * scale}
        bars.append({"x": number * width, **heights, "title": f"{reach} {unit}: {said}"})
    ticks = [(number * width, f"{number * step}") for number in range(0, _BARS, 10)]
    return {"name": name, "bars": bars, "width": width, "ticks": ticks}


def _rows(split: Split, max_rows: int) -> npt.NDArray[np.int64]:
    """Pairs spread evenly over a split, at most ``max_rows``."""
    return np.unique(np.linspace(0, len(split) - 1, min(max_rows, len(split))).astype(np.int64))


def _words(train: Split, tokenizer: Tokenizer, languages: tuple[str, str]) -> list[dict[str, Any]]:
    """Tokens per word of both sides, from a part of the training text."""
    src, src_lengths, tgt, tgt_lengths = train.gather(_rows(train, _MAX_READ_PAIRS))
    rows = []
    sides = (languages[0], tokenizer.src, src, src_lengths), (languages[1], tokenizer, tgt, tgt_lengths)
    for language, side, ids, lengths in sides:
        texts = side.decode([row.tolist() for row in np.split(ids, np.cumsum(lengths)[:-1])])
        words = sum(len(text.split()) for text in texts)
        rows.append({"language": language, "words": words, "tokens": len(ids), "fertility": len(ids) / max(words, 1)})
    return rows


def _pieces(train: Split, tokenizer: Tokenizer, languages: tuple[str, str]) -> list[dict[str, Any]]:
    """The share of each vocabulary that a part of the training text uses."""
    src, _, tgt, _ = train.gather(rows := _rows(train, _MAX_COUNTED_PAIRS))
    if tokenizer.is_joint:
        return [_usage("", tokenizer, np.concatenate([src, tgt]), len(rows))]
    sides = zip(languages, (tokenizer.src, tokenizer), (src, tgt), strict=True)
    return [_usage(f"{language}: ", side, ids, len(rows)) for language, side, ids in sides]


def _usage(name: str, tokenizer: Tokenizer, ids: npt.NDArray[np.int32], pairs: int) -> dict[str, Any]:
    counts = np.bincount(ids, minlength=tokenizer.vocab_size)
    order = np.argsort(-counts, kind="stable")
    covered = np.cumsum(counts[order]) / max(int(counts.sum()), 1)
    return {
        "name": name,
        "pairs": pairs,
        "used": int((counts > 0).sum()),
        "rare": int(((counts > 0) & (counts < 10)).sum()),
        "size": tokenizer.vocab_size,
        "covering": {share: int(np.searchsorted(covered, share)) + 1 for share in (0.5, 0.9, 0.99)},
        "frequent": [
            (tokenizer.pieces([token])[0], int(counts[token])) for token in order[:24].tolist() if counts[token]
        ],
    }


def _samples(corpus: Corpus) -> list[dict[str, Any]]:
    """Held-out pairs with their pieces."""
    split = corpus.split("validation" if "validation" in corpus.splits else corpus.splits[-1])
    if not split.info.has_text:
        return []
    rows = _rows(split, _MAX_SAMPLES)
    src, src_lengths, tgt, tgt_lengths = split.gather(rows)
    texts = split.src_texts(), split.tgt_texts()
    ids = [np.split(side, np.cumsum(lengths)[:-1]) for side, lengths in ((src, src_lengths), (tgt, tgt_lengths))]
    samples = []
    for number, row in enumerate(rows.tolist()):
        sides = []
        for side, tokens, tokenizer in zip(texts, ids, (corpus.tokenizer.src, corpus.tokenizer), strict=True):
            pieces = tokenizer.pieces(tokens[number][:_MAX_SAMPLE_LENGTH].tolist())
            more = ["…"] if len(tokens[number]) > _MAX_SAMPLE_LENGTH else []
            sides.append((shortened(side[row], _MAX_SAMPLE_LENGTH), [*pieces, *more]))
        samples.append({"sides": sides})
    return samples
