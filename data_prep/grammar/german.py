"""German morphology: paradigms of articles, adjectives and pronouns; nouns, verbs and number words.

The paradigms are the standard ones of any reference grammar (Duden, vol. 4). Only those persons exist that the grammar
uses: the polite *Sie* conjugates like the third person plural, so a present tense needs three forms and a past two.
"""

from dataclasses import dataclass

from data_prep.grammar.features import Case, Gender, Number, Tense

_PLURAL_COLUMN = 3


@dataclass(frozen=True, eq=False)
class Paradigm:
    """Forms or endings by case (rows) and by masculine, neuter, feminine, plural (columns)."""

    rows: tuple[tuple[str, ...], ...]

    def form(self, gender: Gender, number: Number, case: Case) -> str:
        """The cell for these features; plurals do not distinguish gender."""
        column = gender.value if number is Number.SINGULAR else _PLURAL_COLUMN
        return self.rows[case.value][column]


def _paradigm(*rows: str) -> Paradigm:
    """Read nominative, accusative, dative and genitive rows; a lone "-" is the empty ending."""
    return Paradigm(tuple(tuple(cell.strip("-") for cell in row.split()) for row in rows))


#                               m    n    f    pl
DEFINITE_ARTICLE = _paradigm(
    "der das die die",
    "den das die die",
    "dem dem der den",
    "des des der der",
)
DER_ENDINGS = _paradigm(  # dieser, jeder, welcher, alle, viele, einige
    "-er -es -e -e",
    "-en -es -e -e",
    "-em -em -er -en",
    "-es -es -er -er",
)
EIN_ENDINGS = _paradigm(  # ein, kein, mein, Ihr, ...
    "- - -e -e",
    "-en - -e -e",
    "-em -em -er -en",
    "-es -es -er -er",
)
STRONG = _paradigm(  # adjectives after no article, a numeral, viele, einige, a genitive
    "-er -es -e -e",
    "-en -es -e -e",
    "-em -em -er -en",
    "-en -en -er -er",
)
WEAK = _paradigm(  # adjectives after der, dieser, jeder, alle
    "-e -e -e -en",
    "-en -e -e -en",
    "-en -en -en -en",
    "-en -en -en -en",
)
MIXED = _paradigm(  # adjectives after ein, kein, mein
    "-er -es -e -en",
    "-en -es -e -en",
    "-en -en -en -en",
    "-en -en -en -en",
)
RELATIVE_PRONOUN = _paradigm(
    "der das die die",
    "den das die die",
    "dem dem der denen",
    "dessen dessen deren deren",
)
THIRD_PERSON = _paradigm(
    "er es sie sie",
    "ihn es sie sie",
    "ihm ihm ihr ihnen",
    "seiner seiner ihrer ihrer",
)
FIRST_PERSON = {Number.SINGULAR: ("ich", "mich", "mir", "meiner"), Number.PLURAL: ("wir", "uns", "uns", "unser")}
POLITE = ("Sie", "Sie", "Ihnen", "Ihrer")
WHO = ("wer", "wen", "wem", "wessen")

CONTRACTIONS = {
    ("in", "dem"): "im",
    ("in", "das"): "ins",
    ("an", "dem"): "am",
    ("von", "dem"): "vom",
    ("zu", "dem"): "zum",
    ("zu", "der"): "zur",
}


def reflexive(person: int, number: Number) -> str:
    """The accusative reflexive pronoun; the polite form counts as the third person."""
    return FIRST_PERSON[number][Case.ACCUSATIVE.value] if person == 1 else "sich"


@dataclass(frozen=True, eq=False)
class GermanNoun:
    """A noun's gender and principal parts; ``oblique`` differs from ``singular`` in weak nouns (*den Studenten*)."""

    gender: Gender
    singular: str
    plural: str
    oblique: str
    genitive: str

    def form(self, number: Number, case: Case) -> str:
        """The inflected noun. Dative plurals end in -n unless the plural ends in -n or -s."""
        if number is Number.PLURAL:
            return self.plural + "n" if case is Case.DATIVE and self.plural[-1] not in "ns" else self.plural
        if case is Case.NOMINATIVE:
            return self.singular
        return self.genitive if case is Case.GENITIVE else self.oblique


def parse_noun(entry: str) -> GermanNoun:
    """Read "der Tisch Tische -es": article, singular, plural, genitive ending.

    An ending in -n marks a weak noun, which takes it in every case but the nominative singular. Feminines have none.
    """
    article, singular, plural, *ending = entry.split()
    gender = {"der": Gender.MASCULINE, "das": Gender.NEUTER, "die": Gender.FEMININE}[article]
    genitive = singular + ending[0].removeprefix("-") if ending else singular
    return GermanNoun(gender, singular, plural, genitive if genitive.endswith("n") and ending else singular, genitive)


@dataclass(frozen=True, eq=False)
class GermanVerb:
    """A verb by its principal parts, all without the separable ``particle`` (*an* in *anrufen*)."""

    infinitive: str
    first: str
    third: str
    past: str
    participle: str
    particle: str = ""
    perfect_with_sein: bool = False
    reflexive: bool = False

    def finite(self, tense: Tense, person: int, number: Number) -> str:
        """The present or past form for a subject, without the particle."""
        if tense is Tense.PAST:
            if number is Number.SINGULAR:
                return self.past
            return self.past + ("n" if self.past.endswith("e") else "en")
        if number is Number.PLURAL:
            return "sind" if self.infinitive == "sein" else self.infinitive
        return self.first if person == 1 else self.third


_INSEPARABLE = ("be", "emp", "er", "ge", "ver")


def parse_verb(entry: str, *, sein: bool = False) -> GermanVerb:
    """Read "an|rufen ruft rief gerufen" (``|`` after a separable particle), or a weak verb's infinitive alone.

    The optional fifth part is the first person singular, where it is not the stem and -e. ``sein`` chooses the
    auxiliary of the perfect; an infinitive after "sich " is a reflexive verb's.
    """
    reflexive_verb = entry.startswith("sich ")
    infinitive, *parts = entry.removeprefix("sich ").split()
    particle, _, infinitive = infinitive.rpartition("|")
    stem = infinitive.removesuffix("n").removesuffix("e")
    if not parts:
        linking = "e" if stem[-1] in "td" else ""
        prefix = "" if stem.startswith(_INSEPARABLE) or stem.endswith("ier") else "ge"
        parts = [f"{stem}{linking}t", f"{stem}{linking}te", f"{prefix}{stem}{linking}t"]
    third, past, participle, *first = parts
    return GermanVerb(
        infinitive, first[0] if first else stem + "e", third, past, participle, particle, sein, reflexive_verb
    )


SEIN = parse_verb("sein ist war gewesen bin", sein=True)
HABEN = parse_verb("haben hat hatte gehabt")
WERDEN = parse_verb("werden wird wurde geworden", sein=True)
KOENNEN = parse_verb("können kann konnte gekonnt kann")
MUESSEN = parse_verb("müssen muss musste gemusst muss")
DUERFEN = parse_verb("dürfen darf durfte gedurft darf")
WOLLEN = parse_verb("wollen will wollte gewollt will")
SOLLEN = parse_verb("sollen soll sollte gesollt soll")

_UNITS = (
    "null", "ein", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun", "zehn", "elf", "zwölf",
    "dreizehn", "vierzehn", "fünfzehn", "sechzehn", "siebzehn", "achtzehn", "neunzehn",
)  # fmt: skip
_TENS = ("zwanzig", "dreißig", "vierzig", "fünfzig", "sechzig", "siebzig", "achtzig", "neunzig")


def number_word(value: int) -> str:
    """A cardinal from 1 to 99 as it stands before a noun or *Uhr*: units before tens, *dreiundzwanzig*."""
    if value < 20:
        return _UNITS[value]
    tens, unit = divmod(value, 10)
    return (f"{_UNITS[unit]}und" if unit else "") + _TENS[tens - 2]
