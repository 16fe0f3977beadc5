"""Grammatical features shared by both languages, and the semantic sorts that keep sentences sensible."""

from enum import Enum, Flag, auto


class Number(Enum):
    """Grammatical number."""

    SINGULAR = auto()
    PLURAL = auto()


class Gender(Enum):
    """Grammatical gender; its value is the column of a German paradigm (plurals have the fourth column)."""

    MASCULINE = 0
    NEUTER = 1
    FEMININE = 2


class Case(Enum):
    """German case; its value is the row of a German paradigm."""

    NOMINATIVE = 0
    ACCUSATIVE = 1
    DATIVE = 2
    GENITIVE = 3


class Tense(Enum):
    """Tenses, which correspond one to one: simple past to Präteritum, present perfect to Perfekt."""

    PRESENT = auto()
    PAST = auto()
    PERFECT = auto()
    FUTURE = auto()


class Form(Enum):
    """The shape in which a clause is put into words."""

    MAIN = auto()  # German: finite verb second
    QUESTION = auto()  # finite verb first, or second after a question word
    IMPERATIVE = auto()  # polite: "Please open ..." is "Bitte machen Sie ... auf"
    SUBORDINATE = auto()  # German: finite verb last; relative clauses and indirect questions too
    INFINITIVE = auto()  # "to" and "zu", without a subject


class Slot(Enum):
    """The parts of a clause that may stand first in it, each with the name of its field in ``plan.Clause``."""

    SUBJECT = "subject"
    DIRECT = "direct"
    INDIRECT = "indirect"
    OBLIQUE = "oblique"
    PLACE = "place"
    TIME = "time"
    EMBEDDED = "embedded"


class Frame(Enum):
    """What a verb demands beside its subject."""

    INTRANSITIVE = auto()
    TRANSITIVE = auto()  # one object, accusative or dative
    DITRANSITIVE = auto()  # dative and accusative
    OBLIQUE = auto()  # prepositional object
    MOTION = auto()  # a goal
    POSITION = auto()  # a place
    PLACEMENT = auto()  # an object and a goal
    COPULA = auto()  # a predicate adjective
    WEATHER = auto()  # nothing: the subject is an expletive


class Sort(Flag):
    """What a noun denotes (first block) and what one can do with it (second block)."""

    NONE = 0
    PERSON = auto()
    ANIMAL = auto()
    SNACK = auto()  # food that is counted
    STUFF = auto()  # food and drink that is not
    TEXT = auto()
    CLOTHING = auto()
    VEHICLE = auto()
    TRANSPORT = auto()
    DEVICE = auto()
    VESSEL = auto()
    FURNITURE = auto()
    TOOL = auto()
    OPENABLE = auto()
    BUILDING = auto()
    ROOM = auto()
    AREA = auto()

    FOOD = auto()
    DRINK = auto()
    COOKABLE = auto()
    SURFACE = auto()
    SHELTER = auto()
    LANDMARK = auto()
    YOUNG = auto()  # at most nineteen years old
    KIN = auto()  # persons one can call one's own

    BEING = PERSON | ANIMAL
    PLACE = BUILDING | ROOM | AREA
    PORTABLE = TEXT | CLOTHING | TOOL
    GOODS = CLOTHING | VEHICLE | DEVICE | VESSEL | FURNITURE | TOOL
    OWNED = KIN | ANIMAL | SNACK | STUFF | PORTABLE | GOODS | OPENABLE | ROOM
    KIND = BEING | SNACK | STUFF | TEXT | GOODS | OPENABLE | PLACE
