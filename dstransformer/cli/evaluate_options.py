"""The options of ``dst evaluate``, and checks of their combinations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from importlib import import_module
from pathlib import Path
from typing import Annotated, Literal

from dstransformer.cli.options import (
    ADDITIONS,
    BUNDLE_HELP,
    Command,
    File,
    Folder,
    Search,
    Target,
    Tokenizer,
    bundle_folder,
)
from dstransformer.errors import UserError
from dstransformer.io.flags import argument, option

#: Seconds between two checks of ``--follow`` for a new checkpoint, usually and at most.
INTERVAL, MAX_INTERVAL = 15.0, 86_400.0

_ADDED = import_module(ADDITIONS["evaluate"])

#: The modules of tasks besides translation, by the task: ``TaskOptions``, ``OPTIONS``, ``check_options`` and ``run``.
TASKS = {_ADDED.TASK: _ADDED}

#: Options of the search, which do not apply to files of outputs.
_SEARCH = (*(each.name for each in fields(Search)), "to", "engine")


class Evaluate(
    _ADDED.TaskOptions,  # type: ignore[misc,name-defined]
    Target,
    Search,
    Command,
    examples=("dst evaluate runs/en-de --test-set wmt14", "dst evaluate runs/en-de --src test.en --ref test.de"),
):
    """Translate test sets and score them with sacrebleu, or parse one and score its brackets."""

    bundle: Sequence[Annotated[Path, bundle_folder]] = argument("BUNDLE", BUNDLE_HELP, default=())
    engine: Literal["torch", "ct2"] | None = option(
        "what searches: ct2 is CTranslate2, with the weights of BUNDLE converted for it (torch)"
    )
    task: str = option("what is scored (translation)", choices=("translation", *TASKS), default="translation")
    src: Sequence[File] = option(
        "source text; once for each test set, with its --ref", "FILE", action="append", default=()
    )
    ref: Sequence[File] = option(
        "reference translations, line by line; may be repeated", "FILE", action="append", default=()
    )
    test_set: str | None = option(
        "test sets by name: sacrebleu's, if in its cache (wmt14,wmt13), or from a folder in the layout in which they "
        "are published (flores200:DIR, flores200/dev:DIR, ntrex:DIR, wmt24pp:DIR, bouquet:DIR)",
        "NAME,…",
    )
    langpair: str | None = option("languages of the test sets, such as en-de (those of the first BUNDLE)", "SRC-TGT")
    tokenize: Tokenizer | None = option(
        "sacrebleu's tokenizer for BLEU (auto: by the target language: zh, ja-mecab, ko-mecab, flores200, 13a)", "NAME"
    )
    systems: Sequence[Sequence[File]] = option(
        "translations of other systems to score beside BUNDLE or instead; once for each test set, in their order",
        "FILE",
        action="append",
        default=(),
    )
    significance: Literal["bootstrap", "randomisation"] | None = option(
        "test every system against the first: paired bootstrap resampling or approximate randomisation"
    )
    resamples: int | None = option("samples of that test (1000 for bootstrap, 10000 for randomisation)", "N")
    seed: int | None = option("seed of that test (12345, as in sacrebleu)", "N")
    comet: Sequence[File] = option(
        "also COMET or COMETKiwi, by a downloaded model; may be repeated, see --metric-python",
        "PATH",
        action="append",
        default=(),
    )
    metricx: File | None = option("also MetricX-24, by a downloaded model with the tokenizer of mT5", "DIR")
    metric_python: File | None = option(
        "the Python of an environment with the package of these metrics: unbabel-comet, which cannot be installed in "
        "this one, or transformers",
        "PYTHON",
    )
    track: bool = option("put the scores into the MLflow run in which BUNDLE was trained")
    follow: Folder | None = option(
        "evaluate every new checkpoint of RUN until it has finished, on --src and --ref or on its validation set; on a "
        "CPU unless --device says otherwise",
        "RUN",
    )
    interval: float | None = option(f"--follow: seconds between two checks ({INTERVAL:g})", "S")
    output: File | None = option("file for the outputs, gzipped if it ends in .gz", "FILE")
    overwrite: bool = option("replace an existing --output")
    json: bool = option("print the scores as JSON")


_TEXTS = {"src", "ref", "test_set", "langpair", "systems", "significance", "resamples", "seed", "track"}
_TEXTS |= {"comet", "metricx", "metric_python", "to", "engine", "tokenize"}
_TAKEN = {
    "translation": {"bundle", "output", "follow", "interval"} | _TEXTS,
    **{name: task.OPTIONS for name, task in TASKS.items()},
}


def check_options(options: Evaluate) -> None:
    """Check that the options fit the task and each other.

    Raises:
        UserError: An option is missing, belongs to another task, or contradicts another.
    """
    values = {name: getattr(options, name) for names in _TAKEN.values() for name in names}
    given = {name for name, value in values.items() if value is not None and value is not False and value != []}
    if surplus := sorted(given - _TAKEN[options.task]):
        other = next(task for task, names in _TAKEN.items() if surplus[0] in names)
        raise UserError(f"--task {options.task} does not take {option_of(surplus[0])}, which is for --task {other}")
    (TASKS[options.task].check_options if options.task in TASKS else _check_translation)(options, given)


def _check_translation(options: Evaluate, given: set[str]) -> None:
    following = "follow" in given
    missing = [] if following or given & {"bundle", "systems"} else ["BUNDLE or --systems"]
    if not following and not given & {"src", "ref", "test_set"}:
        missing.append("--src and --ref, or --test-set (a parser: --task parsing --gold TREES)")
    if "ref" in given and "src" not in given and (given & {"bundle", "comet", "metricx"} or following):
        missing.append("--src")
    if "src" in given and "ref" not in given:
        missing.append("--ref")
    if missing:
        raise UserError(f"--task translation needs {', '.join(dict.fromkeys(missing))}; see `dst evaluate --help`")
    apart = {"bundle", "engine", "systems", "significance", "output"} if following else set()
    if several := sorted(map(option_of, given & apart)):
        raise UserError(f"--follow and {several[0]} do not go together: leave one out")
    systems = len(options.bundle or []) + len((options.systems or [[]])[0])
    interval = options.interval
    if interval is not None and not (following and 0 < interval <= MAX_INTERVAL):
        raise UserError(
            f"--interval is for --follow, in seconds, more than 0 and at most {MAX_INTERVAL:,.0f}, not {interval:g}"
        )
    if not following and "bundle" not in given and (useless := search_options(options)):
        raise UserError(f"{option_of(useless[0])} is for a BUNDLE: files of translations are only scored")
    if unused := sorted(given & {"resamples", "seed"} if "significance" not in given else ()):
        raise UserError(f"--{unused[0]} is for --significance")
    if "significance" in given and systems < 2:
        raise UserError("--significance compares systems: name another BUNDLE, or --systems")
    _check_learned(options, given)
    if "track" in given and not following and not given & {"bundle"}:
        raise UserError("--track needs a BUNDLE: files of translations belong to no run")
    if "output" in given and (systems > 1 or "bundle" not in given):
        raise UserError("--output is for the translations of one BUNDLE on one test set")


def _check_learned(options: Evaluate, given: set[str]) -> None:
    learned = given & {"comet", "metricx"}
    if "metric_python" in given and not learned:
        raise UserError("--metric-python is for --comet and --metricx")
    if learned and options.tokenize == "bpe":
        raise UserError("--comet and --metricx read whole words: join the pieces, and leave out --tokenize bpe")


def search_options(options: Evaluate) -> list[str]:
    """The names of the options of the search that are given."""
    return [name for name in _SEARCH if getattr(options, name) is not None]


def option_of(name: str) -> str:
    """An option by its name among the parsed ones."""
    return "BUNDLE" if name == "bundle" else f"--{name.replace('_', '-')}"
