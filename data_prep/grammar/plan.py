"""Abstract syntax: what a sentence says, before either language puts it into words.

A plan is a tree of the frozen dataclasses below. ``english_syntax`` and ``german_syntax`` each linearise the same tree,
which makes the grammar synchronous: the two sides cannot drift apart, and equal plans have equal translations.
"""

from __future__ import annotations

from dataclasses import dataclass

from data_prep.grammar.features import Case, Form, Gender, Number, Slot, Tense
from data_prep.grammar.german import RELATIVE_PRONOUN, STRONG
from data_prep.grammar.lexicon import BARE, A, Adjective, Adverbial, Determiner, Modal, Noun, Preposition, Verb


@dataclass(frozen=True, slots=True)
class Pronoun:
    """A personal pronoun. ``gender`` is that of the German antecedent; the second person is the polite *Sie*."""

    person: int
    number: Number
    gender: Gender = Gender.NEUTER
    animate: bool = True

    @property
    def agreement(self) -> tuple[int, Number]:
        """Person and number for the German verb: *Sie* agrees like a third person plural."""
        return (3, Number.PLURAL) if self.person == 2 else (self.person, self.number)


@dataclass(frozen=True, slots=True)
class Name:
    """A person's name."""

    text: str
    gender: Gender


@dataclass(frozen=True, slots=True)
class Common:
    """A determiner, adjectives and a noun, with an owner in the genitive or a relative clause after it."""

    noun: Noun
    determiner: Determiner
    number: Number = Number.SINGULAR
    adjectives: tuple[Adjective, ...] = ()
    owner: Common | None = None
    relative: Clause | None = None

    @property
    def negatable(self) -> bool:
        """Whether negation turns the determiner into *kein*."""
        return self.determiner is A or self.determiner is BARE


@dataclass(frozen=True, slots=True)
class Coordination:
    """Two noun phrases joined by "and"."""

    left: Name | Common
    right: Name | Common


@dataclass(frozen=True, slots=True)
class RelativePronoun:
    """Who, whom, which or that, agreeing with its antecedent."""

    gender: Gender
    number: Number
    human: bool


@dataclass(frozen=True, slots=True)
class Who:
    """The question word for persons."""


NounPhrase = Pronoun | Name | Common | Coordination | RelativePronoun | Who


def agreement(phrase: NounPhrase) -> tuple[int, Number]:
    """The person and number that a verb takes from its subject."""
    match phrase:
        case Pronoun():
            return phrase.agreement
        case Common() | RelativePronoun():
            return 3, phrase.number
        case Coordination():
            return 3, Number.PLURAL
        case _:
            return 3, Number.SINGULAR


def definite(phrase: NounPhrase) -> bool:
    """Whether the phrase refers to something known, and so stands before adverbials in German."""
    match phrase:
        case Common():
            return phrase.determiner.definite
        case Coordination():
            return definite(phrase.left) and definite(phrase.right)
        case _:
            return True


@dataclass(frozen=True, slots=True)
class Prepositional:
    """A prepositional phrase."""

    preposition: Preposition
    phrase: NounPhrase


@dataclass(frozen=True, slots=True)
class Predicate:
    """What a copula says: "tired", "very tired", "older than ...", "as old as ...", "thirty years old"."""

    adjective: Adjective
    very: bool = False
    than: NounPhrase | None = None
    as_much_as: NounPhrase | None = None
    years: int | None = None


@dataclass(frozen=True, slots=True)
class Embedded:
    """A clause inside another, behind its conjunction; an indirect question and "try to" have none."""

    clause: Clause
    form: Form
    conjunction: Adverbial | None = None


@dataclass(frozen=True, slots=True)
class Clause:
    """A verb with its arguments and adjuncts. ``front`` is what stands first, if not the subject."""

    subject: NounPhrase
    verb: Verb
    tense: Tense = Tense.PRESENT
    modal: Modal | None = None
    negated: bool = False
    direct: NounPhrase | None = None
    indirect: NounPhrase | None = None
    recipient_first: bool = False  # "gives the man the book", not "gives the book to the man"
    oblique: Prepositional | None = None
    predicate: Predicate | None = None
    place: Prepositional | Adverbial | None = None
    companion: Prepositional | Adverbial | None = None
    manner: Adverbial | None = None
    frequency: Adverbial | None = None
    time: Adverbial | None = None
    embedded: Embedded | None = None
    front: Slot | None = None

    def filler(self, slot: Slot) -> NounPhrase | Prepositional | Adverbial:
        """The phrase in a slot."""
        phrase: NounPhrase | Prepositional | Adverbial | None = getattr(self, slot.value)
        if phrase is None:
            raise ValueError(f"nothing fills the slot {slot.name}")
        return phrase

    @property
    def negates_object(self) -> bool:
        """Whether *kein* before the direct object expresses the negation, so that there is no *nicht*."""
        return self.negated and isinstance(self.direct, Common) and self.direct.negatable


@dataclass(frozen=True, slots=True)
class Sentence:
    """A main clause, or two joined by a coordinating conjunction."""

    clause: Clause
    form: Form = Form.MAIN
    conjunction: Adverbial | None = None
    second: Clause | None = None


def whose(antecedent: Common) -> Determiner:
    """The relative possessive, which agrees with its antecedent and does not inflect."""
    genitive = RELATIVE_PRONOUN.form(antecedent.noun.german.gender, antecedent.number, Case.GENITIVE)
    return Determiner(("whose", "whose"), genitive, None, STRONG, definite=True)
