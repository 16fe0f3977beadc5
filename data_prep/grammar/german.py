"""German endings as tables: what articles, adjectives and relative pronouns look like by case and gender."""

from typing import Literal

#: Nominative, accusative, dative, genitive.
Case = Literal["nom", "acc", "dat", "gen"]

#: Masculine, neuter, feminine, and the plural, which is the same for all three.
Gender = Literal["m", "n", "f", "p"]


def _table(rows: str) -> dict[tuple[str, str], str]:
    """Read a table with a line for each case; "-" is the empty ending."""
    genders, *lines = map(str.split, rows.strip().splitlines())
    return {
        (case, gender): form.strip("-") for case, *forms in lines for gender, form in zip(genders, forms, strict=True)
    }


ARTICLE = _table("""
          m     n     f     p
    nom  der   das   die   die
    acc  den   das   die   die
    dat  dem   dem   der   den
    gen  des   des   der   der
""")
DIESER = _table("""
          m     n     f     p
    nom  -er   -es   -e    -e
    acc  -en   -es   -e    -e
    dat  -em   -em   -er   -en
    gen  -es   -es   -er   -er
""")
EIN = DIESER | {("nom", "m"): "", ("nom", "n"): "", ("acc", "n"): ""}
NONE = dict.fromkeys(DIESER, "")

WEAK = _table("""
          m     n     f     p
    nom  -e    -e    -e    -en
    acc  -en   -e    -e    -en
    dat  -en   -en   -en   -en
    gen  -en   -en   -en   -en
""")
MIXED = WEAK | {("nom", "m"): "er", ("nom", "n"): "es", ("acc", "n"): "es"}
STRONG = DIESER | {("gen", "m"): "en", ("gen", "n"): "en"}

#: The endings of a determiner, and of adjectives behind it: they show the more, the less it does.
DECLENSIONS = {
    "der": (ARTICLE, WEAK),  # der alte Hund
    "dieser": (DIESER, WEAK),  # dieser alte Hund, alle alten Hunde
    "ein": (EIN, MIXED),  # ein alter Hund, seine alten Hunde
    "viele": (DIESER, STRONG),  # viele alte Hunde
    "zwei": (NONE, STRONG),  # zwei alte Hunde
}

#: A preposition and an article that become one word.
CONTRACTIONS = {("in", "dem"): "im", ("in", "das"): "ins", ("von", "dem"): "vom"}
