"""The words of the grammar as tables: one word a line, English on the left, German on the right.

Two spaces or more separate columns, and ``_`` is a space inside an entry. A noun's *kind* decides what it goes with.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple, cast

from data_prep.grammar.german import Case, Gender


def _rows(table: str) -> Iterator[list[list[str]]]:
    """The rows of a table: the words of each column."""
    for line in table.strip().splitlines():
        yield [[word.replace("_", " ") for word in column.split()] for column in re.split(" {2,}", line.strip())]


class Noun(NamedTuple):
    """A noun with its numbers in English; with its gender, nominative, genitive and plural in German."""

    kind: str
    english: str
    english_plural: str
    gender: Gender
    nominative: str
    genitive: str
    plural: str

    def german(self, case: Case, *, plural: bool) -> str:
        """The form for a case. Weak nouns, with a genitive in -n, have it in all cases but the nominative."""
        if plural:
            return self.plural + ("n" if case == "dat" and self.plural[-1] not in "ns" else "")
        return self.genitive if case == "gen" or (case != "nom" and self.genitive.endswith("n")) else self.nominative


_NOUNS = """
    person  man men              m  Mann Mannes Männer
    person  woman women          f  Frau Frau Frauen
    person  child children       n  Kind Kindes Kinder
    person  girl girls           n  Mädchen Mädchens Mädchen
    person  boy boys             m  Junge Jungen Jungen
    person  sister sisters       f  Schwester Schwester Schwestern
    person  friend friends       m  Freund Freundes Freunde
    person  teacher teachers     m  Lehrer Lehrers Lehrer
    person  doctor doctors       m  Arzt Arztes Ärzte
    person  student students     m  Student Studenten Studenten
    animal  dog dogs             m  Hund Hundes Hunde
    animal  cat cats             f  Katze Katze Katzen
    animal  bear bears           m  Bär Bären Bären
    food    apple apples         m  Apfel Apfels Äpfel
    food    egg eggs             n  Ei Eies Eier
    food    cake cakes           m  Kuchen Kuchens Kuchen
    text    book books           n  Buch Buches Bücher
    text    letter letters       m  Brief Briefes Briefe
    text    newspaper newspapers  f  Zeitung Zeitung Zeitungen
    thing   coat coats           m  Mantel Mantels Mäntel
    thing   shirt shirts         n  Hemd Hemdes Hemden
    thing   car cars             n  Auto Autos Autos
    thing   table tables         m  Tisch Tisches Tische
    door    door doors           f  Tür Tür Türen
    door    window windows       n  Fenster Fensters Fenster
    door    suitcase suitcases   m  Koffer Koffers Koffer
    place   house houses         n  Haus Hauses Häuser
    place   garden gardens       m  Garten Gartens Gärten
    place   school schools       f  Schule Schule Schulen
    place   city cities          f  Stadt Stadt Städte
    place   village villages     n  Dorf Dorfes Dörfer
"""
_ALL_NOUNS = [
    Noun(kind, one, many, cast(Gender, gender), nominative, genitive, plural)
    for (kind,), (one, many), (gender,), (nominative, genitive, plural) in _rows(_NOUNS)
]
NOUNS = {kind: [noun for noun in _ALL_NOUNS if noun.kind == kind] for kind, *_ in _ALL_NOUNS}

#: Names by gender, the same in all cases.
NAMES = [("m", "Peter"), ("m", "Paul"), ("m", "Max"), ("f", "Anna"), ("f", "Maria"), ("f", "Emma")]


class Determiner(NamedTuple):
    """A determiner: its German stem, and what it is declined like (a key of ``DECLENSIONS``)."""

    english: str
    stem: str
    like: str


#: The numbers say how often each is drawn in the singular and in the plural.
_DETERMINERS = """
    the    _      der     12 8  definite
    a      ein    ein     8 0   -
    no     kein   ein     1 1   -
    my     mein   ein     2 1   definite
    his    sein   ein     2 1   definite
    her    ihr    ein     2 1   definite
    this   dies   dieser  2 0   definite
    these  dies   dieser  0 2   definite
    every  jed    dieser  1 0   -
    all    all    dieser  0 1   -
    many   viel   viele   0 2   -
    two    zwei   zwei    0 1   -
    three  drei   zwei    0 1   -
"""
#: By whether the noun is a plural, and whether the determiner must be definite; repeated as often as it is drawn.
DETERMINERS = {
    (plural, definite): [
        Determiner(english, stem.strip(), like)
        for (english,), (stem,), (like,), often, (kind,) in _rows(_DETERMINERS)
        for _ in range(int(often[plural]))
        if kind == "definite" or not definite
    ]
    for plural in (False, True)
    for definite in (False, True)
}


class Pronoun(NamedTuple):
    """A pronoun: its agreement (see ``Verb``); subject and object; nominative, accusative and dative."""

    agreement: int
    english: list[str]
    german: list[str]


#: Third persons have the gender of a noun, "p" in the plural. Things are "it" in English, and have a gender in German.
_PRONOUNS = """
    I    0  I me       ich mich mir
    you  2  you you    Sie Sie Ihnen
    m    1  he him     er ihn ihm
    f    1  she her    sie sie ihr
    p    2  they them  sie sie ihnen
    it-m  1  it it     er ihn ihm
    it-f  1  it it     sie sie ihr
    it-n  1  it it     es es ihm
"""
PRONOUNS = {
    name: Pronoun(int(agreement), english, german) for (name,), (agreement,), english, german in _rows(_PRONOUNS)
}


#: Adjectives, and the kinds of nouns that they go with.
_ADJECTIVES = """
    old        alt        person animal text thing door place
    small      klein      person animal food thing door place
    big        groß       animal food thing door place
    beautiful  schön      person animal text thing place
    young      jung       person animal
    hungry     hungrig    person animal
    happy      glücklich  person
    new        neu        text thing door place
    cheap      billig     food text thing
    red        rot        food thing door
"""
ADJECTIVES = [(english, german, kinds) for (english,), (german,), kinds in _rows(_ADJECTIVES)]


class Slot(NamedTuple):
    """What a verb wants beside its subject: "acc text food", or behind a preposition "for auf acc person"."""

    preposition: list[str]  # in both languages, or nothing
    case: Case
    kinds: list[str]


def _slot(words: list[str]) -> Slot:
    place = min(words.index(case) for case in ("acc", "dat") if case in words)
    return Slot(words[:place], cast(Case, words[place]), words[place + 1 :])


class Verb(NamedTuple):
    """A verb by the principal parts of a dictionary; the particle of *an|rufen* is "an".

    Finite forms have three columns, in both languages: those of "I", "he" and "they". *Agreement* is the column.
    """

    english: list[str]  # base, third person, past, participle
    particle: str
    german: list[str]  # infinitive without the particle, third person, past, auxiliary, participle
    subjects: list[str]
    slots: list[Slot]

    def simple(self, tense: str) -> tuple[list[str], list[str]]:
        """The English and the German forms of the "present" or the "past"."""
        (base, third, past, _), (infinitive, german_third, german_past, *_) = self.english, self.german
        if tense == "present":
            return [base, third, base], [infinitive.removesuffix("n"), german_third, infinitive]
        return [past] * 3, [german_past, german_past, german_past + ("n" if german_past.endswith("e") else "en")]


_VERBS = """
    sleep sleeps slept slept        schlafen schläft schlief hat geschlafen     person animal
    work works worked worked        arbeiten arbeitet arbeitete hat gearbeitet  person
    arrive arrives arrived arrived  an|kommen kommt kam ist angekommen          person
    get_up gets_up got_up got_up    auf|stehen steht stand ist aufgestanden     person animal
    see sees saw seen               sehen sieht sah hat gesehen                 person animal  acc person animal place
    buy buys bought bought          kaufen kauft kaufte hat gekauft             person  acc food text thing
    sell sells sold sold            verkaufen verkauft verkaufte hat verkauft   person  acc food text thing
    read reads read read            lesen liest las hat gelesen                 person  acc text
    eat eats ate eaten              essen isst aß hat gegessen                  person animal  acc food
    wash washes washed washed       waschen wäscht wusch hat gewaschen          person  acc thing door
    visit visits visited visited    besuchen besucht besuchte hat besucht       person  acc person place
    call calls called called        an|rufen ruft rief hat angerufen            person  acc person
    open opens opened opened        auf|machen macht machte hat aufgemacht      person  acc door
    close closes closed closed      zu|machen macht machte hat zugemacht        person  acc door
    help helps helped helped        helfen hilft half hat geholfen              person  dat person animal
    thank thanks thanked thanked    danken dankt dankte hat gedankt             person  dat person
    give gives gave given           geben gibt gab hat gegeben                  person  dat person  acc food text thing
    show shows showed shown         zeigen zeigt zeigte hat gezeigt             person  dat person  acc text thing door
    wait waits waited waited        warten wartet wartete hat gewartet          person  for auf acc person
    talk talks talked talked        sprechen spricht sprach hat gesprochen      person  about über acc person text
    dream dreams dreamed dreamed    träumen träumt träumte hat geträumt         person  of von dat thing place
    go goes went gone               gehen geht ging ist gegangen                person  into in acc place
    run runs ran run                laufen läuft lief ist gelaufen              person animal  into in acc place
    live lives lived lived          wohnen wohnt wohnte hat gewohnt             person  in in dat place
    say says said said              sagen sagt sagte hat gesagt                 person  acc clause
    hear hears heard heard          hören hört hörte hat gehört                 person  acc clause
    hope hopes hoped hoped          hoffen hofft hoffte hat gehofft             person  acc clause
"""


def _verb(english: list[str], german: list[str], subjects: list[str], *slots: list[str]) -> Verb:
    particle, _, infinitive = german[0].rpartition("|")
    return Verb(english, particle, [infinitive, *german[1:]], subjects, list(map(_slot, slots)))


_ALL_VERBS = [_verb(*row) for row in _rows(_VERBS)]
VERBS = [verb for verb in _ALL_VERBS if not any("clause" in slot.kinds for slot in verb.slots)]
REPORTS = [verb for verb in _ALL_VERBS if verb not in VERBS]

#: Where and with whom, for any verb.
CIRCUMSTANCES = list(map(_slot, (["in", "in", "dat", "place"], ["with", "mit", "dat", "person"])))


class Auxiliary(NamedTuple):
    """An auxiliary: its three forms, and the tense of the time that goes with it; ``bound`` ones take no "not" here."""

    english: list[str]
    german: list[str]
    time: str
    bound: bool


#: The simple tenses have those of "be" here, and *ist* is the perfect's of some German verbs.
_AUXILIARIES = """
    present  am is are                 bin ist sind             present  -
    past     was was were              war war waren            past     -
    perfect  have has have             habe hat haben           perfect  -
    ist      have has have             bin ist sind             perfect  -
    will     will will will            werde wird werden        future   -
    can      can can can               kann kann können         future   -
    should   should should should      sollte sollte sollten    future   -
    must     must must must            muss muss müssen         future   bound
    want     want_to wants_to want_to  will will wollen         future   bound
    could    could could could         konnte konnte konnten    past     -
    had      had_to had_to had_to      musste musste mussten    past     bound
"""
AUXILIARIES = {
    name: Auxiliary(english, german, time, bound == "bound")
    for (name,), english, german, (time,), (bound,) in _rows(_AUXILIARIES)
}
DO = {"present": ["do", "does", "do"], "past": ["did", "did", "did"]}

#: The tenses of a sentence: the simple one first, and more often what is drawn more often.
TENSES = (
    ["present", "present", "present", "perfect", "perfect", "will", "can", "should", "must", "want"],
    ["past", "past", "past", "could", "had"],
)

#: Expressions of time, word by word.
TIMES = {
    "present": [("today", "heute"), ("every day", "jeden Tag")],
    "past": [("yesterday", "gestern"), ("last week", "letzte Woche")],
    "perfect": [("today", "heute"), ("this week", "diese Woche")],
    "future": [("tomorrow", "morgen"), ("next week", "nächste Woche")],
}
CONJUNCTIONS = [("because", "weil"), ("although", "obwohl")]
