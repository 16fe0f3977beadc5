"""Options as the fields of a class."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import pytest

from dstransformer.errors import UserError
from dstransformer.io.command import CommandParser
from dstransformer.io.flags import Options, argument, option


def even(text: str) -> int:
    return int(text) // 2 * 2


class Shared(Options):
    name: str = option("a name", default="none")


class Given(Shared):
    source: Path = argument("SOURCE", "by its place")
    more: Sequence[Path] = argument("MORE", "any number", default=())
    size: Annotated[int, even] | None = option("checked", "N")
    sizes: Sequence[int] | None = option("several", "N")
    kind: Literal["a", "b"] = option("one of two", default="a")
    tags: Sequence[str] = option("repeated", flag="--tag", action="append", default=())
    fast: bool = option("a switch", one_of="speed", required=True)
    slow_down: bool = option("another", one_of="speed")
    computed: int = 3


def parse(*words: str) -> Given:
    parser = CommandParser(prog="test")
    Given.add_to(parser)
    return Given.of(parser.parse_args(words))


def test_options_have_the_types_of_their_fields() -> None:
    few = Given(source=Path("x"), more=[], tags=[], fast=True, slow_down=False)
    assert parse("x", "--fast") == few
    words = "x y z --size 5 --sizes 1 2 --kind b --tag t --tag u --slow-down --name n"
    assert parse(*words.split()) == Given(
        source=Path("x"),
        more=[Path("y"), Path("z")],
        size=4,
        sizes=[1, 2],
        kind="b",
        tags=["t", "u"],
        fast=False,
        slow_down=True,
        name="n",
    )


@pytest.mark.parametrize(("words", "named"), [
    ("--fast", "SOURCE"), ("x", "--slow-down"), ("x --fast --slow-down", "--fast"), ("x --fast --kind c", "'c'"),
    ("x --fast --size many", "--size"),
])  # fmt: skip
def test_what_is_missing_or_wrong_is_named(words: str, named: str) -> None:
    with pytest.raises(UserError, match=named):
        parse(*words.split())
