"""The types of lexical entries: each pairs an English with a German side."""

from dataclasses import dataclass

from data_prep.sources.toy.english import EnglishNoun, EnglishVerb
from data_prep.sources.toy.features import Case, Frame, Gender, Number, Sort
from data_prep.sources.toy.german import GermanNoun, GermanVerb, Paradigm


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


@dataclass(frozen=True, eq=False)
class Preposition:
    """A pair of prepositions, and the case that the German one governs here."""

    english: str
    german: str
    case: Case


@dataclass(frozen=True, eq=False)
class Adverbial:
    """A fixed expression of time, place or manner."""

    english: str
    german: str


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
