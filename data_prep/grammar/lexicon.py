"""The words of the grammar. Nouns, adjectives, adverbials and verbs are in the tables (``*.tsv``) beside this file.

Each entry pairs an English with a German side. An English word has one German counterpart in its construction, so that
every sentence has one translation.
"""

import csv
from dataclasses import dataclass
from functools import reduce
from operator import or_
from pathlib import Path

from data_prep.grammar import english, german
from data_prep.grammar.english import EnglishNoun, EnglishVerb
from data_prep.grammar.features import Case, Frame, Gender, Number, Sort
from data_prep.grammar.german import (
    DEFINITE_ARTICLE,
    DER_ENDINGS,
    EIN_ENDINGS,
    MIXED,
    STRONG,
    WEAK,
    GermanNoun,
    GermanVerb,
    Paradigm,
)
from data_prep.grammar.words import Word, Words, counterparts


@dataclass(frozen=True, eq=False)
class Noun:
    """A common noun. ``mass`` nouns have no plural and stand without an indefinite article."""

    english: EnglishNoun
    german: GermanNoun
    sorts: Sort
    mass: bool


@dataclass(frozen=True, eq=False)
class Adjective:
    """An adjective; ``stem`` is the German attributive stem (*teuer*, *teur-*)."""

    english: str
    german: str
    stem: str
    sorts: Sort
    comparative: tuple[str, str] | None = None
    colour: bool = False


@dataclass(frozen=True, eq=False)
class Determiner:
    """An article word. Without ``endings`` it is invariable; ``adjectives`` is the declension it demands."""

    english: tuple[str, str]
    stem: str
    endings: Paradigm | None
    adjectives: Paradigm
    definite: bool = False

    def german(self, gender: Gender, number: Number, case: Case) -> str:
        """The inflected German word, empty for the bare noun phrase."""
        return self.stem + (self.endings.form(gender, number, case) if self.endings else "")

    @property
    def german_words(self) -> int:
        """The number of German words, of a determiner that has any."""
        return len(self.stem.split()) or 1

    def english_words(self, number: Number) -> int:
        """The number of English words."""
        return len(self.english[0 if number is Number.SINGULAR else 1].split())


@dataclass(frozen=True, eq=False)
class Preposition:
    """A pair of prepositions, and the case that the German one governs here."""

    english: str
    german: str
    case: Case


@dataclass(frozen=True, eq=False)
class Adverbial:
    """A fixed expression of time, place or manner, or a conjunction.

    ``order`` has, for each English word, the place of its German counterpart, where that is not at the same place.
    """

    english: str
    german: str
    order: tuple[int, ...] = ()

    def english_words(self) -> Words:
        """The English words, each with what it expresses."""
        words = counterparts("word", self.english.split(), len(self.german.split()))
        if not self.order:
            return words
        return [Word(word.text, (f"word.{place}",)) for word, place in zip(words, self.order, strict=True)]

    def german_words(self) -> Words:
        """The German words, each with what it expresses."""
        return counterparts("word", self.german.split(), len(self.english.split()))


@dataclass(frozen=True, eq=False)
class Place:
    """A noun with the prepositions of being there and of going there; one may live in a ``residence``."""

    noun: Noun
    at: Preposition
    to: Preposition
    residence: bool


@dataclass(frozen=True, eq=False)
class Relation:
    """A local preposition, dative for where and accusative for where to, and the landmarks it goes with."""

    where: Preposition
    whither: Preposition
    landmarks: Sort


@dataclass(frozen=True, eq=False)
class Verb:
    """A verb with its frame and the sorts it selects.

    ``stative`` verbs have present and past only and take no adverbials; a ``homograph`` has an English simple past that
    can be mistaken for another form ("they read"), so it is never used.
    """

    english: EnglishVerb
    german: GermanVerb
    frame: Frame
    subjects: Sort
    objects: Sort = Sort.NONE
    case: Case = Case.ACCUSATIVE
    preposition: Preposition | None = None
    stative: bool = False
    homograph: bool = False
    manners: tuple[Adverbial, ...] = ()

    @property
    def takes_place(self) -> bool:
        """Whether the place belongs to the verb, and so stands last in the German middle field."""
        return self.frame in (Frame.MOTION, Frame.POSITION, Frame.PLACEMENT)


@dataclass(frozen=True, eq=False)
class Modal:
    """A modal verb. A ``lexical`` one ("want to") takes do-support; without a past, ``english`` has one form."""

    english: tuple[str, ...]
    german: GermanVerb
    lexical: EnglishVerb | None = None
    subjunctive: bool = False  # "should" is sollte, whatever the tense


Row = dict[str, str]


def _table(name: str) -> list[Row]:
    with (Path(__file__).parent / f"{name}.tsv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))


def _sorts(names: str) -> Sort:
    return reduce(or_, (Sort[name] for name in names.split("|") if name), Sort.NONE)


def _preposition(words: str, case: Case) -> Preposition:
    """Read "in/in"."""
    english_words, german_word = words.split("/")
    return Preposition(english_words, german_word, case)


def _at(words: str) -> Preposition:
    return _preposition(words, Case.DATIVE)


def _to(words: str) -> Preposition:
    """Read "into/in", or "to/zu +dative"; the case is the accusative unless it is stated."""
    words, _, case = words.partition(" +")
    return _preposition(words, Case.DATIVE if case else Case.ACCUSATIVE)


def _noun(row: Row) -> Noun:
    return Noun(
        english.parse_noun(row["english"]), german.parse_noun(row["german"]), _sorts(row["sorts"]), bool(row["mass"])
    )


def _adjective(row: Row) -> Adjective:
    """Read an adjective. The German one is followed by its attributive stem if that differs, as in "teuer/teur"."""
    base, _, stem = row["german"].partition("/")
    comparative = (row["comparative"], row["german_comparative"]) if row["comparative"] else None
    return Adjective(row["english"], base, stem or base, _sorts(row["sorts"]), comparative, colour=bool(row["colour"]))


_NOUN_ROWS = [(_noun(row), row) for row in _table("nouns")]
NOUNS = tuple(noun for noun, _ in _NOUN_ROWS)
PLACES = tuple(
    Place(noun, _at(row["at"]), _to(row["to"]), bool(row["residence"])) for noun, row in _NOUN_ROWS if row["at"]
)
PLACE_OF = {place.noun: place for place in PLACES}
ADJECTIVES = tuple(map(_adjective, _table("adjectives")))
NAMES = (
    *((name, Gender.FEMININE) for name in ("Anna", "Maria", "Julia", "Laura")),
    *((name, Gender.MASCULINE) for name in ("Peter", "Paul", "Martin", "Daniel")),
)
CITIES = tuple(
    (Adverbial(f"in {name}", f"in {german_name}"), Adverbial(f"to {name}", f"nach {german_name}"))
    for name, german_name in (("Berlin", "Berlin"), ("Vienna", "Wien"), ("Munich", "München"), ("London", "London"))
)
HOME = Adverbial("home", "nach Hause")

ON = Relation(_at("on/auf"), _to("on/auf"), Sort.SURFACE)
UNDER = Relation(_at("under/unter"), _to("under/unter"), Sort.SHELTER)
BESIDE_FURNITURE = Relation(_at("next to/neben"), _to("next to/neben"), Sort.FURNITURE)
BESIDE = Relation(_at("next to/neben"), _to("next to/neben"), Sort.LANDMARK)
BEHIND = Relation(_at("behind/hinter"), _to("behind/hinter"), Sort.LANDMARK)
IN_FRONT = Relation(_at("in front of/vor"), _to("in front of/vor"), Sort.LANDMARK)
INDOORS = (ON, UNDER, BESIDE_FURNITURE)
OUTDOORS = (BESIDE, BEHIND, IN_FRONT)
WITH = _at("with/mit")
BY = tuple(
    Adverbial(f"by {word}", f"mit {german_word}")
    for word, german_word in (("train", "dem Zug"), ("car", "dem Auto"), ("bus", "dem Bus"), ("ship", "dem Schiff"))
)

BARE = Determiner(("", ""), "", None, STRONG)
A = Determiner(("a", ""), "ein", EIN_ENDINGS, MIXED)
NO = Determiner(("no", "no"), "kein", EIN_ENDINGS, MIXED)
THE = Determiner(("the", "the"), "", DEFINITE_ARTICLE, WEAK, definite=True)
THIS = Determiner(("this", "these"), "dies", DER_ENDINGS, WEAK, definite=True)
EVERY = Determiner(("every", ""), "jed", DER_ENDINGS, WEAK)
ALL = Determiner(("", "all the"), "all", DER_ENDINGS, WEAK)
MANY = Determiner(("", "many"), "viel", DER_ENDINGS, STRONG)
SOME = Determiner(("", "some"), "einig", DER_ENDINGS, STRONG)
WHICH = Determiner(("which", "which"), "welch", DER_ENDINGS, WEAK)
HOW_MANY = Determiner(("", "how many"), "wie viel", DER_ENDINGS, STRONG)
POSSESSIVES = tuple(
    Determiner((word, word), stem, EIN_ENDINGS, MIXED, definite=True)
    for word, stem in (
        ("my", "mein"),
        ("his", "sein"),
        ("her", "ihr"),
        ("our", "unser"),
        ("your", "Ihr"),
        ("their", "ihr"),
    )
)
NAMES_GENITIVES = tuple(
    Determiner((f"{name}'s", f"{name}'s"), f"{name}s", None, STRONG, definite=True) for name, _ in NAMES
)


def numeral(value: int) -> Determiner:
    """The number word as a determiner of plurals."""
    return Determiner(("", english.number_word(value)), german.number_word(value), None, STRONG)


_ADVERBIALS: dict[str, tuple[Adverbial, ...]] = {}
for _row in _table("adverbials"):
    _ADVERBIALS[_row["group"]] = (*_ADVERBIALS.get(_row["group"], ()), Adverbial(_row["english"], _row["german"]))
TIMES_PRESENT, TIMES_HABITUAL = _ADVERBIALS["times_present"], _ADVERBIALS["times_habitual"]
TIMES_PAST, TIMES_PERFECT = _ADVERBIALS["times_past"], _ADVERBIALS["times_perfect"]
TIMES_FUTURE = _ADVERBIALS["times_future"]
FREQUENCIES, FREQUENCIES_PERFECT = _ADVERBIALS["frequencies"], _ADVERBIALS["frequencies_perfect"]
YET = Adverbial("yet", "noch")
WHEN, WHERE, WHY = Adverbial("when", "wann"), Adverbial("where", "wo"), Adverbial("why", "warum")


def _verb(row: Row) -> Verb:
    """Read a verb. ``case`` is that of its preposition, or of its object if it has none."""
    flags = row["flags"].split()
    case = Case.DATIVE if row["case"] else Case.ACCUSATIVE
    preposition = _preposition(row["preposition"], case) if row["preposition"] else None
    return Verb(
        english.parse_verb(row["english"]),
        german.parse_verb(row["german"], sein="sein" in flags),
        Frame.INTRANSITIVE if row["group"] == "CLAUSAL" else Frame[row["group"]],
        _sorts(row["subjects"]),
        _sorts(row["objects"]),
        Case.ACCUSATIVE if preposition else case,
        preposition,
        "stative" in flags,
        "homograph" in flags,
        _ADVERBIALS[row["manners"]] if row["manners"] else (),
    )


_VERB_ROWS = [(_verb(row), row) for row in _table("verbs")]


def _of(group: str) -> tuple[Verb, ...]:
    return tuple(verb for verb, row in _VERB_ROWS if row["group"] == group)


def _with(flag: str) -> tuple[Verb, ...]:
    return tuple(verb for verb, row in _VERB_ROWS if flag in row["flags"].split())


INTRANSITIVE, TRANSITIVE, DITRANSITIVE = _of("INTRANSITIVE"), _of("TRANSITIVE"), _of("DITRANSITIVE")
OBLIQUE, PLACEMENT, WEATHER = _of("OBLIQUE"), _of("PLACEMENT"), _of("WEATHER")
GO, RUN, COME, TRAVEL = _of("MOTION")
LIVE, SIT, STAND, LIE = _of("POSITION")
(BE,) = _of("COPULA")
SAY, KNOW, BELIEVE, HOPE, ASK, TRY, FORGET, PLAN = _of("CLAUSAL")
MOTION = (GO, GO, RUN, COME, TRAVEL, TRAVEL)  # some twice as often
POSITION = (LIVE, LIVE, SIT, STAND, LIE)
ALL_VERBS = tuple(verb for verb, row in _VERB_ROWS if row["group"] != "CLAUSAL")
ACTIONS = _with("action")  # what one can be asked to do, or try to do
INVOLUNTARY = _with("involuntary")  # what just happens, so that one hardly may, must or wants to do it
WITH_NEED, WITHOUT_NEED = _with("acquires"), _with("parts")  # what one does with a thing that one needs, or does not
NEED = next(verb for verb in TRANSITIVE if verb.english.base == "need")

CAN = Modal(("can", "could"), german.KOENNEN)
MUST = Modal(("must",), german.MUESSEN)
MUST_NOT = Modal(("must",), german.DUERFEN)
MAY = Modal(("may",), german.DUERFEN)
SHOULD = Modal(("should",), german.SOLLEN, subjunctive=True)
WANT_TO = Modal((), german.WOLLEN, english.WANT)
HAVE_TO = Modal((), german.MUESSEN, english.HAVE)

BECAUSE = Adverbial("because", "weil")
ALTHOUGH = Adverbial("although", "obwohl")
IF = Adverbial("if", "wenn")
WHEN_NOW = Adverbial("when", "wenn")
WHEN_ONCE = Adverbial("when", "als")
WHILE = Adverbial("while", "während")
BEFORE = Adverbial("before", "bevor")
THAT = Adverbial("that", "dass")
WHETHER = Adverbial("whether", "ob")
AND = Adverbial("and", "und")
BUT = Adverbial(", but", ", aber")
