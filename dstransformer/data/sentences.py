"""Texts of several sentences: divided, and their translations joined with the spaces and line ends of the text."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import chain

from dstransformer.io.languages import language
from dstransformer.io.requirements import check_installed

#: Text that no space follows in Chinese and Japanese: it ends with kana, an ideograph or their punctuation.
NO_SPACE_FOLLOWS = re.compile("[\u3000-\u30ff\u3400-\u9fff\uf900-\ufaff\uff00-\uffef][”’]*$")


def split_sentences(texts: Sequence[str], src_lang: str | None) -> tuple[list[str], list[int]]:
    """Divide texts into sentences, which have no line break and no spaces around them; a blank text has an empty one.

    Args:
        texts: The texts.
        src_lang: Code of their language, whose abbreviations and initials end no sentence; None takes the English ones.

    Returns:
        The sentences, and the index of the text of each.

    Raises:
        UserError: sentencex is not installed.
    """
    check_installed("sentencex")
    from sentencex import segment

    code = (language(src_lang or "en").tag or "en").partition("-")[0]
    divided: list[list[str]] = []
    for text in texts:
        sentences = []
        for line in text.splitlines():
            end = 0
            # It fails at spaces of several bytes: plain ones stand for them, so that positions are the same.
            for sentence in segment(code, re.sub(r"\s", " ", line)):
                begin, end = end, end + len(sentence)
                sentences.append(line[begin:end].strip())
        divided.append(list(filter(None, sentences)) or [""])
    return [*chain(*divided)], [index for index, sentences in enumerate(divided) for _ in sentences]


def with_spaces(text: str, sentences: Sequence[str], translations: Sequence[str]) -> list[str]:
    """The translations of the sentences of a text, each with what is before it, and what is after the last.

    What is between two sentences is as in the text, save that after Chinese and Japanese there is no space, and after
    other translations of them one.
    """
    chunks = []
    rest, before, done = text, "", ""
    for sentence, translation in zip(sentences, translations, strict=True):
        space, _, rest = rest.partition(sentence) if sentence else ("", "", rest)
        if done and (undivided := bool(NO_SPACE_FOLLOWS.search(done))) != bool(NO_SPACE_FOLLOWS.search(before)):
            space = space.removeprefix(" ") if undivided else space or " "
        chunks.append(space + translation)
        before, done = sentence, translation
    return [*chunks, rest]
