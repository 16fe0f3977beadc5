"""English morphology: nouns, verbs, pronouns, the indefinite article and number words."""

from dataclasses import dataclass

from data_prep.grammar.features import Gender, Number, Tense

_VOWELS = "aeiou"


def _add_s(word: str) -> str:
    """Plural of a regular noun, or third person singular of a regular verb."""
    if word.endswith("y") and word[-2] not in _VOWELS:
        return word[:-1] + "ies"
    return word + ("es" if word.endswith(("s", "sh", "ch", "x", "o")) else "s")


def _add_ed(word: str) -> str:
    if word.endswith("y") and word[-2] not in _VOWELS:
        return word[:-1] + "ied"
    return word + ("d" if word.endswith("e") else "ed")


@dataclass(frozen=True, eq=False)
class EnglishNoun:
    """A noun's two forms."""

    singular: str
    plural: str

    def form(self, number: Number) -> str:
        """The form for a number."""
        return self.singular if number is Number.SINGULAR else self.plural


def parse_noun(entry: str) -> EnglishNoun:
    """Read "man men", or a regular noun alone."""
    singular, *plural = entry.split()
    return EnglishNoun(singular, plural[0] if plural else _add_s(singular))


@dataclass(frozen=True, eq=False)
class EnglishVerb:
    """A verb's forms; ``particle`` lets a pronoun pass ("turns it on"), ``preposition`` does not ("looks for it")."""

    base: str
    third: str
    past: str
    participle: str
    particle: str = ""
    preposition: str = ""

    def finite(self, tense: Tense, person: int, number: Number) -> str:
        """The simple present or past form for a subject."""
        singular = number is Number.SINGULAR
        if self.base == "be":
            if tense is Tense.PAST:
                return "was" if singular else "were"
            return ("am" if person == 1 else "is") if singular else "are"
        if tense is Tense.PAST:
            return self.past
        return self.third if singular and person == 3 else self.base


def parse_verb(entry: str) -> EnglishVerb:
    """Read "call", "eat ate eaten", "turn +on" (a particle) or "look :for" (a preposition)."""
    words = entry.split()
    forms = [word for word in words if word[0] not in "+:"]
    particle = "".join(word[1:] for word in words if word[0] == "+")
    preposition = "".join(word[1:] for word in words if word[0] == ":")
    base = forms[0]
    past = forms[1] if len(forms) > 1 else _add_ed(base)
    participle = forms[2] if len(forms) > 2 else past
    third = {"be": "is", "have": "has"}.get(base, _add_s(base))
    return EnglishVerb(base, third, past, participle, particle, preposition)


BE = parse_verb("be was been")
HAVE = parse_verb("have had had")
DO = parse_verb("do did done")
WANT = parse_verb("want")

_THIRD_PERSON = {Gender.MASCULINE: ("he", "him"), Gender.FEMININE: ("she", "her"), Gender.NEUTER: ("it", "it")}


def pronoun(person: int, number: Number, gender: Gender, *, animate: bool, subject: bool) -> str:
    """A personal pronoun. Things are "it" whatever the gender of their German name."""
    column = 0 if subject else 1
    if person == 2:
        return "you"
    if person == 1:
        return (("I", "me") if number is Number.SINGULAR else ("we", "us"))[column]
    if number is Number.PLURAL:
        return ("they", "them")[column]
    return _THIRD_PERSON[gender if animate else Gender.NEUTER][column]


def article(following: str) -> str:
    """The indefinite article before a word. No word of the lexicon is spelt against its sound."""
    return "an" if following[0] in _VOWELS else "a"


_UNITS = (
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
    "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen",
)  # fmt: skip
_TENS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")


def number_word(value: int) -> str:
    """A cardinal from 1 to 99."""
    if value < 20:
        return _UNITS[value]
    tens, unit = divmod(value, 10)
    return _TENS[tens - 2] + (f"-{_UNITS[unit]}" if unit else "")
