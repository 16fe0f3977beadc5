"""What translations begin with, line by line."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from itertools import islice

from dstransformer.errors import DataError

logger = logging.getLogger(__name__)


def take_prefixes(prefixes: Iterator[str], count: int, first: int) -> list[str]:
    """The prefixes of the next ``count`` lines, of which ``first`` is the number of the first.

    Raises:
        DataError: There are fewer.
    """
    taken = list(islice(prefixes, count))
    if len(taken) < count:
        raise DataError(f"there is no prefix for line {first + len(taken)}: --prefix-file needs one for every line")
    return taken


def warn_of_prefixes_left(prefixes: Iterator[str], lines: int) -> None:
    """Warn if there is a prefix after that of the last line: they may be those of another text.

    Raises:
        DataError: What follows is not text.
    """
    if next(prefixes, None) is not None:
        logger.warning(
            "--prefix-file has more lines than the text, which has %s: do they belong together?", f"{lines:,}"
        )
