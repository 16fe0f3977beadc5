"""The options of ``dst evaluate``, and checks of their combinations."""

from __future__ import annotations

import argparse

from dstransformer.cli.options import TOKENIZERS, file, folder
from dstransformer.errors import UserError
from dstransformer.io.command import CommandParser

#: Seconds between two checks of ``--follow`` for a new checkpoint.
INTERVAL = 15.0

#: Upper bound of ``--interval``.
MAX_INTERVAL = 86_400.0

#: Options of the search, which do not apply to files of outputs.
_SEARCH = (
    "beam",
    "length_penalty",
    "max_input_tokens",
    "long",
    "min_tokens",
    "max_extra_tokens",
    "batch_tokens",
    "prune",
    "device",
    "precision",
    "to",
)


def add_options(parser: CommandParser) -> None:
    """Add the options of the command, except those of the search."""
    parser.add_argument(
        "--task", choices=("translation", "parsing"), default="translation", help="what is scored (translation)"
    )
    _add_texts(parser)
    _add_following(parser)
    parser.add_argument(
        "--gold", type=file, metavar="TREES", help="parsing: gold trees, a .mrg file, a folder or a pattern"
    )
    parser.add_argument(
        "--trees",
        type=file,
        metavar="TREES",
        help="parsing: any parser's trees of the same sentences, in place of BUNDLE",
    )
    parser.add_argument(
        "--tags",
        choices=("parsed", "punctuation", "gold"),
        help="parsing: the parser's tags decide what is punctuation, or the gold tags do, or all tags are replaced by "
        "the gold ones (punctuation for BUNDLE, parsed for --trees)",
    )
    parser.add_argument("--output", type=file, metavar="FILE", help="file for the outputs, gzipped if it ends in .gz")
    parser.add_argument("--json", action="store_true", help="print the scores as JSON")


def _add_texts(parser: CommandParser) -> None:
    parser.add_argument(
        "--src", type=file, action="append", metavar="FILE", help="source text; once for each test set, with its --ref"
    )
    parser.add_argument(
        "--ref",
        type=file,
        action="append",
        metavar="FILE",
        help="reference translations, line by line; may be repeated",
    )
    parser.add_argument(
        "--test-set",
        metavar="NAME,…",
        help="test sets by name: sacrebleu's, if in its cache (wmt14,wmt13), or from a folder in the layout in "
        "which they are published (flores200:DIR, flores200/dev:DIR, ntrex:DIR, wmt24pp:DIR)",
    )
    parser.add_argument(
        "--langpair",
        metavar="SRC-TGT",
        help="languages of the test sets, such as en-de (those of the first BUNDLE)",
    )
    parser.add_argument(
        "--tokenize",
        choices=TOKENIZERS,
        help="sacrebleu's tokenizer for BLEU (auto: by the target language: zh, ja-mecab, ko-mecab, flores200, 13a)",
    )
    parser.add_argument(
        "--systems",
        type=file,
        nargs="+",
        action="append",
        metavar="FILE",
        help="translations of other systems to score beside BUNDLE or instead; once for each test set, in their order",
    )
    parser.add_argument(
        "--significance",
        choices=("bootstrap", "randomisation"),
        help="test every system against the first: paired bootstrap resampling or approximate randomisation",
    )
    parser.add_argument(
        "--resamples", type=int, metavar="N", help="samples of that test (1000 for bootstrap, 10000 for randomisation)"
    )
    parser.add_argument("--seed", type=int, metavar="N", help="seed of that test (12345, as in sacrebleu)")
    parser.add_argument(
        "--comet", type=file, metavar="PATH", help="also COMET, by a downloaded model; see --comet-python"
    )
    parser.add_argument(
        "--comet-python",
        type=file,
        metavar="PYTHON",
        help="the Python of an environment with the package unbabel-comet, which cannot be installed in this one",
    )
    parser.add_argument(
        "--track", action="store_true", help="put the scores into the MLflow run in which BUNDLE was trained"
    )


def _add_following(parser: CommandParser) -> None:
    parser.add_argument(
        "--follow",
        type=folder,
        metavar="RUN",
        help="evaluate every new checkpoint of RUN until it has finished, on --src and --ref or on its validation set; "
        "on a CPU unless --device says otherwise",
    )
    parser.add_argument(
        "--interval", type=float, metavar="S", help=f"--follow: seconds between two checks ({INTERVAL:g})"
    )


_TEXTS = {"src", "ref", "test_set", "langpair", "systems", "significance", "resamples", "seed", "track"}
_TEXTS |= {"comet", "comet_python", "to", "tokenize"}
_TAKEN = {
    "translation": {"bundle", "output", "follow", "interval"} | _TEXTS,
    "parsing": {"bundle", "gold", "trees", "tags", "output"},
}


def check_options(options: argparse.Namespace) -> None:
    """Check that the options fit the task and each other.

    Raises:
        UserError: An option is missing, belongs to the other task, or contradicts another.
    """
    other = "translation" if options.task == "parsing" else "parsing"
    values = {name: getattr(options, name) for name in _TAKEN[other] | _TAKEN[options.task]}
    given = {name for name, value in values.items() if value is not None and value is not False and value != []}
    surplus = [_option(name) for name in sorted(given - _TAKEN[options.task])]
    if surplus:
        raise UserError(f"--task {options.task} does not take {surplus[0]}, which is for --task {other}")
    (_check_parsing if options.task == "parsing" else _check_translation)(options, given)


def _check_translation(options: argparse.Namespace, given: set[str]) -> None:
    following = "follow" in given
    missing = [] if following or given & {"bundle", "systems"} else ["BUNDLE or --systems"]
    if not following and not given & {"src", "ref", "test_set"}:
        missing.append("--src and --ref, or --test-set (a parser: --task parsing --gold TREES)")
    if "ref" in given and "src" not in given and (given & {"bundle", "comet"} or following):
        missing.append("--src")
    if "src" in given and "ref" not in given:
        missing.append("--ref")
    if missing:
        raise UserError(f"--task translation needs {', '.join(dict.fromkeys(missing))}; see `dst evaluate --help`")
    apart = {"bundle", "systems", "significance", "comet", "output"} if following else set()
    if several := sorted(map(_option, given & apart)):
        raise UserError(f"--follow and {several[0]} do not go together: leave one out")
    systems = len(options.bundle or []) + len((options.systems or [[]])[0])
    if "interval" in given and not (following and 0 < options.interval <= MAX_INTERVAL):
        raise UserError(
            f"--interval is for --follow, in seconds, more than 0 and at most {MAX_INTERVAL:,.0f}, not "
            f"{options.interval:g}"
        )
    if not following and "bundle" not in given and (useless := _search_options(options)):
        raise UserError(f"{_option(useless[0])} is for a BUNDLE: files of translations are only scored")
    if unused := sorted(given & {"resamples", "seed"} if "significance" not in given else ()):
        raise UserError(f"--{unused[0]} is for --significance")
    if "significance" in given and systems < 2:
        raise UserError("--significance compares systems: name another BUNDLE, or --systems")
    if "comet_python" in given and "comet" not in given:
        raise UserError("--comet-python is for --comet")
    if "track" in given and not following and not given & {"bundle"}:
        raise UserError("--track needs a BUNDLE: files of translations belong to no run")
    if "output" in given and (systems > 1 or "bundle" not in given):
        raise UserError("--output is for the translations of one BUNDLE on one test set")


def _check_parsing(options: argparse.Namespace, given: set[str]) -> None:
    missing = [] if "gold" in given else ["--gold"]
    if not given & {"bundle", "trees"}:
        missing.append("BUNDLE or --trees")
    if missing:
        raise UserError(f"--task parsing needs {', '.join(missing)}; see `dst evaluate --help`")
    if len(options.bundle or []) > 1:
        raise UserError("--task parsing takes one BUNDLE")
    if options.trees is not None and (unused := _search_options(options)):
        raise UserError(f"--trees and {_option(unused[0])} do not go together: these trees are only scored")
    if options.trees is not None and given & {"bundle", "output"}:
        both = "BUNDLE" if "bundle" in given else "--output"
        raise UserError(f"--trees and {both} do not go together: score either these trees or those of a bundle")


def _search_options(options: argparse.Namespace) -> list[str]:
    return [name for name in _SEARCH if getattr(options, name) is not None]


def _option(name: str) -> str:
    return "BUNDLE" if name == "bundle" else f"--{name.replace('_', '-')}"
