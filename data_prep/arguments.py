"""The options of ``dst-prep`` and the values that each may have."""

import argparse
import math
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from dstransformer.errors import UserError

Number = TypeVar("Number", int, float)

_LANGUAGE = re.compile(r"[A-Za-z]{2,8}([-_][A-Za-z0-9]{1,8})*")


def _whole(low: int, high: int) -> Callable[[str], int]:
    """The type of an option: a whole number in these bounds."""
    read = _number(int, lambda value: value >= low, f"a whole number of {low} or more")

    def read_bounded(text: str) -> int:
        value = read(text)
        if value > high:
            raise argparse.ArgumentTypeError(f"{text[:40]!r} is too large: give at most {high}")
        return value

    return read_bounded


def _number(kind: Callable[[str], Number], allows: Callable[[Number], bool], wanted: str) -> Callable[[str], Number]:
    """The type of an option: a number that ``allows`` agrees to, which is ``wanted`` in words."""

    def read(text: str) -> Number:
        try:
            value = kind(text)
        except (ValueError, OverflowError):
            value = None
        if value is None or not allows(value):
            raise argparse.ArgumentTypeError(f"{text[:40]!r} is not {wanted}")
        return value

    return read


_count = _whole(0, 10**9)
_positive = _whole(1, 10**9)
_length = _whole(1, 10**6)
_pieces = _whole(1, 10**7)
_pairs = _whole(1, 10**7)
_seed = _whole(0, 2**63 - 1)
_processes = _whole(1, 1024)
_ratio = _number(float, lambda value: 1 <= value < math.inf, "a number of 1 or more")
_share = _number(float, lambda value: 0.98 <= value <= 1, "a number from 0.98 to 1")  # SentencePiece's own bounds


def language(text: str) -> str:
    """A language code such as ``en``, ``pt-BR`` or ``zho_Hans``."""
    if not _LANGUAGE.fullmatch(text) or len(text) > 35:
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is not a language code such as en, pt-BR or zho_Hans")
    return text


def path(text: str) -> Path:
    """A file or a folder; an empty name, as of an unset variable, would be the working folder."""
    if not text:
        raise argparse.ArgumentTypeError("the name is empty; is a variable unset?")
    return Path(text)


def folder(text: str) -> Path:
    """A folder that Arrow files are read from or written to, which takes a name in UTF-8."""
    try:
        os.path.realpath(text).encode()
    except UnicodeEncodeError:
        raise argparse.ArgumentTypeError(f"{text!r}, in full, is not a name in UTF-8: choose or rename it") from None
    return path(text)


class _Once(argparse.Action):
    """An input that is given twice would lose the first."""

    def __call__(self, _: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, *__: Any) -> None:
        """See `argparse.Action`."""
        if getattr(namespace, self.dest) is not None:
            raise argparse.ArgumentError(self, "given twice; join the files first, for example with cat")
        setattr(namespace, self.dest, values)


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line; ``--help`` has the usage. Options are not shortened."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**{"allow_abbrev": False, **given})

    def error(self, message: str) -> NoReturn:
        """A wrong option or value."""
        self.exit(UserError.exit_code, f"dst-prep: error: {' '.join(message.split())}; see `{self.prog} --help`\n")


def add_source(parser: argparse.ArgumentParser) -> None:
    """What is read."""
    group = parser.add_argument_group("source")
    group.add_argument("--source", choices=("toy", "files", "wmt14"), required=True, help="where the text comes from")
    group.add_argument("--src-lang", type=language, metavar="CODE", help="source language, for example en")
    group.add_argument("--tgt-lang", type=language, metavar="CODE", help="target language, for example de")
    group.add_argument("--seed", type=_seed, metavar="N", help="of toy sentences and held-out pairs (default: 1)")
    group.add_argument("--valid-size", type=_count, metavar="N", help="toy: validation pairs; files: pairs held out")
    group.add_argument("--test-size", type=_count, metavar="N", help="the same for the test set")

    group = parser.add_argument_group("source toy: an English-German grammar")
    group.add_argument("--pairs", type=_pairs, metavar="N", help="training pairs (default: 100000)")

    group = parser.add_argument_group("source files, plain or gzipped: two texts a split, one sentence per line")
    for prefix, split in (("", "training"), ("valid-", "validation"), ("test-", "test")):
        for side, what in (("src", "source"), ("tgt", "target")):
            flag = f"--{prefix}{side}"
            group.add_argument(flag, type=path, action=_Once, metavar="FILE", help=f"{what} side of the {split} text")

    group = parser.add_argument_group("source files: or one .tsv, .jsonl (also .gz) or .parquet a split")
    for flag, split in (("--train", "training"), ("--valid", "validation"), ("--test", "test")):
        group.add_argument(flag, type=path, action=_Once, metavar="FILE", help=f"both sides of the {split} text")

    group = parser.add_argument_group("source wmt14")
    group.add_argument("--pair", choices=("de-en", "fr-en"), help="of languages (default: de-en)")
    group.add_argument("--revision", help="of the hub's data set (default: main)")
    group.add_argument("--hub-path", type=folder, metavar="DIR", help="a local copy in the hub's layout")
    group.add_argument("--cache-dir", type=folder, metavar="DIR", help="where `datasets` keeps downloads")
    group.add_argument("--offline", action="store_true", default=None, help="use the cache only")


def add_clean(parser: argparse.ArgumentParser) -> None:
    """What happens to the training text."""
    group = parser.add_argument_group("cleaning of the training text")
    group.add_argument("--normalise", choices=("nfkc", "none"), default="nfkc", help="Unicode form (default: nfkc)")
    group.add_argument("--max-words", type=_positive, default=250, metavar="N", help="on either side (default: 250)")
    group.add_argument("--max-ratio", type=_ratio, default=4.0, metavar="R", help="longer to shorter side (default: 4)")
    group.add_argument("--dedup", action=argparse.BooleanOptionalAction, default=True, help="drop repeated pairs")
    group.add_argument(
        "--drop-overlap",
        action=argparse.BooleanOptionalAction,
        default=False,
        help="drop training pairs whose source sentence is in the validation or test set (default: only count them)",
    )


def add_vocab(parser: argparse.ArgumentParser) -> None:
    """The tokenizer."""
    group = parser.add_argument_group("vocabulary, joint for both languages")
    group.add_argument("--tokenizer", choices=("bpe", "unigram"), help="kind (default: bpe; unigram for wmt14 fr-en)")
    group.add_argument(
        "--vocab-size",
        type=_pieces,
        metavar="N",
        help="pieces, special ones included (default: 37000; 32000 for wmt14 fr-en; 2000 for the toy source)",
    )
    group.add_argument(
        "--tokenizer-sample",
        type=_positive,
        default=5_000_000,
        metavar="N",
        help="at most so many lines (default: 5000000)",
    )
    group.add_argument("--tokenizer-seed", type=_seed, default=1, metavar="N", help="of that sample (default: 1)")
    group.add_argument(
        "--character-coverage",
        type=_share,
        metavar="SHARE",
        help="of characters that get a piece; the rest is spelled in bytes (default: 1.0; 0.9998 for wmt14)",
    )
    group.add_argument("--tokenizer-model", type=path, metavar="FILE", help="reuse this tokenizer, train none")


def add_encode(parser: argparse.ArgumentParser) -> None:
    """The corpus's shards."""
    group = parser.add_argument_group("encoding")
    group.add_argument(
        "--max-tokens", type=_length, default=256, metavar="N", help="longer training pairs are dropped (256)"
    )
    group.add_argument(
        "--shard-rows", type=_positive, default=1_000_000, metavar="N", help="pairs per shard (default: 1000000)"
    )


def add_out(parser: argparse.ArgumentParser) -> None:
    """Where the corpus goes."""
    parser.add_argument("--out", type=folder, required=True, metavar="CORPUS", help="the corpus to make")
    parser.add_argument("--overwrite", action="store_true", help="replace another corpus at CORPUS")


def add_workers(parser: argparse.ArgumentParser) -> None:
    """How many processes."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    parser.add_argument("--workers", type=_processes, default=cores, metavar="N", help="processes (default: all cores)")
