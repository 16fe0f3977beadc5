"""A look at some pairs of a source before training: are the sides in the right languages, and plain text?"""

from collections.abc import Sequence

import pyarrow as pa

from data_prep.sources.opening import ENTITY, QUOTED, Part
from dstransformer.errors import DataError
from dstransformer.io.glance import Sample, judge_languages

#: Above these shares of the pairs, text is taken for escaped (pages about HTML have entities too), or for quoted: both
#: sides of a pair (so is direct speech), or one with doubled quotes inside (which only tables have).
_ESCAPED, _QUOTED, _DOUBLED = 0.02, 0.5, 0.01


def look_at(part: Part, name: str, table: pa.Table) -> list[str]:
    """Compare text of a source, which messages call ``name``, with its languages, and with plain text.

    Returns:
        A warning with figures for each thing that is suspicious.

    Raises:
        DataError: Neither side is in the script of its language.
    """
    codes = part.languages
    if part.options.source == "toy" or codes[1] == "tree" or not table.num_rows:
        return []
    src, tgt = (table[side].to_pylist() for side in ("src", "tgt"))
    warnings = _judge_form(name, src, tgt)
    if codes[0] == codes[1]:  # text of one language
        return warnings
    if src == tgt and len(src) > 1:
        return [f"the sides of {name} are the same text: is one file given for both?", *warnings]
    try:
        languages = judge_languages(name, Sample(src, codes[0]), Sample(tgt, codes[1]))
    except DataError as error:
        raise DataError(f"{error}; correct --src-lang and --tgt-lang") from None
    return [languages, *warnings] if languages else warnings


def _judge_form(name: str, src: Sequence[str], tgt: Sequence[str]) -> list[str]:
    pairs = [*zip(src, tgt, strict=True)]
    entities = [entity for pair in pairs if (entity := ENTITY.search("\n".join(pair)))]
    quoted = [[field for field in pair if QUOTED.fullmatch(field)] for pair in pairs]
    full = sum(len(fields) == 2 for fields in quoted) / len(pairs)
    doubled = sum(any('""' in field[1:-1] for field in fields) for fields in quoted) / len(pairs)
    warnings = []
    if (share := len(entities) / len(pairs)) > _ESCAPED:
        warnings.append(
            f"{share:.0%} of the pairs of {name} hold entities such as {entities[0][0]}: --unescape html writes the "
            "characters"
        )
    if (share := max(full, doubled)) > _QUOTED or doubled > _DOUBLED:
        warnings.append(f"{share:.0%} of the pairs of {name} are in quotes, as in a table: --unquote takes them off")
    return warnings
