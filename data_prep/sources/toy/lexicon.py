"""Nouns, adjectives, article words, places and times of the grammar.

An English word has one German counterpart in its construction, so that every sentence has one translation.
"""

from data_prep.sources.toy import english, german
from data_prep.sources.toy.entries import Adjective, Adverbial, Determiner, Noun, Place, Preposition, Relation
from data_prep.sources.toy.features import Case, Gender, Sort
from data_prep.sources.toy.german import DEFINITE_ARTICLE, DER_ENDINGS, EIN_ENDINGS, MIXED, STRONG, WEAK

_NOUN_TABLE: tuple[tuple[Sort, str], ...] = (
    (
        Sort.PERSON,
        """
        man men          | der Mann Männer -es
        woman women      | die Frau Frauen
        student          | der Student Studenten -en
        tourist          | der Tourist Touristen -en
        farmer           | der Bauer Bauern -n
        baker            | der Bäcker Bäcker -s
        guest            | der Gast Gäste -es
        waitress         | die Kellnerin Kellnerinnen
        actress          | die Schauspielerin Schauspielerinnen
        """,
    ),
    (
        Sort.PERSON | Sort.YOUNG,
        """
        child children   | das Kind Kinder -es
        boy              | der Junge Jungen -n
        girl             | das Mädchen Mädchen -s
        """,
    ),
    (
        Sort.PERSON | Sort.KIN,
        """
        father           | der Vater Väter -s
        mother           | die Mutter Mütter
        brother          | der Bruder Brüder -s
        sister           | die Schwester Schwestern
        uncle            | der Onkel Onkel -s
        aunt             | die Tante Tanten
        friend           | der Freund Freunde -es
        neighbour        | der Nachbar Nachbarn -n
        teacher          | der Lehrer Lehrer -s
        doctor           | der Arzt Ärzte -es
        """,
    ),
    (
        Sort.ANIMAL | Sort.YOUNG,
        """
        dog              | der Hund Hunde -es
        cat              | die Katze Katzen
        horse            | das Pferd Pferde -es
        bird             | der Vogel Vögel -s
        bear             | der Bär Bären -en
        """,
    ),
    (
        Sort.SNACK | Sort.FOOD,
        """
        apple            | der Apfel Äpfel -s
        pear             | die Birne Birnen
        cake             | der Kuchen Kuchen -s
        tomato           | die Tomate Tomaten
        """,
    ),
    (
        Sort.SNACK | Sort.FOOD | Sort.COOKABLE,
        """
        egg              | das Ei Eier -es
        potato           | die Kartoffel Kartoffeln
        """,
    ),
    (
        Sort.TEXT,
        """
        book             | das Buch Bücher -es
        letter           | der Brief Briefe -es
        newspaper        | die Zeitung Zeitungen
        novel            | der Roman Romane -s
        poem             | das Gedicht Gedichte -es
        """,
    ),
    (
        Sort.CLOTHING,
        """
        coat             | der Mantel Mäntel -s
        shirt            | das Hemd Hemden -es
        dress            | das Kleid Kleider -es
        jacket           | die Jacke Jacken
        """,
    ),
    (
        Sort.VEHICLE,
        """
        car              | das Auto Autos -s
        bicycle          | das Fahrrad Fahrräder -es
        """,
    ),
    (
        Sort.TRANSPORT,
        """
        train            | der Zug Züge -es
        bus              | der Bus Busse -ses
        ship             | das Schiff Schiffe -es
        """,
    ),
    (
        Sort.DEVICE,
        """
        lamp             | die Lampe Lampen
        radio radios     | das Radio Radios -s
        computer         | der Computer Computer -s
        """,
    ),
    (
        Sort.VESSEL,
        """
        bottle           | die Flasche Flaschen
        glass            | das Glas Gläser -es
        plate            | der Teller Teller -s
        """,
    ),
    (
        Sort.FURNITURE | Sort.SURFACE | Sort.SHELTER,
        """
        table            | der Tisch Tische -es
        bed              | das Bett Betten -es
        bench            | die Bank Bänke
        """,
    ),
    (
        Sort.FURNITURE,
        """
        chair            | der Stuhl Stühle -es
        cupboard         | der Schrank Schränke -es
        """,
    ),
    (
        Sort.TOOL,
        """
        key              | der Schlüssel Schlüssel -s
        knife knives     | das Messer Messer -s
        umbrella         | der Regenschirm Regenschirme -es
        picture          | das Bild Bilder -es
        ball             | der Ball Bälle -es
        guitar           | die Gitarre Gitarren
        """,
    ),
    (
        Sort.OPENABLE,
        """
        door             | die Tür Türen
        window           | das Fenster Fenster -s
        suitcase         | der Koffer Koffer -s
        box              | die Kiste Kisten
        """,
    ),
    (Sort.SHELTER | Sort.LANDMARK, "tree | der Baum Bäume -es"),
)
_MASS_NOUN_TABLE: tuple[tuple[Sort, str], ...] = (
    (Sort.STUFF | Sort.FOOD, "bread | das Brot Brote -es\n cheese | der Käse Käse -s"),
    (
        Sort.STUFF | Sort.FOOD | Sort.COOKABLE,
        "soup | die Suppe Suppen\n meat | das Fleisch Fleisch -es\n rice | der Reis Reise -es",
    ),
    (
        Sort.STUFF | Sort.DRINK,
        """
        milk             | die Milch Milch
        coffee           | der Kaffee Kaffees -s
        tea              | der Tee Tees -s
        water            | das Wasser Wasser -s
        wine             | der Wein Weine -es
        """,
    ),
)


def _noun(entry: str, sorts: Sort, *, mass: bool = False) -> Noun:
    english_side, _, german_side = entry.partition("|")
    return Noun(english.parse_noun(english_side), german.parse_noun(german_side), sorts, mass)


def _at(words: str) -> Preposition:
    english_words, german_word = words.split("/")
    return Preposition(english_words, german_word, Case.DATIVE)


def _to(words: str) -> Preposition:
    english_words, german_word = words.split("/")
    return Preposition(english_words, german_word, Case.ACCUSATIVE)


_INSIDE = _at("in/in")
_PLACE_TABLE: tuple[tuple[Sort, Preposition, Preposition, bool, str], ...] = (
    (Sort.BUILDING | Sort.LANDMARK, _INSIDE, _to("into/in"), True, "house | das Haus Häuser -es"),
    (Sort.ROOM, _INSIDE, _to("into/in"), False, "garden | der Garten Gärten -s"),
    (Sort.ROOM, _INSIDE, _to("into/in"), False, "kitchen | die Küche Küchen"),
    (Sort.ROOM, _INSIDE, _to("into/in"), False, "office | das Büro Büros -s"),
    (Sort.AREA, _INSIDE, _to("into/in"), False, "forest | der Wald Wälder -es"),
    (Sort.AREA, _INSIDE, _to("to/in"), False, "park | der Park Parks -s"),
    (Sort.AREA, _INSIDE, _to("to/in"), True, "city | die Stadt Städte"),
    (Sort.AREA, _INSIDE, _to("to/in"), True, "village | das Dorf Dörfer -es"),
    (Sort.BUILDING | Sort.LANDMARK, _INSIDE, _to("to/in"), False, "school | die Schule Schulen"),
    (Sort.BUILDING | Sort.LANDMARK, _INSIDE, _to("to/in"), False, "church | die Kirche Kirchen"),
    (Sort.BUILDING | Sort.LANDMARK, _INSIDE, _to("to/in"), False, "museum | das Museum Museen -s"),
    (Sort.BUILDING | Sort.LANDMARK, _INSIDE, _to("to/in"), False, "restaurant | das Restaurant Restaurants -s"),
    (Sort.BUILDING | Sort.LANDMARK, _INSIDE, _to("to/in"), True, "hotel | das Hotel Hotels -s"),
    (Sort.BUILDING, _INSIDE, _to("to/in"), False, "hospital | das Krankenhaus Krankenhäuser -es"),
    (Sort.BUILDING, _at("at/an"), _at("to/zu"), False, "station | der Bahnhof Bahnhöfe -es"),
    (Sort.AREA, _at("at/auf"), _to("to/auf"), False, "market | der Markt Märkte -es"),
    (Sort.AREA, _at("at/an"), _to("to/an"), True, "lake | der See Seen -s"),
)
PLACES = tuple(Place(_noun(noun, sort), at, to, home) for sort, at, to, home, noun in _PLACE_TABLE)
PLACE_OF = {place.noun: place for place in PLACES}
NOUNS = (
    *(_noun(line, sorts) for sorts, table in _NOUN_TABLE for line in table.strip().splitlines()),
    *(_noun(line, sorts, mass=True) for sorts, table in _MASS_NOUN_TABLE for line in table.strip().splitlines()),
    *(place.noun for place in PLACES),
)
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

_THING = Sort.GOODS | Sort.OPENABLE
_ADJECTIVE_TABLE: tuple[tuple[Sort, str], ...] = (
    (Sort.BEING | _THING | Sort.PLACE | Sort.SNACK, "big groß bigger größer\n small klein smaller kleiner"),
    (Sort.BEING | _THING | Sort.PLACE | Sort.TEXT, "old alt older älter\n beautiful schön more_beautiful schöner"),
    (_THING | Sort.PLACE | Sort.TEXT, "new neu newer neuer"),
    (Sort.BEING, "young jung younger jünger\n strong stark stronger stärker"),
    (
        Sort.GOODS | Sort.STUFF | Sort.SNACK,
        "expensive teuer/teur more_expensive teurer\n cheap billig cheaper billiger",
    ),
    (
        Sort.PERSON,
        """
        rich reich richer reicher
        poor arm poorer ärmer
        friendly freundlich friendlier freundlicher
        clever klug cleverer klüger
        happy glücklich happier glücklicher
        famous berühmt
        sad traurig
        lazy faul
        """,
    ),
    (Sort.BEING, "tired müde/müd\n hungry hungrig\n ill krank"),
    (Sort.TEXT, "long lang longer länger\n short kurz shorter kürzer\n interesting interessant\n boring langweilig"),
    (Sort.VESSEL | Sort.FURNITURE | Sort.DEVICE | Sort.OPENABLE, "heavy schwer heavier schwerer"),
    (Sort.CLOTHING | Sort.VEHICLE | Sort.VESSEL | Sort.ROOM, "dirty schmutzig\n clean sauber"),
    (Sort.ROOM | Sort.BUILDING, "dark dunkel/dunkl darker dunkler"),
    (Sort.STUFF | Sort.TEXT, "good gut better besser"),
    (Sort.STUFF | Sort.SNACK, "fresh frisch"),
    (Sort.DRINK, "cold kalt colder kälter\n hot heiß"),
)
_COLOUR_TABLE = "red rot\n blue blau\n green grün\n black schwarz\n white weiß"


def _adjective(entry: str, sorts: Sort, *, colour: bool = False) -> Adjective:
    word, german_word, *degree = entry.replace("_", "\N{NO-BREAK SPACE}").split(" ")
    base, _, stem = german_word.partition("/")
    comparative = (degree[0].replace("\N{NO-BREAK SPACE}", " "), degree[1]) if degree else None
    return Adjective(word, base, stem or base, sorts, comparative, colour)


ADJECTIVES = (
    *(_adjective(line.strip(), sorts) for sorts, table in _ADJECTIVE_TABLE for line in table.strip().splitlines()),
    *(_adjective(line.strip(), _THING, colour=True) for line in _COLOUR_TABLE.splitlines()),
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


def _adverbials(table: str) -> tuple[Adverbial, ...]:
    return tuple(Adverbial(*(side.strip() for side in line.split("|"))) for line in table.strip().splitlines())


TIMES_PRESENT = _adverbials("today | heute\n now | jetzt\n in the evening | am Abend\n on Monday | am Montag")
TIMES_HABITUAL = _adverbials("every day | jeden Tag\n every morning | jeden Morgen\n in summer | im Sommer")
TIMES_PAST = _adverbials("yesterday | gestern\n last week | letzte Woche\n last year | letztes Jahr")
TIMES_PERFECT = _adverbials("today | heute\n this morning | heute Morgen\n this week | diese Woche")
TIMES_FUTURE = _adverbials("tomorrow | morgen\n next week | nächste Woche\n soon | bald\n on Friday | am Freitag")
FREQUENCIES = _adverbials("often | oft\n always | immer\n sometimes | manchmal\n never | nie")
FREQUENCIES_PERFECT = _adverbials("already | schon\n often | oft\n never | nie")
YET = Adverbial("yet", "noch")
WHEN, WHERE, WHY = _adverbials("when | wann\n where | wo\n why | warum")
