"""Several translation directions in one model, told apart by a tag at the start of the source sentence.

Johnson et al. (2017) introduced the tag; ``>>deu<<`` is OPUS-MT's way to write it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dstransformer.errors import UserError, shown
from dstransformer.io.languages import MULTIPLE, list_codes, matching_codes


@dataclass(frozen=True)
class Direction:
    """A direction that a model translates in.

    Attributes:
        src_lang: Code of the source language.
        tgt_lang: Code of the target language.
        tag: What its source sentences begin with; None for nothing.
    """

    src_lang: str
    tgt_lang: str
    tag: str | None

    @property
    def name(self) -> str:
        """The languages: ``en-de``."""
        return f"{self.src_lang}-{self.tgt_lang}"


def common_language(codes: Iterable[str]) -> str:
    """The code that a side has in all directions, or ``mul``."""
    distinct = set(codes)
    return distinct.pop() if len(distinct) == 1 else MULTIPLE


def choose_direction(directions: Sequence[Direction], to: str, option: str = "--to") -> Direction:
    """The first direction into a language, which is given by a code of any kind or by its tag.

    Of directions into a language with different tags, as of translated and of original text, one without tag is taken.

    Args:
        directions: Those of the model.
        to: The language, or the tag.
        option: What the user names it with, for errors.

    Raises:
        UserError: There is none, several languages are meant, or several tags lead into the language.
    """
    if by_tag := [direction for direction in directions if direction.tag == to]:
        return by_tag[0]
    codes = list(dict.fromkeys(direction.tgt_lang for direction in directions))
    languages = matching_codes(to, codes)
    if len(languages) != 1:
        known = ", ".join(dict.fromkeys(direction.tag for direction in directions if direction.tag))
        has = f"its tags are {known}" if known else "it has no tags"
        raise UserError(f"{option} {shown(to)}: the model translates into {list_codes(codes)}; {has}")
    into = [direction for direction in directions if direction.tgt_lang == languages[0]]
    tags = list(dict.fromkeys(direction.tag for direction in into if direction.tag))
    plain = [direction for direction in into if direction.tag is None]
    if len(tags) > 1 and not plain:
        raise UserError(
            f"{option} {shown(to)}: several tags lead into {languages[0]}: {', '.join(tags)}; name one with {option}"
        )
    return (plain or into)[0]


class Tags:
    """The tags of a model, and the one that sentences without any get."""

    def __init__(self, directions: Sequence[Direction], to: str | None = None, option: str = "--to") -> None:
        """Take the direction ``to``; None if the sentences begin with their tags.

        Arguments and errors are those of :func:`choose_direction`.
        """
        self._known = tuple(dict.fromkeys(direction.tag for direction in directions if direction.tag))
        self._are_needed = bool(directions) and all(direction.tag for direction in directions)
        self._chosen = choose_direction(directions, to, option) if to is not None else None
        self._option = option

    @property
    def target(self) -> str | None:
        """Code of the chosen target language."""
        return None if self._chosen is None else self._chosen.tgt_lang

    def join(self, sentences: Sequence[str], first: int) -> list[str]:
        """The sentences with their tags; for arguments and errors see :meth:`split`."""
        return [begin + text for begin, text in zip(*self.split(sentences, first), strict=True)]

    def split(self, sentences: Sequence[str], first: int) -> tuple[list[str], list[str]]:
        """Divide sentences into what they begin with, a tag and a space or nothing, and the text.

        Args:
            sentences: The sentences. One without text gets no tag.
            first: The number of the first one, for errors.

        Raises:
            UserError: A sentence begins with a tag that the model does not know, or with none although one is needed.
        """
        begins, texts = [], []
        for number, sentence in enumerate(sentences, first):
            word, _, rest = sentence.lstrip().partition(" ")
            if word in self._known:
                begins.append(f"{word} ")
                texts.append(rest)
                continue
            if word.startswith(">>") and word.endswith("<<"):
                raise UserError(
                    f"sentence {number}: the model has no tag {shown(word)}; it has {', '.join(self._known)}"
                )
            if sentence.strip() and self._chosen is None and self._are_needed:
                raise UserError(
                    f"sentence {number} begins with no tag, and the model translates into several languages: name one "
                    f"with {self._option}, or begin each sentence with one of {', '.join(self._known)}"
                )
            tag = self._chosen.tag if sentence.strip() and self._chosen else None
            begins.append(f"{tag} " if tag else "")
            texts.append(sentence)
        return begins, texts


def build_tags(
    directions: Sequence[Direction], src_lang: str | None, tgt_lang: str | None, to: str | None, option: str = "--to"
) -> Tags | None:
    """The tags of a model; None if it has one direction, which ``src_lang`` and ``tgt_lang`` tell if they are known.

    Other arguments, and errors, are those of :class:`Tags`.
    """
    if directions:
        return Tags(directions, to, option)
    if to is not None:
        choose_direction([Direction(src_lang, tgt_lang, None)] if src_lang and tgt_lang else [], to, option)
    return None
