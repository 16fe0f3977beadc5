"""The grammar of the embedded corpus against hand-written sentence pairs and their links."""

import re
from dataclasses import replace

import pytest

from data_prep.grammar import lexicon
from data_prep.grammar.clauses import IT
from data_prep.grammar.features import Form, Gender, Number, Slot, Tense
from data_prep.grammar.grammar import realise
from data_prep.grammar.lexicon import Adjective, Adverbial, Determiner, Noun, Verb
from data_prep.grammar.phrases import Chooser, PhraseSampler
from data_prep.grammar.plan import (
    Clause,
    Common,
    Embedded,
    Name,
    Predicate,
    Prepositional,
    Pronoun,
    RelativePronoun,
    Sentence,
)

SINGULAR, PLURAL = Number.SINGULAR, Number.PLURAL
ME = Pronoun(1, SINGULAR)
YOU, THEY = Pronoun(2, PLURAL), Pronoun(3, PLURAL)
HE, SHE = Pronoun(3, SINGULAR, Gender.MASCULINE), Pronoun(3, SINGULAR, Gender.FEMININE)
ANNA = Name("Anna", Gender.FEMININE)
YESTERDAY = lexicon.TIMES_PAST[0]


def noun(english: str) -> Noun:
    return next(entry for entry in lexicon.NOUNS if entry.english.singular == english)


def adjective(english: str) -> Adjective:
    return next(entry for entry in lexicon.ADJECTIVES if entry.english == english)


def verb(english: str, german_infinitive: str) -> Verb:
    return next(
        v
        for v in lexicon.ALL_VERBS
        if v.english.base == english and v.german.particle + v.german.infinitive == german_infinitive
    )


def np(words: str, determiner: Determiner = lexicon.THE, number: Number = SINGULAR) -> Common:
    """ "old red car" as a noun phrase."""
    *adjectives, head = words.split()
    return Common(noun(head), determiner, number, tuple(adjective(word) for word in adjectives))


def relative(antecedent: Common, human: bool = False) -> RelativePronoun:
    return RelativePronoun(antecedent.noun.german.gender, antecedent.number, human)


BUY, CALL, GIVE = verb("buy", "kaufen"), verb("call", "anrufen"), verb("give", "geben")
OPEN, READ, HELP = verb("open", "aufmachen"), verb("read", "lesen"), verb("help", "helfen")
SLEEP, WAIT = verb("sleep", "schlafen"), verb("wait", "warten")
REMEMBER = verb("remember", "erinnern")
WAIT_FOR = WAIT.preposition


def _main(**parts) -> Sentence:
    return Sentence(Clause(**parts))


def _joined(main: Clause, conjunction: Adverbial, inner: Clause, front: Slot | None = None) -> Sentence:
    return Sentence(replace(main, embedded=Embedded(inner, Form.SUBORDINATE, conjunction), front=front))


MAN, CHILD, BOOK = np("man"), np("child"), np("book")
SENTENCES = {
    "perfect in a subordinate clause": (
        _joined(
            Clause(ME, SLEEP, negated=True),
            lexicon.BECAUSE,
            Clause(THEY, BUY, Tense.PERFECT, direct=np("car", lexicon.A)),
        ),
        "I do not sleep because they have bought a car.", "Ich schlafe nicht, weil sie ein Auto gekauft haben.",
    ),
    "future in a that-clause": (
        _joined(Clause(SHE, lexicon.SAY), lexicon.THAT, Clause(YOU, OPEN, Tense.FUTURE, direct=np("window"))),
        "She says that you will open the window.", "Sie sagt, dass Sie das Fenster aufmachen werden.",
    ),
    "modal": (
        _main(subject=np("boy", number=PLURAL), verb=READ, modal=lexicon.WANT_TO, tense=Tense.PAST, direct=BOOK),
        "The boys wanted to read the book.", "Die Jungen wollten das Buch lesen.",
    ),
    "nicht before a place": (
        _main(subject=ANNA, verb=lexicon.LIVE, negated=True, place=lexicon.CITIES[1][0]),
        "Anna does not live in Vienna.", "Anna wohnt nicht in Wien.",
    ),
    "kein": (
        _main(subject=ANNA, verb=BUY, tense=Tense.PERFECT, negated=True, direct=np("new coat", lexicon.A)),
        "Anna has not bought a new coat.", "Anna hat keinen neuen Mantel gekauft.",
    ),
    "recipient first in English": (
        _main(subject=MAN, verb=GIVE, direct=np("apple"), indirect=CHILD, recipient_first=True),
        "The man gives the child the apple.", "Der Mann gibt dem Kind den Apfel.",
    ),
    "pronouns: accusative before dative": (
        _main(subject=SHE, verb=GIVE, tense=Tense.PAST, direct=IT, indirect=HE, time=YESTERDAY, front=Slot.TIME),
        "Yesterday she gave it to him.", "Gestern gab sie es ihm.",
    ),
    "reflexive verb": (
        _joined(
            Clause(ME, SLEEP),
            lexicon.BECAUSE,
            Clause(MAN, REMEMBER, oblique=Prepositional(REMEMBER.preposition, ME)),
        ),
        "I sleep because the man remembers me.", "Ich schlafe, weil sich der Mann an mich erinnert.",
    ),
    "relative clause, object, extraposed": (
        _main(
            subject=ME,
            verb=BUY,
            tense=Tense.PERFECT,
            direct=replace(np("coat"), relative=Clause(ANNA, BUY, direct=relative(np("coat")), front=Slot.DIRECT)),
        ),
        "I have bought the coat that Anna buys.", "Ich habe den Mantel gekauft, den Anna kauft.",
    ),
    "comparison": (
        _main(subject=np("dog"), verb=lexicon.BE, predicate=Predicate(adjective("big"), than=np("cat"))),
        "The dog is bigger than the cat.", "Der Hund ist größer als die Katze.",
    ),
    "weather": (
        _joined(Clause(ME, SLEEP), lexicon.WHILE, Clause(IT, lexicon.WEATHER[0])),
        "I sleep while it is raining.", "Ich schlafe, während es regnet.",
    ),
    "yes-no question": (
        Sentence(Clause(YOU, OPEN, direct=np("door")), Form.QUESTION),
        "Do you open the door?", "Machen Sie die Tür auf?",
    ),
    "infinitive with zu": (
        Sentence(Clause(HE, lexicon.TRY, embedded=Embedded(Clause(HE, CALL, direct=ANNA), Form.INFINITIVE))),
        "He tries to call Anna.", "Er versucht, Anna anzurufen.",
    ),
    "purpose": (
        Sentence(
            Clause(
                SHE,
                lexicon.GO,
                Tense.PERFECT,
                place=lexicon.HOME,
                embedded=Embedded(Clause(SHE, HELP, direct=CHILD), Form.INFINITIVE, Adverbial("in order", "um")),
            )
        ),
        "She has gone home in order to help the child.", "Sie ist nach Hause gegangen, um dem Kind zu helfen.",
    ),
    "request": (
        Sentence(Clause(YOU, OPEN, negated=True, direct=np("window")), Form.IMPERATIVE),
        "Please do not open the window.", "Bitte machen Sie das Fenster nicht auf.",
    ),
    "cannot": (
        _main(subject=HE, verb=WAIT, modal=lexicon.CAN, negated=True, oblique=Prepositional(WAIT_FOR, np("bus"))),
        "He cannot wait for the bus.", "Er kann nicht auf den Bus warten.",
    ),
    "English particle after a pronoun": (
        _main(subject=ME, verb=verb("turn", "einschalten"), tense=Tense.PAST, direct=IT),
        "I turned it on.", "Ich schaltete es ein.",
    ),
}  # fmt: skip


@pytest.mark.parametrize("phenomenon", SENTENCES)
def test_sentence_pairs(phenomenon):
    plan, english, german_sentence = SENTENCES[phenomenon]
    assert realise(plan)[:2] == (english, german_sentence)


#: The links of some of these pairs; "=" is sure and "~" possible. Words are without punctuation.
LINKS = {
    "perfect in a subordinate clause": "I=Ich do~schlafe not=nicht sleep=schlafe because=weil they=sie have=haben "
    "bought=gekauft a=ein car=Auto car~haben",
    "future in a that-clause": "She=Sie says=sagt that=dass you=Sie will=werden open=aufmachen the=das window=Fenster "
    "window~werden",
    "modal": "The=Die boys=Jungen wanted=wollten to~wollten to~lesen read=lesen the=das book=Buch book~lesen",
    "nicht before a place": "Anna=Anna does~wohnt not=nicht live=wohnt in=in Vienna=Wien",
    "kein": "Anna=Anna has=hat not=keinen bought=gekauft a=keinen new=neuen coat=Mantel coat~gekauft",
    "recipient first in English": "The=Der man=Mann gives=gibt the=dem child=Kind the=den apple=Apfel",
    "pronouns: accusative before dative": "Yesterday=Gestern she=sie gave=gab it=es to~ihm him=ihm",
    "reflexive verb": "I=Ich sleep=schlafe because=weil the=der man=Mann remembers=erinnert remembers~sich me=mich "
    "me~an me~erinnert",
    "relative clause, object, extraposed": "I=Ich have=habe bought=gekauft the=den coat=Mantel that=den Anna=Anna "
    "buys=kauft",
    "comparison": "The=Der dog=Hund is=ist bigger=größer than=als the=die cat=Katze",
    "weather": "I=Ich sleep=schlafe while=während it=es is~regnet raining=regnet",
    "yes-no question": "Do~Machen Do~auf you=Sie open=Machen open=auf the=die door=Tür door~auf",
    "infinitive with zu": "He=Er tries=versucht to=anzurufen call=anzurufen Anna=Anna Anna~anzurufen",
    "purpose": "She=Sie has=ist gone=gegangen home=nach home=Hause in=um order=um to=zu help=helfen the=dem child=Kind "
    "child~helfen",
    "request": "Please=Bitte do~machen do~Sie do~auf not=nicht open=machen open=auf open~Sie the=das window=Fenster "
    "window~auf",
    "cannot": "He=Er cannot=kann cannot=nicht wait=warten for=auf the=den bus=Bus bus~warten",
    "English particle after a pronoun": "I=Ich turned=schaltete turned~ein it=es on~schaltete on=ein",
}


@pytest.mark.parametrize("phenomenon", LINKS)
def test_links(phenomenon):
    english, german_sentence, alignment = realise(SENTENCES[phenomenon][0], aligned=True)
    words = [[word.strip(".,?") for word in side.split()] for side in (english, german_sentence)]
    found = [
        (words[0][src], mark, words[1][tgt]) for mark, links in zip("=~", alignment, strict=True) for src, tgt in links
    ]
    wanted = [re.fullmatch(r"(\S+)([=~])(\S+)", link).groups() for link in LINKS[phenomenon].split()]
    assert sorted(found) == sorted(wanted)


def test_a_time_span_is_linked_across_its_order():
    plan = _main(subject=ANNA, verb=SLEEP, tense=Tense.PAST, time=PhraseSampler(Chooser(1)).span(past=True))
    english, german_sentence, alignment = realise(plan, aligned=True)
    assert english.endswith(" ago.")
    assert german_sentence.split()[2] == "vor"
    assert alignment.sure == ((0, 0), (1, 1), (2, 3), (3, 4), (4, 2))


def test_an_empty_front_is_refused():
    with pytest.raises(ValueError, match="TIME"):
        realise(Sentence(Clause(ME, SLEEP, front=Slot.TIME)))
