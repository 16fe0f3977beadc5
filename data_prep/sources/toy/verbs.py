"""Verbs, modals and conjunctions of the grammar."""

from data_prep.sources.toy import english, german
from data_prep.sources.toy.entries import Adverbial, Modal, Preposition, Verb
from data_prep.sources.toy.features import Case, Frame, Sort

_ANYTHING = Sort.BEING | Sort.TEXT | Sort.GOODS | Sort.PLACE
_WARES = Sort.FOOD | Sort.TEXT | Sort.GOODS
_MOVABLE = Sort.PORTABLE | Sort.VESSEL | Sort.FURNITURE
QUICKLY, SLOWLY, LOUDLY, QUIETLY = (
    Adverbial("quickly", "schnell"),
    Adverbial("slowly", "langsam"),
    Adverbial("loudly", "laut"),
    Adverbial("quietly", "leise"),
)
_PACE = (QUICKLY, SLOWLY)
_VOLUME = (LOUDLY, QUIETLY)


def _verb(
    words: str,
    german_words: str,
    frame: Frame,
    subjects: Sort = Sort.PERSON,
    objects: Sort = Sort.NONE,
    *,
    case: Case = Case.ACCUSATIVE,
    preposition: Preposition | None = None,
    sein: bool = False,
    stative: bool = False,
    homograph: bool = False,
    manners: tuple[Adverbial, ...] = (),
) -> Verb:
    english_verb, german_verb = english.parse_verb(words), german.parse_verb(german_words, sein=sein)
    return Verb(english_verb, german_verb, frame, subjects, objects, case, preposition, stative, homograph, manners)


def _intransitive(
    words: str,
    german_words: str,
    subjects: Sort = Sort.PERSON,
    *,
    sein: bool = False,
    manners: tuple[Adverbial, ...] = (),
) -> Verb:
    return _verb(words, german_words, Frame.INTRANSITIVE, subjects, sein=sein, manners=manners)


def _transitive(
    words: str,
    german_words: str,
    objects: Sort,
    *,
    case: Case = Case.ACCUSATIVE,
    subjects: Sort = Sort.PERSON,
    sein: bool = False,
    stative: bool = False,
    homograph: bool = False,
    manners: tuple[Adverbial, ...] = (),
) -> Verb:
    return _verb(
        words,
        german_words,
        Frame.TRANSITIVE,
        subjects,
        objects,
        case=case,
        sein=sein,
        stative=stative,
        homograph=homograph,
        manners=manners,
    )


def _dative(words: str, german_words: str, *, sein: bool = False, stative: bool = False) -> Verb:
    return _transitive(words, german_words, Sort.PERSON, case=Case.DATIVE, sein=sein, stative=stative)


def _ditransitive(words: str, german_words: str, objects: Sort) -> Verb:
    return _verb(words, german_words, Frame.DITRANSITIVE, Sort.PERSON, objects)


def _oblique(
    words: str, german_words: str, objects: Sort, governed: str, case: Case = Case.ACCUSATIVE, *, stative: bool = False
) -> Verb:
    english_word, german_word = governed.split("/")
    preposition = Preposition(english_word, german_word, case)
    return _verb(words, german_words, Frame.OBLIQUE, Sort.PERSON, objects, preposition=preposition, stative=stative)


INTRANSITIVE = (
    _intransitive("sleep slept slept", "schlafen schläft schlief geschlafen", Sort.BEING),
    _intransitive("laugh", "lachen", manners=_VOLUME),
    _intransitive("cry", "weinen", manners=_VOLUME),
    _intransitive("sing sang sung", "singen singt sang gesungen", manners=_VOLUME),
    _intransitive("dance", "tanzen"),
    _intransitive("work", "arbeiten", manners=_PACE),
    _intransitive("swim swam swum", "schwimmen schwimmt schwamm geschwommen", Sort.BEING, sein=True, manners=_PACE),
    _intransitive("get +up got got", "auf|stehen steht stand gestanden", sein=True),
    _intransitive("fall +asleep fell fallen", "ein|schlafen schläft schlief geschlafen", Sort.BEING, sein=True),
    _intransitive("wake +up woke woken", "auf|wachen", Sort.BEING, sein=True),
    _intransitive("arrive", "an|kommen kommt kam gekommen", Sort.PERSON | Sort.TRANSPORT, sein=True),
    _intransitive("depart", "ab|fahren fährt fuhr gefahren", Sort.TRANSPORT, sein=True),
)
TRANSITIVE = (
    _transitive("see saw seen", "sehen sieht sah gesehen", _ANYTHING, subjects=Sort.BEING),
    _transitive("hear heard heard", "hören", Sort.BEING, subjects=Sort.BEING),
    _transitive("find found found", "finden findet fand gefunden", Sort.PORTABLE | Sort.ANIMAL),
    _transitive("look :for", "suchen", Sort.PORTABLE | Sort.BEING),
    _transitive("lose lost lost", "verlieren verliert verlor verloren", Sort.PORTABLE),
    _transitive("forget forgot forgotten", "vergessen vergisst vergaß vergessen", Sort.PORTABLE),
    _transitive("buy bought bought", "kaufen", _WARES),
    _transitive("sell sold sold", "verkaufen", _WARES),
    _transitive("order", "bestellen", Sort.FOOD | Sort.DRINK),
    _transitive("read read read", "lesen liest las gelesen", Sort.TEXT, homograph=True, manners=_PACE),
    _transitive("write wrote written", "schreiben schreibt schrieb geschrieben", Sort.TEXT, manners=_PACE),
    _transitive("eat ate eaten", "essen isst aß gegessen", Sort.FOOD, subjects=Sort.BEING, manners=_PACE),
    _transitive("drink drank drunk", "trinken trinkt trank getrunken", Sort.DRINK, manners=_PACE),
    _transitive("cook", "kochen", Sort.COOKABLE),
    _transitive("visit", "besuchen", Sort.PERSON | Sort.BUILDING),
    _transitive("meet met met", "treffen trifft traf getroffen", Sort.PERSON),
    _transitive("know knew known", "kennen kennt kannte gekannt", Sort.PERSON | Sort.PLACE, stative=True),
    _transitive("love", "lieben", Sort.PERSON | Sort.ANIMAL, stative=True),
    _transitive("need", "brauchen", Sort.PORTABLE | Sort.DEVICE | Sort.VEHICLE | Sort.FURNITURE, stative=True),
    _transitive("repair", "reparieren", Sort.VEHICLE | Sort.DEVICE),
    _transitive("wash", "waschen wäscht wusch gewaschen", Sort.VEHICLE | Sort.CLOTHING | Sort.VESSEL),
    _transitive("draw drew drawn", "zeichnen zeichnet zeichnete gezeichnet", Sort.BEING | Sort.BUILDING),
    _transitive("carry", "tragen trägt trug getragen", _MOVABLE),
    _transitive("call", "an|rufen ruft rief gerufen", Sort.PERSON),
    _transitive("invite", "ein|laden lädt lud geladen", Sort.PERSON),
    _transitive("pick +up", "ab|holen", Sort.PERSON),
    _transitive("look :at", "an|sehen sieht sah gesehen", Sort.ANIMAL | Sort.GOODS | Sort.PLACE),
    _transitive("open", "auf|machen", Sort.OPENABLE, manners=_PACE),
    _transitive("close", "zu|machen", Sort.OPENABLE, manners=_PACE),
    _transitive("turn +on", "ein|schalten", Sort.DEVICE),
    _transitive("turn +off", "aus|schalten", Sort.DEVICE),
    _transitive("put put put +on", "an|ziehen zieht zog gezogen", Sort.CLOTHING, homograph=True),
    _transitive("throw threw thrown +away", "weg|werfen wirft warf geworfen", Sort.PORTABLE | Sort.SNACK),
    _transitive("take took taken +along", "mit|nehmen nimmt nahm genommen", Sort.PORTABLE | Sort.BEING),
    _transitive("tidy +up", "auf|räumen", Sort.ROOM),
    _dative("help", "helfen hilft half geholfen"),
    _dative("thank", "danken"),
    _dative("answer", "antworten"),
    _dative("follow", "folgen", sein=True),
    _dative("trust", "vertrauen", stative=True),
    _dative("listen :to", "zu|hören"),
    _dative("congratulate", "gratulieren"),
)
DITRANSITIVE = (
    _ditransitive("give gave given", "geben gibt gab gegeben", Sort.PORTABLE | Sort.SNACK),
    _ditransitive("show showed shown", "zeigen", Sort.TEXT | Sort.GOODS | Sort.PLACE),
    _ditransitive("send sent sent", "schicken", Sort.PORTABLE),
    _ditransitive("lend lent lent", "leihen leiht lieh geliehen", Sort.TEXT | Sort.TOOL | Sort.VEHICLE),
    _ditransitive("bring brought brought", "bringen bringt brachte gebracht", Sort.PORTABLE | Sort.VESSEL | Sort.FOOD),
)
OBLIQUE = (
    _oblique("wait", "warten", Sort.PERSON | Sort.TRANSPORT, "for/auf"),
    _oblique("think thought thought", "denken denkt dachte gedacht", Sort.PERSON, "of/an"),
    _oblique("talk", "sprechen spricht sprach gesprochen", Sort.PERSON | Sort.TEXT | Sort.AREA, "about/über"),
    _oblique("dream", "träumen", Sort.PERSON | Sort.VEHICLE | Sort.PLACE, "of/von", Case.DATIVE),
    _oblique("play", "spielen", Sort.PERSON | Sort.ANIMAL, "with/mit", Case.DATIVE),
    _oblique("be was been +interested", "sich interessieren", Sort.TEXT | Sort.BUILDING, "in/für", stative=True),
    _oblique("remember", "sich erinnern", Sort.PERSON | Sort.TEXT | Sort.PLACE, "/an", stative=True),
    _oblique("look +forward", "sich freuen", Sort.FOOD | Sort.TEXT, "to/auf", stative=True),
)
GO = _verb("go went gone", "gehen geht ging gegangen", Frame.MOTION, sein=True)
RUN = _verb("run ran run", "laufen läuft lief gelaufen", Frame.MOTION, Sort.BEING, sein=True, manners=_PACE)
COME = _verb("come came come", "kommen kommt kam gekommen", Frame.MOTION, sein=True)
TRAVEL = _verb("travel travelled travelled", "fahren fährt fuhr gefahren", Frame.MOTION, sein=True)
MOTION = (GO, GO, RUN, COME, TRAVEL, TRAVEL)
LIVE = _verb("live", "wohnen", Frame.POSITION, stative=True)
SIT = _verb("sit sat sat", "sitzen sitzt saß gesessen", Frame.POSITION, Sort.BEING)
STAND = _verb(
    "stand stood stood", "stehen steht stand gestanden", Frame.POSITION, Sort.BEING | Sort.VEHICLE | Sort.VESSEL
)
LIE = _verb("lie lay lain", "liegen liegt lag gelegen", Frame.POSITION, Sort.PORTABLE, stative=True, homograph=True)
POSITION = (LIVE, LIVE, SIT, STAND, LIE)
PLACEMENT = (
    _verb("lay laid laid", "legen", Frame.PLACEMENT, Sort.PERSON, Sort.PORTABLE),
    _verb("place", "stellen", Frame.PLACEMENT, Sort.PERSON, Sort.VESSEL | Sort.DEVICE),
)
BE = _verb("be was been", "sein ist war gewesen bin", Frame.COPULA, stative=True, sein=True)
WEATHER = (
    _verb("be was been +raining", "regnen regnet regnete geregnet", Frame.WEATHER, stative=True),
    _verb("be was been +snowing", "schneien", Frame.WEATHER, stative=True),
)
ALL_VERBS = (
    *INTRANSITIVE, *TRANSITIVE, *DITRANSITIVE, *OBLIQUE, GO, RUN, COME, TRAVEL, LIVE, SIT, STAND, LIE, *PLACEMENT, BE,
    *WEATHER,
)  # fmt: skip

_ACTIONS = (
    "buy", "order", "read", "write", "cook", "visit", "repair", "wash", "draw", "carry", "call", "invite", "pick",
    "look", "open", "close", "turn", "tidy", "help", "follow", "give", "show", "send", "bring", "lay", "place",
)  # fmt: skip
ACTIONS = tuple(  # what one can be asked to do, or try to do
    verb for verb in ALL_VERBS if verb.english.base in _ACTIONS and verb.frame is not Frame.OBLIQUE
)

INVOLUNTARY = tuple(  # what just happens, so that one hardly may, must or wants to do it
    verb for verb in ALL_VERBS if verb.english.base in ("see", "hear", "lose", "forget", "fall", "wake")
)
_COMING_TO_HAVE = ("look", "buy", "take", "repair", "wash")
_PARTING = ("sell", "lose", "forget", "throw")
WITH_NEED = tuple(v for v in TRANSITIVE if v.english.base in _COMING_TO_HAVE and v.english.preposition != "at")
WITHOUT_NEED = tuple(v for v in TRANSITIVE if v.english.base in _PARTING)
NEED = next(verb for verb in TRANSITIVE if verb.english.base == "need")

SAY = _intransitive("say said said", "sagen")
KNOW = _verb("know knew known", "wissen weiß wusste gewusst weiß", Frame.INTRANSITIVE, stative=True)
BELIEVE = _verb("believe", "glauben", Frame.INTRANSITIVE, stative=True)
HOPE = _verb("hope", "hoffen", Frame.INTRANSITIVE, stative=True)
ASK = _intransitive("ask", "fragen")
TRY = _intransitive("try", "versuchen")
FORGET = _intransitive("forget forgot forgotten", "vergessen vergisst vergaß vergessen")
PLAN = _verb("plan planned planned", "planen", Frame.INTRANSITIVE, stative=True)

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
