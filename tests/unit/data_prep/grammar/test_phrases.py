"""Endings, verbs, the order of words and the links, against phrases and sentences written by hand."""

import re

import pytest

from data_prep.grammar.german import DECLENSIONS, Case, Gender
from data_prep.grammar.lexicon import DETERMINERS, NOUNS, VERBS, Verb
from data_prep.grammar.phrases import (
    COMMA,
    NOTHING,
    Clause,
    Phrase,
    conjugate,
    join,
    question,
    say,
    statement,
    subordinate,
    write,
)

FIRST, THIRD, PLURAL = range(3)


@pytest.mark.parametrize(
    ("words", "case"),
    [
        ("the old man: der alte Mann", "nom"),
        ("the old man: den alten Mann", "acc"),
        ("the old man: dem alten Mann", "dat"),
        ("the old man: des alten Mannes", "gen"),
        ("a red egg: ein rotes Ei", "nom"),
        ("a red egg: einem roten Ei", "dat"),
        ("a young woman: eine junge Frau", "acc"),
        ("a young woman: einer jungen Frau", "gen"),
        ("this boy: diesen Jungen", "acc"),
        ("every student: jeder Student", "nom"),
        ("every student: jedem Studenten", "dat"),
        ("the big houses: den großen Häusern", "dat"),
        ("the big cars: den großen Autos", "dat"),
        ("no new doors: keine neuen Türen", "acc"),
        ("many new books: viele neue Bücher", "nom"),
        ("all new books: alle neuen Bücher", "nom"),
        ("two small dogs: zwei kleine Hunde", "acc"),
        ("two small dogs: zwei kleinen Hunden", "dat"),
    ],
)
def test_noun_phrases(words: str, case: Case) -> None:
    english, german = (side.split() for side in words.split(": "))
    noun, plural = next(
        (noun, english[-1] != noun.english)
        for nouns in NOUNS.values()
        for noun in nouns
        if english[-1] in (noun.english, noun.english_plural)
    )
    determiner = next(one for one in DETERMINERS[plural, False] if one.english == english[0])
    gender: Gender = "p" if plural else noun.gender
    endings, adjective_endings = (table[case, gender] for table in DECLENSIONS[determiner.like])
    assert german[0] == determiner.stem + endings
    assert all(word.endswith(("e", "en", "er", "es")) and word.endswith(adjective_endings) for word in german[1:-1])
    assert german[-1] == noun.german(case, plural=plural)


def verb(english: str) -> Verb:
    return next(verb for verb in VERBS if verb.english[0] == english)


@pytest.mark.parametrize(
    ("english", "tense", "agreement", "support", "wanted"),
    [
        ("read", "present", FIRST, False, "read / lese"),
        ("read", "present", THIRD, True, "does read / liest"),
        ("give", "past", PLURAL, False, "gave / gaben"),
        ("work", "past", PLURAL, False, "worked / arbeiteten"),
        ("call", "present", THIRD, False, "calls / ruft an"),
        ("call", "past", PLURAL, True, "did call / riefen an"),
        ("call", "perfect", THIRD, False, "has called / hat angerufen"),
        ("arrive", "perfect", FIRST, False, "have arrived / bin angekommen"),
        ("open", "will", PLURAL, False, "will open / werden aufmachen"),
        ("help", "want", THIRD, False, "wants to help / will helfen"),
        ("get up", "had", PLURAL, False, "had to get up / mussten aufstehen"),
    ],
)
def test_verbs(english: str, tense: str, agreement: int, support: bool, wanted: str) -> None:
    whole = join(*conjugate(verb(english), tense, agreement, support=support))
    assert " / ".join(" ".join(word.text for word in side) for side in whole) == wanted


def clause(english: str, tense: str, agreement: int = THIRD, subject: Phrase | None = None, **parts: Phrase) -> Clause:
    finite, rest = conjugate(verb(english), tense, agreement, support="negation" in parts)
    return Clause(subject or say("Anna", "Anna"), finite, rest, **parts)


def book() -> Phrase:
    return join(say("the", "das"), say("book", "Buch"))


#: Sentences; then their links.
SENTENCES = {
    "verb second": (
        lambda: statement(clause("read", "present", objects=book(), time=say("today", "heute"))),
        "Anna reads the book today.",
        "Anna liest heute das Buch.",
        "Anna=Anna reads=liest the=das book=Buch today=heute",
    ),
    "verb second behind a front": (
        lambda: statement(clause("read", "perfect", objects=book()), front=say("today", "heute")),
        "Today Anna has read the book.",
        "Heute hat Anna das Buch gelesen.",
        "Today=Heute Anna=Anna has=hat read=gelesen the=das book=Buch",
    ),
    "separable verb, negation and a": (
        lambda: statement(
            clause(
                "open",
                "present",
                negation=say("not", "nicht"),
                objects=join(say("a", "einen"), say("old", "alten"), say("suitcase", "Koffer")),
            )
        ),
        "Anna does not open an old suitcase.",
        "Anna macht einen alten Koffer nicht auf.",
        "Anna=Anna does=macht does=auf not=nicht open=macht open=auf an=einen old=alten suitcase=Koffer",
    ),
    "cannot, and in + dem": (
        lambda: statement(
            clause(
                "read",
                "can",
                negation=say("not", "nicht"),
                complement=join(say("in", "in"), say("the", "dem"), say("house", "Haus")),
            )
        ),
        "Anna cannot read in the house.",
        "Anna kann nicht im Haus lesen.",
        "Anna=Anna cannot=kann cannot=nicht read=lesen in=im the=im house=Haus",
    ),
    "question": (
        lambda: question(clause("call", "could", pronouns=say("me", "mich"), time=say("yesterday", "gestern"))),
        "Could Anna call me yesterday?",
        "Konnte Anna mich gestern anrufen?",
        "Could=Konnte Anna=Anna call=anrufen me=mich yesterday=gestern",
    ),
    "subordinate clause": (
        lambda: join(
            statement(clause("sleep", "present")),
            subordinate(
                say("because", "weil"), clause("call", "present", subject=say("he", "er"), pronouns=say("me", "mich"))
            ),
        ),
        "Anna sleeps because he calls me.",
        "Anna schläft, weil er mich anruft.",
        "Anna=Anna sleeps=schläft because=weil he=er calls=anruft me=mich",
    ),
    "subordinate clause in front": (
        lambda: statement(
            clause("sleep", "past"),
            front=join(subordinate(say("although", "obwohl"), clause("work", "had", subject=say("she", "sie"))), COMMA),
        ),
        "Although she had to work, Anna slept.",
        "Obwohl sie arbeiten musste, schlief Anna.",
        "Although=Obwohl she=sie had=musste to=musste work=arbeiten Anna=Anna slept=schlief",
    ),
    "relative clause": (
        lambda: statement(
            clause(
                "buy",
                "will",
                objects=join(book(), subordinate(NOTHING, clause("help", "past", subject=say("that", "das")))),
            )
        ),
        "Anna will buy the book that helped.",
        "Anna wird das Buch, das half, kaufen.",
        "Anna=Anna will=wird buy=kaufen the=das book=Buch that=das helped=half",
    ),
}


@pytest.mark.parametrize("phenomenon", SENTENCES)
def test_sentences_and_their_links(phenomenon: str) -> None:
    build, english, german, wanted = SENTENCES[phenomenon]
    pair = write(build(), english[-1])
    assert pair[:2] == (english, german)
    words = [re.findall(r"\w+", side) for side in pair[:2]]
    assert [f"{words[0][src]}={words[1][tgt]}" for src, tgt in pair.links] == wanted.split()
