"""What counts as a space, for training text and for every text that is encoded later."""

import re

# Soft hyphen, zero-width space, direction marks and embeddings, word joiner, byte order mark. The zero-width joiner
# and non-joiner stay: emoji sequences, Persian and Indic scripts are spelled with them.
_INVISIBLE = re.compile("[\u00ad\u200b\u200e\u200f\u202a-\u202e\u2060\u2066-\u2069\ufeff]")
_CONTROL = re.compile("[\u0000-\u001f\u007f-\u009f\u2028\u2029]+")


def plain_spaces(text: str) -> str:
    """``text`` without invisible characters, with each run of control characters or line separators made a space."""
    if text.isprintable():  # as nearly all text is: none of these characters counts as printable
        return text
    return _CONTROL.sub(" ", _INVISIBLE.sub("", text))
