"""Phrases in both languages at once, and the order of words. Words that mean the same thing are linked."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from data_prep.grammar.german import CONTRACTIONS
from data_prep.grammar.lexicon import AUXILIARIES, DO, Verb
from dstransformer.data.alignment import Link

_FUSED = CONTRACTIONS | {("can", "not"): "cannot"}

#: Numbers the meanings.
_meanings = itertools.count()


class Pair(NamedTuple):
    """An English sentence, its German translation, and the links between their words, which spaces separate."""

    english: str
    german: str
    links: tuple[Link, ...]


class Word(NamedTuple):
    """A word and what it means: one thing, nothing (a comma), or several if it fuses words, as *im* does."""

    text: str
    meanings: tuple[int, ...]


class Phrase(NamedTuple):
    """The words of a phrase in both languages, each in its own order."""

    english: tuple[Word, ...] = ()
    german: tuple[Word, ...] = ()


NOTHING = Phrase()
COMMA = Phrase((Word(",", ()),), (Word(",", ()),))


def say(english: str, german: str) -> Phrase:
    """Words that mean one thing together: each is linked to all of the other side."""
    meaning = (next(_meanings),)
    return Phrase(
        tuple([Word(text, meaning) for text in english.split()]),
        tuple([Word(text, meaning) for text in german.split()]),
    )


def join(*phrases: Phrase) -> Phrase:
    """Phrases in the same order in both languages."""
    return arrange(phrases, phrases)


def arrange(english: Iterable[Phrase], german: Iterable[Phrase]) -> Phrase:
    """The same phrases in the order of each language."""
    return Phrase(
        tuple([word for phrase in english for word in phrase.english]),
        tuple([word for phrase in german for word in phrase.german]),
    )


def write(sentence: Phrase, mark: str) -> Pair:
    """The text of a sentence that ends with ``mark``, and its links."""
    english, german = _spell(sentence.english, mark), _spell(sentence.german, mark)
    places: dict[int, list[int]] = defaultdict(list)
    for place, word in enumerate(german):
        for meaning in word.meanings:
            places[meaning].append(place)
    links = {(src, tgt) for src, word in enumerate(english) for meaning in word.meanings for tgt in places[meaning]}
    texts = [" ".join([word.text for word in words]) for words in (english, german)]
    return Pair(texts[0], texts[1], tuple(sorted(links)))


def _spell(words: Iterable[Word], mark: str) -> list[Word]:
    """Fuse words, as *in dem*; write "an" for "a"; hang commas and the mark on words; begin with a capital."""
    spelled = [Word("", ())]
    for word in words:
        text, meanings = spelled[-1]
        if word.text == ",":
            spelled[-1] = Word(text.rstrip(",") + ",", meanings)
        elif fused := _FUSED.get((text, word.text)):
            spelled[-1] = Word(fused, meanings + word.meanings)
        else:
            if text == "a" and word.text[0] in "aeiou":
                spelled[-1] = Word("an", meanings)
            spelled.append(word)
    _, first, *_ = spelled  # before it at most a comma
    spelled[1] = Word(first.text[0].upper() + first.text[1:], first.meanings)
    text, meanings = spelled[-1]
    spelled[-1] = Word(text.rstrip(",") + mark, meanings)
    return spelled[1:]


def conjugate(verb: Verb, tense: str, agreement: int, *, support: bool = False) -> tuple[Phrase, Phrase]:
    """The finite part of a verb, with person and tense, and the rest: an infinitive, a participle, a particle.

    ``support`` is for negations and questions, where English says "does read" if there is no other auxiliary.
    """
    base, particle, infinitive = verb.english[0], verb.particle, verb.german[0]
    if tense in DO:
        english, german = (forms[agreement] for forms in verb.simple(tense))
        whole = say(f"{DO[tense][agreement]} {base}" if support else english, f"{german} {particle}")
        finite = 1 if support else len(whole.english)
        return Phrase(whole.english[:finite], whole.german[:1]), Phrase(whole.english[finite:], whole.german[1:])
    auxiliary = AUXILIARIES["ist" if tense == "perfect" and verb.german[3] == "ist" else tense]
    rest = say(verb.english[3], verb.german[4]) if tense == "perfect" else say(base, particle + infinitive)
    return say(auxiliary.english[agreement], auxiliary.german[agreement]), rest


@dataclass(frozen=True)
class Clause:
    """The parts of a clause, which the functions below put into order."""

    subject: Phrase
    finite: Phrase
    rest: Phrase = NOTHING  # of the verb
    negation: Phrase = NOTHING
    pronouns: Phrase = NOTHING  # objects
    objects: Phrase = NOTHING  # that are no pronouns
    complement: Phrase = NOTHING  # "for Anna", "in the garden", "very old"
    time: Phrase = NOTHING

    @property
    def english(self) -> tuple[Phrase, ...]:
        """What English has behind subject and finite verb."""
        return self.negation, self.rest, self.pronouns, self.objects, self.complement, self.time

    @property
    def middle(self) -> tuple[Phrase, ...]:
        """What German has between the two parts of the verb, beside the subject."""
        return self.pronouns, self.time, self.objects, self.negation, self.complement


def statement(clause: Clause, front: Phrase = NOTHING) -> Phrase:
    """A main clause: the German finite verb is second, so the subject gives way to a front; the rest of it is last."""
    subject, finite = clause.subject, clause.finite
    start = (subject, finite) if front is NOTHING else (front, finite, subject)
    return arrange([front, subject, finite, *clause.english], [*start, *clause.middle, clause.rest])


def question(clause: Clause) -> Phrase:
    """A question: the finite verb is first in both languages."""
    start = clause.finite, clause.subject
    return arrange([*start, *clause.english], [*start, *clause.middle, clause.rest])


def subordinate(introduction: Phrase, clause: Clause) -> Phrase:
    """A subordinate clause between commas: the German verb is last, its finite part at the very end."""
    subject, finite = clause.subject, clause.finite
    end = clause.rest.german + finite.german
    if end[0].meanings == end[-1].meanings:  # one verb: "ruft ... an" becomes "anruft"
        end = (Word("".join(word.text for word in end), end[0].meanings),)
    return arrange(
        [introduction, subject, finite, *clause.english],
        [COMMA, introduction, subject, *clause.middle, Phrase(german=end), COMMA],
    )
