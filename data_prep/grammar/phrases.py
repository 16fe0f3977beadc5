"""Random noun phrases and adverbials."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from random import Random
from typing import TypeVar

from data_prep.grammar import english, german, lexicon
from data_prep.grammar.features import Gender, Number, Sort
from data_prep.grammar.lexicon import Adjective, Adverbial, Determiner, Noun, Place, Relation
from data_prep.grammar.plan import Common, Coordination, Name, NounPhrase, Prepositional, Pronoun

T = TypeVar("T")

_SINGULAR_DETERMINERS = (("the", 0.46), ("a", 0.24), ("owned", 0.2), ("this", 0.07), ("every", 0.03))
_PLURAL_DETERMINERS = (
    *(("the", 0.3), ("bare", 0.16), ("owned", 0.14), ("this", 0.07), ("numeral", 0.18), ("many", 0.06)),
    *(("some", 0.05), ("all", 0.04)),
)
_MASS_DETERMINERS = (("bare", 0.65), ("the", 0.25), ("owned", 0.1))
_KNOWN_DETERMINERS = (("the", 0.66), ("owned", 0.25), ("this", 0.09))
_DETERMINERS = {
    "the": lexicon.THE,
    "a": lexicon.A,
    "bare": lexicon.BARE,
    "this": lexicon.THIS,
    "every": lexicon.EVERY,
    "many": lexicon.MANY,
    "some": lexicon.SOME,
    "all": lexicon.ALL,
}
_PERSONAL_PRONOUNS = (
    Pronoun(1, Number.SINGULAR),
    Pronoun(1, Number.PLURAL),
    Pronoun(2, Number.PLURAL),
    Pronoun(3, Number.SINGULAR, Gender.MASCULINE),
    Pronoun(3, Number.SINGULAR, Gender.FEMININE),
    Pronoun(3, Number.PLURAL),
)


class Chooser:
    """Random choices from ``Random.random`` alone, whose stream is the same in every version of Python."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed).random

    def chance(self, probability: float) -> bool:
        """True with this probability."""
        return self._random() < probability

    def between(self, low: int, high: int) -> int:
        """An integer from ``low`` to ``high``, both included."""
        return low + int(self._random() * (high - low + 1))

    def pick(self, options: Sequence[T]) -> T:
        """One of the options, all equally likely."""
        return options[int(self._random() * len(options))]

    def weighted(self, options: Sequence[tuple[T, float]]) -> T:
        """One of the options, in proportion to its weight."""
        rest = self._random() * sum(weight for _, weight in options)
        for option, weight in options:
            rest -= weight
            if rest < 0:
                return option
        return options[-1][0]


@cache
def nouns_of(sorts: Sort) -> tuple[Noun, ...]:
    """The nouns of any of these sorts."""
    return tuple(noun for noun in lexicon.NOUNS if noun.sorts & sorts)


@cache
def adjectives_for(noun: Noun) -> tuple[Adjective, ...]:
    """The adjectives that make sense with a noun, without colours and echoes of the noun (*der junge Junge*)."""
    name = noun.german.singular.lower()
    return tuple(
        a
        for a in lexicon.ADJECTIVES
        if a.sorts & noun.sorts and not a.colour and a.stem not in name and name not in a.stem
    )


@cache
def colours_for(noun: Noun) -> tuple[Adjective, ...]:
    """The colours that a noun can have."""
    return tuple(a for a in lexicon.ADJECTIVES if a.sorts & noun.sorts and a.colour)


@dataclass
class PhraseSampler:
    """Draws phrases for one sentence at a time; no noun or name occurs twice in a sentence."""

    choose: Chooser
    used: set[Noun | str] = field(default_factory=set)

    def noun(self, sorts: Sort) -> Noun:
        """A noun of any of these sorts that the sentence does not hold yet, if there is one."""
        candidates = nouns_of(sorts)
        noun = self.choose.pick(candidates)
        if noun in self.used:
            noun = self.choose.pick([n for n in candidates if n not in self.used] or candidates)
        self.used.add(noun)
        return noun

    def determiner(self, noun: Noun, number: Number, *, known: bool) -> Determiner:
        """A determiner that fits the noun; a definite one if the phrase has to be ``known``."""
        options: Sequence[tuple[str, float]]
        if known:
            options = _KNOWN_DETERMINERS
        elif noun.mass:
            options = _MASS_DETERMINERS
        else:
            options = _SINGULAR_DETERMINERS if number is Number.SINGULAR else _PLURAL_DETERMINERS
        kind = self.choose.weighted(options)
        if kind == "owned":
            if not noun.sorts & Sort.OWNED:
                return lexicon.THE
            names = self.choose.chance(0.2)
            return self.choose.pick(lexicon.NAMES_GENITIVES if names else lexicon.POSSESSIVES)
        if kind == "numeral":
            small = self.choose.chance(0.4)
            return lexicon.numeral(self.choose.between(2, 12) if small else self.choose.between(13, 99))
        return _DETERMINERS[kind]

    def adjectives(self, noun: Noun, probability: float = 0.33) -> tuple[Adjective, ...]:
        """None, one or two adjectives; a colour comes last."""
        chosen: tuple[Adjective, ...] = ()
        if adjectives_for(noun) and self.choose.chance(probability):
            chosen = (self.choose.pick(adjectives_for(noun)),)
        if colours_for(noun) and self.choose.chance(probability * 0.4):
            chosen = (*chosen, self.choose.pick(colours_for(noun)))
        return chosen

    def common(self, sorts: Sort, *, known: bool = False, plural: float = 0.3, owner: bool = True) -> Common:
        """A noun phrase with a common noun as its head."""
        noun = self.noun(sorts)
        number = Number.PLURAL if not noun.mass and self.choose.chance(plural) else Number.SINGULAR
        determiner = self.determiner(noun, number, known=known)
        phrase_owner = None
        if owner and determiner is lexicon.THE and noun.sorts & Sort.OWNED and self.choose.chance(0.14):
            phrase_owner = self.common(Sort.PERSON, known=True, plural=0.2, owner=False)
            if phrase_owner.determiner in lexicon.NAMES_GENITIVES:
                phrase_owner = replace(phrase_owner, determiner=lexicon.THE)
        return Common(noun, determiner, number, self.adjectives(noun), phrase_owner)

    def name(self) -> Name:
        """A person by name."""
        candidates = [name for name in lexicon.NAMES if name[0] not in self.used]
        text, gender = self.choose.pick(candidates or lexicon.NAMES)
        self.used.add(text)
        return Name(text, gender)

    def two_persons(self) -> Coordination:
        """Two different persons."""
        left = self.name() if self.choose.chance(0.4) else self.common(Sort.PERSON, known=True, plural=0, owner=False)
        return Coordination(left, self.common(Sort.PERSON, known=True, plural=0, owner=False))

    def personal_pronoun(self, *, not_person: int = 0) -> Pronoun:
        """A pronoun for persons; 1 or 2 as ``not_person`` keeps "I see me" out."""
        pronoun = self.choose.pick(_PERSONAL_PRONOUNS)
        while pronoun.person == not_person and not_person != 3:
            pronoun = self.choose.pick(_PERSONAL_PRONOUNS)
        return pronoun

    def agent(self, sorts: Sort, *, known: bool) -> Pronoun | Name | Common | Coordination:
        """A subject of any of these sorts."""
        if sorts & Sort.PERSON:
            kind = self.choose.weighted((("common", 0.56), ("pronoun", 0.28), ("name", 0.12), ("two", 0.04)))
            if kind == "pronoun":
                return self.personal_pronoun()
            if kind == "name":
                return self.name()
            if kind == "two":
                return self.two_persons()
            if sorts is not Sort.PERSON and self.choose.chance(0.75):
                sorts = Sort.PERSON
        return self.common(sorts, known=known, plural=0.27)

    def perhaps_nobody(self, subject: NounPhrase) -> NounPhrase:
        """Now and then, "no" in the place of a subject's determiner."""
        if isinstance(subject, Common) and not subject.owner and not subject.noun.mass and self.choose.chance(0.04):
            return replace(subject, determiner=lexicon.NO)
        return subject

    def static_place(self) -> Prepositional | Adverbial:
        """Where something happens."""
        kind = self.choose.weighted((("place", 0.75), ("city", 0.12), ("relation", 0.13)))
        if kind == "city":
            return self.choose.pick(lexicon.CITIES)[0]
        if kind == "relation":
            return self.relation(self.choose.pick(lexicon.OUTDOORS), goal=False)
        return self._at_place(self.choose.pick(lexicon.PLACES))

    def residence(self) -> Prepositional | Adverbial:
        """Where somebody lives."""
        if self.choose.chance(0.3):
            return self.choose.pick(lexicon.CITIES)[0]
        if self.choose.chance(0.2):
            return self.relation(self.choose.pick(lexicon.OUTDOORS), goal=False)
        return self._at_place(self.choose.pick([place for place in lexicon.PLACES if place.residence]))

    def goal(self) -> Prepositional | Adverbial:
        """Where somebody goes on foot."""
        return lexicon.HOME if self.choose.chance(0.14) else self._to_place(self.choose.pick(lexicon.PLACES))

    def destination(self) -> Prepositional | Adverbial:
        """Where somebody travels."""
        if self.choose.chance(0.6):
            return self.choose.pick(lexicon.CITIES)[1]
        return self._to_place(self.choose.pick([p for p in lexicon.PLACES if p.residence and p.noun.sorts & Sort.AREA]))

    def _to_place(self, place: Place) -> Prepositional:
        return Prepositional(place.to, self._landmark(place.noun))

    def _at_place(self, place: Place) -> Prepositional:
        return Prepositional(place.at, self._landmark(place.noun))

    def relation(self, relation: Relation, *, goal: bool) -> Prepositional:
        """A local prepositional phrase: where, or where to."""
        preposition = relation.whither if goal else relation.where
        return Prepositional(preposition, self._landmark(self.noun(relation.landmarks)))

    def _landmark(self, noun: Noun) -> Common:
        self.used.add(noun)
        kind = self.choose.weighted((("the", 0.76), ("a", 0.12), ("owned", 0.06), ("this", 0.06)))
        owned = kind == "owned" and noun.sorts & Sort.OWNED
        determiner = self.choose.pick(lexicon.POSSESSIVES) if owned else _DETERMINERS.get(kind, lexicon.THE)
        return Common(noun, determiner, adjectives=self.adjectives(noun, 0.2))

    def companion(self) -> Prepositional:
        """With whom."""
        phrase = self.name() if self.choose.chance(0.3) else self.common(Sort.KIN, known=True, plural=0.2, owner=False)
        return Prepositional(lexicon.WITH, phrase)

    def clock(self) -> Adverbial:
        """At a full hour."""
        hour = self.choose.between(1, 12)
        return Adverbial(f"at {english.number_word(hour)} o'clock", f"um {german.number_word(hour)} Uhr")

    def span(self, *, past: bool) -> Adverbial:
        """So many days, weeks or years ago, or from now."""
        count = self.choose.between(2, 12)
        unit, german_unit = self.choose.pick((("days", "Tagen"), ("weeks", "Wochen"), ("years", "Jahren")))
        words, german_words = f"{english.number_word(count)} {unit}", f"{german.number_word(count)} {german_unit}"
        if past:
            return Adverbial(f"{words} ago", f"vor {german_words}", order=(1, 2, 0))
        return Adverbial(f"in {words}", f"in {german_words}")
