"""The grammar of the embedded corpus against hand-written phrases and sentence pairs."""

import re
from dataclasses import replace

import pytest

from data_prep.grammar import lexicon
from data_prep.grammar.clauses import IT
from data_prep.grammar.features import Case, Form, Gender, Number, Slot, Tense
from data_prep.grammar.german_syntax import adverbial, noun_phrase
from data_prep.grammar.grammar import realise, realise_aligned
from data_prep.grammar.lexicon import Adjective, Adverbial, Determiner, Noun, Verb
from data_prep.grammar.phrases import Chooser, PhraseSampler
from data_prep.grammar.plan import (
    Clause,
    Common,
    Coordination,
    Embedded,
    Name,
    Predicate,
    Prepositional,
    Pronoun,
    RelativePronoun,
    Sentence,
    Who,
    whose,
)
from data_prep.grammar.words import Words

SINGULAR, PLURAL = Number.SINGULAR, Number.PLURAL
CASES = (Case.NOMINATIVE, Case.ACCUSATIVE, Case.DATIVE, Case.GENITIVE)
ME, WE = Pronoun(1, SINGULAR), Pronoun(1, PLURAL)
YOU, THEY = Pronoun(2, PLURAL), Pronoun(3, PLURAL)
HE, SHE = Pronoun(3, SINGULAR, Gender.MASCULINE), Pronoun(3, SINGULAR, Gender.FEMININE)
ANNA, PETER = Name("Anna", Gender.FEMININE), Name("Peter", Gender.MASCULINE)
MY, YOUR = lexicon.POSSESSIVES[0], lexicon.POSSESSIVES[4]
TODAY, YESTERDAY = lexicon.TIMES_PRESENT[0], lexicon.TIMES_PAST[0]


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


def text(words: Words) -> str:
    return " ".join(word.text for word in words)


BUY, CALL, GIVE = verb("buy", "kaufen"), verb("call", "anrufen"), verb("give", "geben")
OPEN, READ, HELP = verb("open", "aufmachen"), verb("read", "lesen"), verb("help", "helfen")
SLEEP, GET_UP, WAIT = verb("sleep", "schlafen"), verb("get", "aufstehen"), verb("wait", "warten")
REMEMBER = verb("remember", "erinnern")
WAIT_FOR = WAIT.preposition
GARDEN = lexicon.PLACE_OF[noun("garden")]


@pytest.mark.parametrize(
    ("phrase", "forms"),
    [
        (np("old man"), "der alte Mann, den alten Mann, dem alten Mann, des alten Mannes"),
        (np("old woman"), "die alte Frau, die alte Frau, der alten Frau, der alten Frau"),
        (np("new house"), "das neue Haus, das neue Haus, dem neuen Haus, des neuen Hauses"),
        (np("old man", number=PLURAL), "die alten Männer, die alten Männer, den alten Männern, der alten Männer"),
        (np("old man", lexicon.A), "ein alter Mann, einen alten Mann, einem alten Mann, eines alten Mannes"),
        (np("old cat", lexicon.A), "eine alte Katze, eine alte Katze, einer alten Katze, einer alten Katze"),
        (np("red car", lexicon.A), "ein rotes Auto, ein rotes Auto, einem roten Auto, eines roten Autos"),
        (np("small red car", MY), "mein kleines rotes Auto, mein kleines rotes Auto, meinem kleinen roten Auto, "
            "meines kleinen roten Autos"),
        (np("new car", YOUR, PLURAL), "Ihre neuen Autos, Ihre neuen Autos, Ihren neuen Autos, Ihrer neuen Autos"),
        (np("sad girl", lexicon.NO), "kein trauriges Mädchen, kein trauriges Mädchen, keinem traurigen Mädchen, "
            "keines traurigen Mädchens"),
        (np("cold milk", lexicon.BARE), "kalte Milch, kalte Milch, kalter Milch, kalter Milch"),
        (np("hot tea", lexicon.BARE), "heißer Tee, heißen Tee, heißem Tee, heißen Tees"),
        (np("fresh bread", lexicon.BARE), "frisches Brot, frisches Brot, frischem Brot, frischen Brotes"),
        (np("small child", lexicon.BARE, PLURAL), "kleine Kinder, kleine Kinder, kleinen Kindern, kleiner Kinder"),
        (np("old book", lexicon.MANY, PLURAL), "viele alte Bücher, viele alte Bücher, vielen alten Büchern, "
            "vieler alter Bücher"),
        (np("old book", lexicon.ALL, PLURAL), "alle alten Bücher, alle alten Bücher, allen alten Büchern, "
            "aller alten Bücher"),
        (np("old book", lexicon.numeral(23), PLURAL), "dreiundzwanzig alte Bücher, dreiundzwanzig alte Bücher, "
            "dreiundzwanzig alten Büchern, dreiundzwanzig alter Bücher"),
        (np("friendly tourist", lexicon.THIS), "dieser freundliche Tourist, diesen freundlichen Touristen, "
            "diesem freundlichen Touristen, dieses freundlichen Touristen"),
        (np("boy", lexicon.EVERY), "jeder Junge, jeden Jungen, jedem Jungen, jedes Jungen"),
        (np("neighbour"), "der Nachbar, den Nachbarn, dem Nachbarn, des Nachbarn"),
        (np("expensive coat", lexicon.A), "ein teurer Mantel, einen teuren Mantel, einem teuren Mantel, "
            "eines teuren Mantels"),
        (np("dark kitchen"), "die dunkle Küche, die dunkle Küche, der dunklen Küche, der dunklen Küche"),
        (np("tired dog", lexicon.A), "ein müder Hund, einen müden Hund, einem müden Hund, eines müden Hundes"),
        (np("old table", lexicon.NAMES_GENITIVES[0]), "Annas alter Tisch, Annas alten Tisch, Annas altem Tisch, "
            "Annas alten Tisches"),
        (replace(np("house"), owner=np("old doctor")), "das Haus des alten Arztes, das Haus des alten Arztes, "
            "dem Haus des alten Arztes, des Hauses des alten Arztes"),
        (ME, "ich, mich, mir, meiner"),
        (YOU, "Sie, Sie, Ihnen, Ihrer"),
        (THEY, "sie, sie, ihnen, ihrer"),
        (relative(np("man")), "der, den, dem, dessen"),
        (relative(np("man", number=PLURAL)), "die, die, denen, deren"),
        (Who(), "wer, wen, wem, wessen"),
        (Coordination(ANNA, np("boy")),
         "Anna und der Junge, Anna und den Jungen, Anna und dem Jungen, Anna und des Jungen"),
    ],
)  # fmt: skip
def test_declension(phrase, forms):
    assert ", ".join(text(noun_phrase(phrase, case)) for case in CASES) == forms


@pytest.mark.parametrize(
    ("relation", "phrase", "words"),
    [
        (GARDEN.at, np("garden"), "im Garten"),
        (GARDEN.to, np("garden"), "in den Garten"),
        (lexicon.PLACE_OF[noun("office")].to, np("office"), "ins Büro"),
        (lexicon.PLACE_OF[noun("station")].to, np("old station"), "zum alten Bahnhof"),
        (lexicon.PLACE_OF[noun("lake")].at, np("lake"), "am See"),
        (lexicon.PLACE_OF[noun("market")].to, np("market"), "auf den Markt"),
        (GARDEN.at, np("garden", lexicon.A), "in einem Garten"),
        (GARDEN.at, relative(np("garden")), "in dem"),
        (lexicon.ON.where, np("table"), "auf dem Tisch"),
        (lexicon.ON.whither, np("table"), "auf den Tisch"),
    ],
)
def test_prepositions_govern_case_and_contract(relation, phrase, words):
    assert text(adverbial(Prepositional(relation, phrase))) == words


def _main(**parts) -> Sentence:
    return Sentence(Clause(**parts))


def _joined(main: Clause, conjunction: Adverbial, inner: Clause, front: Slot | None = None) -> Sentence:
    return Sentence(replace(main, embedded=Embedded(inner, Form.SUBORDINATE, conjunction), front=front))


MAN, CHILD, BOOK = np("man"), np("child"), np("book")
READER = replace(MAN, relative=Clause(relative(MAN, human=True), READ, direct=BOOK, front=Slot.SUBJECT))
SENTENCES = {
    "verb second": (
        _main(subject=MAN, verb=READ, direct=np("interesting book", lexicon.A), time=TODAY, front=Slot.TIME),
        "Today the man reads an interesting book.", "Heute liest der Mann ein interessantes Buch.",
    ),
    "known before time, new after it": (
        _main(subject=MAN, verb=READ, direct=BOOK, time=TODAY, place=Prepositional(GARDEN.at, np("garden"))),
        "The man reads the book in the garden today.", "Der Mann liest das Buch heute im Garten.",
    ),
    "separable verb": (
        _main(subject=MAN, verb=CALL, direct=np("student"), time=TODAY),
        "The man calls the student today.", "Der Mann ruft den Studenten heute an.",
    ),
    "separable verb, perfect with sein": (
        _main(subject=WE, verb=GET_UP, tense=Tense.PERFECT, frequency=lexicon.FREQUENCIES_PERFECT[0]),
        "We have already got up.", "Wir sind schon aufgestanden.",
    ),
    "separable verb, past, subordinate": (
        _joined(Clause(ME, SLEEP, Tense.PAST), lexicon.WHEN_ONCE, Clause(SHE, CALL, Tense.PAST, direct=HE)),
        "I slept when she called him.", "Ich schlief, als sie ihn anrief.",
    ),
    "subordinate clause first": (
        _joined(Clause(PETER, OPEN, direct=np("door")), lexicon.IF, Clause(ANNA, SLEEP), Slot.EMBEDDED),
        "If Anna sleeps, Peter opens the door.", "Wenn Anna schläft, macht Peter die Tür auf.",
    ),
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
    "modal in a subordinate clause": (
        _joined(Clause(HE, SLEEP), lexicon.ALTHOUGH, Clause(HE, CALL, modal=lexicon.HAVE_TO, direct=ANNA)),
        "He sleeps although he has to call Anna.", "Er schläft, obwohl er Anna anrufen muss.",
    ),
    "prohibition": (
        _main(subject=CHILD, verb=OPEN, modal=lexicon.MUST_NOT, negated=True, direct=np("window")),
        "The child must not open the window.", "Das Kind darf das Fenster nicht aufmachen.",
    ),
    "nicht before a place": (
        _main(subject=ANNA, verb=lexicon.LIVE, negated=True, place=lexicon.CITIES[1][0]),
        "Anna does not live in Vienna.", "Anna wohnt nicht in Wien.",
    ),
    "kein": (
        _main(subject=ANNA, verb=BUY, tense=Tense.PERFECT, negated=True, direct=np("new coat", lexicon.A)),
        "Anna has not bought a new coat.", "Anna hat keinen neuen Mantel gekauft.",
    ),
    "kein with a mass noun": (
        _main(subject=ME, verb=verb("drink", "trinken"), negated=True, direct=np("cold milk", lexicon.BARE)),
        "I do not drink cold milk.", "Ich trinke keine kalte Milch.",
    ),
    "not yet": (
        _main(subject=SHE, verb=READ, tense=Tense.PERFECT, negated=True, direct=BOOK, frequency=lexicon.YET),
        "She has not read the book yet.", "Sie hat das Buch noch nicht gelesen.",
    ),
    "dative before accusative": (
        _main(subject=MAN, verb=GIVE, direct=np("apple", lexicon.A), indirect=CHILD, time=TODAY),
        "The man gives an apple to the child today.", "Der Mann gibt dem Kind heute einen Apfel.",
    ),
    "recipient first in English": (
        _main(subject=MAN, verb=GIVE, direct=np("apple"), indirect=CHILD, recipient_first=True),
        "The man gives the child the apple.", "Der Mann gibt dem Kind den Apfel.",
    ),
    "pronouns: accusative before dative": (
        _main(subject=SHE, verb=GIVE, tense=Tense.PAST, direct=IT, indirect=HE, time=YESTERDAY, front=Slot.TIME),
        "Yesterday she gave it to him.", "Gestern gab sie es ihm.",
    ),
    "dative verb": (
        _main(subject=THEY, verb=HELP, tense=Tense.PERFECT, direct=np("old farmer")),
        "They have helped the old farmer.", "Sie haben dem alten Bauern geholfen.",
    ),
    "where to: accusative": (
        _main(
            subject=SHE,
            verb=verb("lay", "legen"),
            tense=Tense.PAST,
            direct=np("key"),
            place=Prepositional(lexicon.ON.whither, np("table")),
        ),
        "She laid the key on the table.", "Sie legte den Schlüssel auf den Tisch.",
    ),
    "where: dative": (
        _main(subject=np("key", number=PLURAL), verb=lexicon.LIE, place=Prepositional(lexicon.ON.where, np("table"))),
        "The keys lie on the table.", "Die Schlüssel liegen auf dem Tisch.",
    ),
    "time, manner, place": (
        _main(subject=WE, verb=lexicon.TRAVEL, companion=lexicon.BY[0], place=lexicon.CITIES[0][1], time=TODAY),
        "We travel to Berlin by train today.", "Wir fahren heute mit dem Zug nach Berlin.",
    ),
    "reflexive verb": (
        _joined(
            Clause(ME, SLEEP),
            lexicon.BECAUSE,
            Clause(MAN, REMEMBER, oblique=Prepositional(REMEMBER.preposition, ME)),
        ),
        "I sleep because the man remembers me.", "Ich schlafe, weil sich der Mann an mich erinnert.",
    ),
    "relative clause, subject": (
        _main(subject=READER, verb=SLEEP, tense=Tense.FUTURE),
        "The man who reads the book will sleep.", "Der Mann, der das Buch liest, wird schlafen.",
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
    "relative clause, dative": (
        _main(
            subject=replace(
                np("woman", number=PLURAL),
                relative=Clause(HE, HELP, direct=relative(np("woman", number=PLURAL), human=True), front=Slot.DIRECT),
            ),
            verb=SLEEP,
        ),
        "The women whom he helps sleep.", "Die Frauen, denen er hilft, schlafen.",
    ),
    "relative clause, preposition": (
        _main(
            subject=replace(
                np("house"),
                relative=Clause(
                    WE,
                    lexicon.LIVE,
                    place=Prepositional(lexicon.PLACE_OF[noun("house")].at, relative(np("house"))),
                    front=Slot.PLACE,
                ),
            ),
            verb=lexicon.BE,
            predicate=Predicate(adjective("old"), very=True),
        ),
        "The house in which we live is very old.", "Das Haus, in dem wir wohnen, ist sehr alt.",
    ),
    "relative clause, whose": (
        _main(
            subject=replace(
                np("woman"), relative=Clause(np("dog", whose(np("woman"))), SLEEP, front=Slot.SUBJECT)
            ),
            verb=SLEEP,
        ),
        "The woman whose dog sleeps sleeps.", "Die Frau, deren Hund schläft, schläft.",
    ),
    "anaphora": (
        _joined(
            Clause(ANNA, BUY, direct=np("coat")),
            lexicon.BECAUSE,
            Clause(SHE, lexicon.NEED, direct=Pronoun(3, SINGULAR, Gender.MASCULINE, animate=False)),
        ),
        "Anna buys the coat because she needs it.", "Anna kauft den Mantel, weil sie ihn braucht.",
    ),
    "comparison": (
        _main(subject=np("dog"), verb=lexicon.BE, predicate=Predicate(adjective("big"), than=np("cat"))),
        "The dog is bigger than the cat.", "Der Hund ist größer als die Katze.",
    ),
    "age": (
        _main(subject=ANNA, verb=lexicon.BE, predicate=Predicate(adjective("old"), years=23)),
        "Anna is twenty-three years old.", "Anna ist dreiundzwanzig Jahre alt.",
    ),
    "weather": (
        _joined(Clause(ME, SLEEP), lexicon.WHILE, Clause(IT, lexicon.WEATHER[0])),
        "I sleep while it is raining.", "Ich schlafe, während es regnet.",
    ),
    "yes-no question": (
        Sentence(Clause(YOU, OPEN, direct=np("door")), Form.QUESTION),
        "Do you open the door?", "Machen Sie die Tür auf?",
    ),
    "question about an object": (
        Sentence(Clause(ANNA, HELP, Tense.PAST, direct=Who(), front=Slot.DIRECT), Form.QUESTION),
        "Whom did Anna help?", "Wem half Anna?",
    ),
    "which": (
        Sentence(
            Clause(HE, READ, Tense.PERFECT, direct=np("long novel", lexicon.WHICH), front=Slot.DIRECT), Form.QUESTION
        ),
        "Which long novel has he read?", "Welchen langen Roman hat er gelesen?",
    ),
    "indirect question": (
        Sentence(
            Clause(
                SHE,
                lexicon.ASK,
                embedded=Embedded(Clause(MAN, GET_UP, time=lexicon.WHEN, front=Slot.TIME), Form.SUBORDINATE),
            )
        ),
        "She asks when the man gets up.", "Sie fragt, wann der Mann aufsteht.",
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
    "coordination": (
        Sentence(Clause(HE, SLEEP), Form.MAIN, lexicon.BUT, Clause(READER, SLEEP, negated=True)),
        "He sleeps, but the man who reads the book does not sleep.",
        "Er schläft, aber der Mann, der das Buch liest, schläft nicht.",
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
    assert realise(plan) == (english, german_sentence)


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
    english, german_sentence, alignment = realise_aligned(SENTENCES[phenomenon][0])
    words = [[word.strip(".,?") for word in side.split()] for side in (english, german_sentence)]
    found = [
        (words[0][src], mark, words[1][tgt]) for mark, links in zip("=~", alignment, strict=True) for src, tgt in links
    ]
    wanted = [re.fullmatch(r"(\S+)([=~])(\S+)", link).groups() for link in LINKS[phenomenon].split()]
    assert sorted(found) == sorted(wanted)


def test_a_time_span_is_linked_across_its_order():
    plan = _main(subject=ANNA, verb=SLEEP, tense=Tense.PAST, time=PhraseSampler(Chooser(1)).span(past=True))
    english, german_sentence, alignment = realise_aligned(plan)
    assert english.endswith(" ago.")
    assert german_sentence.split()[2] == "vor"
    assert alignment.sure == ((0, 0), (1, 1), (2, 3), (3, 4), (4, 2))


def test_an_empty_front_is_refused():
    with pytest.raises(ValueError, match="TIME"):
        realise(Sentence(Clause(ME, SLEEP, front=Slot.TIME)))
