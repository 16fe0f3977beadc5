"""``dst evaluate``: translate test sets and score them."""

from __future__ import annotations

import contextlib
import json
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dstransformer.cli.evaluate_options import INTERVAL, TASKS, Evaluate, check_options
from dstransformer.cli.options import CommandResult, load_ct2, load_translator
from dstransformer.errors import DataError, UserError, counted
from dstransformer.io.command import exit_on_sigterm, print_text
from dstransformer.io.progress import note

if TYPE_CHECKING:
    from dstransformer.decoding import Translator
    from dstransformer.evaluation.following import Results
    from dstransformer.evaluation.learned import LearnedMetric
    from dstransformer.evaluation.significance import Comparison
    from dstransformer.evaluation.systems import SystemResult
    from dstransformer.evaluation.testset import TestSet
    from dstransformer.model import Bundle

logger = logging.getLogger(__name__)


@Evaluate.handler
def run(options: Evaluate) -> CommandResult:
    """Evaluate bundles and outputs of other systems on test sets, follow a run, or do what another task asks for."""
    check_options(options)
    exit_on_sigterm()
    if options.task in TASKS:
        result: CommandResult = TASKS[options.task].run(options)
        return result
    return _evaluate(options) if options.follow is None else _follow(options)


def _evaluate(options: Evaluate) -> CommandResult:
    bundles = _open_bundles(options.bundle)
    from dstransformer.evaluation.significance import DEFAULT_SEED, check_samples
    from dstransformer.evaluation.systems import evaluate_bundle, evaluate_file, read_translations, target_language
    from dstransformer.evaluation.testset import read_test_sets
    from dstransformer.io.progress import reporting

    models = _find_learned(options)
    if options.significance is not None:
        options.seed = DEFAULT_SEED if options.seed is None else options.seed
        check_samples(options.significance, options.resamples, options.seed)
    test_sets = read_test_sets(options.src or [], options.ref or [])
    with writing_output(options, [*(options.src or []), *(options.ref or [])]) as write, contextlib.ExitStack() as held:
        language = _set_target(options, bundles)
        test_sets += _named_sets(options, bundles)
        _check_systems(options, test_sets)
        systems = [
            (path, read_translations(path, test_set), test_set)
            for test_set, files in zip(test_sets, options.systems or [], strict=False)
            for path in files
        ]
        _warn_of_languages(options, bundles, test_sets)
        opened = zip(options.bundle, bundles, strict=True)
        runs = {str(path): _find_run(bundle) for path, bundle in opened} if options.track else {}
        learned = _open_learned(options, models, held)
        results: list[SystemResult] = []
        tokenize = _tokenizer(options, bundles, test_sets, language)
        for path, bundle in zip(options.bundle, bundles, strict=True):
            translator = (load_ct2 if options.engine == "ct2" else load_translator)(options, bundle)
            language = language or target_language(bundle, translator)
            with reporting("sentences", sum(len(test_set.references) for test_set in test_sets)) as progress:
                results += evaluate_bundle(
                    bundle,
                    translator,
                    test_sets,
                    name=str(path),
                    tokenize=tokenize,
                    language=language,
                    learned=learned,
                    write=write,
                    progress=progress,
                )
        results += [
            evaluate_file(path, lines, test_set, language, tokenize, learned) for path, lines, test_set in systems
        ]
    results.sort(key=lambda result: test_sets.index(result.test_set))
    comparisons = _compare(options, results, test_sets, tokenize, language)
    if runs:
        _track(results, runs)
    return _report(options, results, comparisons)


def _open_bundles(paths: Sequence[Path]) -> list[Bundle]:
    """Open models that translate; refuse others before one of them translates for minutes."""
    from dstransformer.io.products import export_tool
    from dstransformer.model import open_bundle

    for path in paths:
        if export_tool(path) == "ct2":
            raise UserError(
                f"{path} is an export for CTranslate2, not a bundle: name the bundle with --engine ct2; or translate "
                f"with `dst translate {path} FILE --engine ct2 --output OUT`, and score OUT with --systems"
            )
    bundles = [open_bundle(path) for path in paths]
    for bundle in bundles:
        bundle.check_translates("score it with --task parsing --gold TREES")
    return bundles


def _track(results: Sequence[SystemResult], runs: Mapping[str, Path]) -> None:
    """Add the results to the runs that they belong to, by the name of the system, in MLflow too."""
    from dstransformer.tracking.mlflow.tracked_run import log_evaluation, send_evaluations

    for result in results:
        if result.system in runs:
            log_evaluation(runs[result.system], result.to_json())
    for run in dict.fromkeys(runs.values()):
        if line := send_evaluations(run):
            logger.warning(line)


def _open_learned(
    options: Evaluate, models: Sequence[tuple[str, str]], held: contextlib.ExitStack
) -> list[LearnedMetric]:
    """The learned metrics, each in a process that ends with ``held``.

    Raises:
        UserError: Two models give scores of one name.
    """
    from dstransformer.evaluation.learned import LearnedMetric

    opened: list[LearnedMetric] = []
    for option, path in models:
        metric = held.enter_context(LearnedMetric(option, path, options.metric_python, on_cpu=options.device == "cpu"))
        if metric.name in [other.name for other in opened]:
            raise UserError(f"--{option} {path}: another model gives {metric.name} already; evaluate them apart")
        opened.append(metric)
    return opened


def _find_learned(options: Evaluate) -> list[tuple[str, str]]:
    """The options of learned metrics that are given, each with its path.

    Raises:
        DataError: There is no model at a path.
    """
    from dstransformer.evaluation.learned import find_model

    metricx = [options.metricx] if options.metricx else []
    models = [("comet", path) for path in options.comet or []] + [("metricx", path) for path in metricx]
    for option, path in models:
        find_model(option, path)
    return models


def _set_target(options: Evaluate, bundles: Sequence[Bundle]) -> str | None:
    """The target language of ``--langpair``, which also becomes that of models of several directions; None without it.

    Raises:
        UserError: ``--langpair`` names a code that is neither of a bundle nor of any language.
    """
    from dstransformer.io.languages import divide_codes

    if options.langpair is None:
        return None
    sides = [(one.src_lang, one.tgt_lang) for bundle in bundles for one in bundle.directions or [bundle]]
    target = divide_codes(options.langpair, [code for both in sides for code in both if code])[1]
    if options.to is None and any(bundle.directions for bundle in bundles):
        options.to = target
    return target


def _tokenizer(options: Evaluate, bundles: Sequence[Bundle], test_sets: Sequence[TestSet], target: str | None) -> str:
    """The tokenizer of BLEU, one for all systems: scores of different tokenizers are not compared."""
    from dstransformer.evaluation.bleu import bleu_tokenizer, text_tokenizer, tokenizer_note
    from dstransformer.io.languages import language

    choice, option = options.tokenize or "auto", "--tokenize "
    codes = {
        str(path): _target_codes(bundle, options.to, test_sets)
        for path, bundle in zip(options.bundle, bundles, strict=True)
    }
    if target is not None:
        codes["--langpair"] = [target]
    named = [(name, code) for name, targets in codes.items() for code in targets]
    for code in dict.fromkeys(code for _, code in named):
        if (note := tokenizer_note(code, choice, option)) is not None:
            logger.warning(note)
    known = [(name, code) for name, code in named if language(code).tag is not None]
    chosen = {bleu_tokenizer(code, choice, option): (name, code) for name, code in known}
    if len(chosen) > 1:
        each = " and ".join(f"that of {code} ({name})" for name, code in chosen.values())
        raise UserError(
            f"BLEU of different languages does not compare: {each}; evaluate them apart, or choose one --tokenize"
        )
    if not chosen:
        references = (line for test_set in test_sets for line in test_set.references)
        return text_tokenizer(references, choice, option, "" if target else "name it, as in --langpair en-ja, or ")
    return next(iter(chosen))


def _target_codes(bundle: Bundle, to: str | None, test_sets: Sequence[TestSet]) -> list[str]:
    """The languages into which a bundle translates the test sets: of several directions, by the sentences' tags."""
    from dstransformer.data.directions import Tags

    if not bundle.directions:
        return [] if bundle.tgt_lang is None else [bundle.tgt_lang]
    tags = Tags(bundle.directions, to)
    by_tag = {f"{direction.tag or ''} ".lstrip(): direction.tgt_lang for direction in bundle.directions}
    targets = dict.fromkeys(
        by_tag[begin] if begin else tags.target or by_tag[""]
        for test_set in test_sets
        for begin, text in zip(*tags.split(test_set.sources or (), 1), strict=True)
        if text.strip()
    )
    return list(targets)


def _named_sets(options: Evaluate, bundles: Sequence[Bundle]) -> list[TestSet]:
    """The test sets of ``--test-set``."""
    from dstransformer.evaluation.published_sets import is_published, published_test_set
    from dstransformer.evaluation.testset import cached_test_set

    if options.test_set is None:
        return []
    languages = options.langpair
    if languages is None and bundles and not bundles[0].directions and bundles[0].src_lang and bundles[0].tgt_lang:
        languages = f"{bundles[0].src_lang}-{bundles[0].tgt_lang}"
    if languages is None:
        raise UserError("--test-set needs the languages: --langpair en-de, for example")
    names = [name.strip() for name in options.test_set.split(",")]
    return [
        published_test_set(name, languages) if is_published(name) else cached_test_set(name, languages)
        for name in dict.fromkeys(names)
    ]


def _check_systems(options: Evaluate, test_sets: Sequence[TestSet]) -> None:
    """Check that each test set has the files of all systems, and that no system is given twice.

    Raises:
        UserError: A test set lacks files of a system, or a system is given twice.
    """
    groups = options.systems or [[] for _ in test_sets]
    if len(groups) != len(test_sets):
        raise UserError(
            f"--systems is given {len(groups)} times for {counted(len(test_sets), 'test set')}: give it once for each, "
            "in their order"
        )
    if len(set(map(len, groups))) > 1:
        raise UserError(
            f"--systems names {' and '.join(str(len(group)) for group in groups)} files: name the same number each time"
        )
    for group in groups:
        names = [*map(str, options.bundle), *group]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise UserError(f"the system {twice} is given twice: name each once")
    if options.output is not None and len(test_sets) > 1:
        raise UserError("--output is for the translations of one BUNDLE on one test set")


def _compare(
    options: Evaluate,
    results: Sequence[SystemResult],
    test_sets: Sequence[TestSet],
    tokenize: str,
    language: str | None,
) -> list[tuple[str, Comparison]]:
    """The tests of ``--significance``, one for each test set, with its name."""
    from dstransformer.evaluation.bleu import is_asian
    from dstransformer.evaluation.significance import compare

    if options.significance is None:
        return []
    kind, samples, seed = options.significance, options.resamples, options.seed
    assert seed is not None
    comparisons = []
    for test_set in test_sets:
        systems = [(result.system, result.evaluation.translations) for result in results if result.test_set is test_set]
        asian = is_asian(tokenize, language, test_set.references)
        tested = compare(systems, test_set.references, kind, tokenize=tokenize, asian=asian, samples=samples, seed=seed)
        comparisons.append((test_set.name, tested))
    return comparisons


def _find_run(bundle: Bundle) -> Path:
    from dstransformer.tracking.mlflow.tracked_run import find_run

    recorded = bundle.provenance.get("run")
    run = find_run(bundle.path, recorded if isinstance(recorded, str) else None)
    if run is None:
        raise DataError(f"--track: {bundle.path} lies in no tracked run, nor does its provenance name one ({recorded})")
    return run


def _report(
    options: Evaluate, results: Sequence[SystemResult], comparisons: Sequence[tuple[str, Comparison]]
) -> CommandResult:
    from dstransformer.evaluation.systems import FORMAT_VERSION, format_result, format_table

    if len(results) == 1:
        return CommandResult(json.dumps(results[0].to_json(), indent=2) if options.json else format_result(results[0]))
    if not options.json:
        return CommandResult(format_table(results, dict(comparisons)))
    record: dict[str, Any] = {"format_version": FORMAT_VERSION, "results": [result.to_json() for result in results]}
    if comparisons:
        record["significance"] = [{"test_set": name, **tested.to_json()} for name, tested in comparisons]
    return CommandResult(json.dumps(record, indent=2))


def _follow(options: Evaluate) -> CommandResult:
    """Evaluate each new checkpoint of a run until it has finished; see :func:`follow`."""
    from dstransformer.evaluation.following import Results, follow
    from dstransformer.evaluation.systems import format_line
    from dstransformer.evaluation.testset import read_test_sets
    from dstransformer.evaluation.validation import validation_sets
    from dstransformer.tracking.metrics_log import is_finished
    from dstransformer.tracking.mlflow.tracked_run import (
        RUN_END_SECONDS,
        log_evaluation,
        logged_evaluations,
        send_evaluations,
    )

    models = _find_learned(options)
    run = options.follow
    assert run is not None
    options.device = options.device or "cpu"  # the training uses the GPU
    test_sets = read_test_sets(options.src or [], options.ref or [])
    finished = partial(is_finished, run)
    how: dict[str, Any] = {"interval": options.interval or INTERVAL, "say": lambda line: note(f"dst: {line}")}
    first = next((bundle for _, bundle in follow(run, finished, lambda bundle: bundle, **how)), None)
    if first is None:
        raise DataError(f"--follow {run}: none of its bundles can be read; restore one")
    if first.form.model:
        raise UserError(f"--follow {run}: it trains {first.form.model}, whose checkpoints cannot be followed yet")
    if options.track and not (run / "tracking.json").is_file():
        raise DataError(f"--track: {run} is not tracked in MLflow")
    target = _set_target(options, [first])
    test_sets += _named_sets(options, [first])
    test_sets = test_sets or validation_sets(first)
    _warn_of_languages(options, [first], test_sets)
    options.bundle, results = [run], Results(run)
    tokenizers = [_tokenizer(options, [first], [test_set], target) for test_set in test_sets]
    if options.track:  # also results of earlier calls that were not logged
        for unlogged in results.missing_in(logged_evaluations(run), test_sets):
            log_evaluation(run, unlogged)
    with contextlib.suppress(OSError):
        os.nice(19)  # the training uses the processor too
    with contextlib.ExitStack() as held:
        learned = _open_learned(options, models, held)
        for name, (bundle, translator) in follow(run, finished, partial(_load_followed, options), **how):
            for result in _evaluate_new(name, bundle, translator, test_sets, tokenizers, learned, results):
                print_text(json.dumps(result.to_json()) if options.json else format_line(result))
                if options.track:
                    log_evaluation(run, result.to_json())
    if options.track and (line := send_evaluations(run, wait_seconds=RUN_END_SECONDS)):
        logger.warning(line)
    return CommandResult()


def _load_followed(options: Evaluate, bundle: Bundle) -> tuple[Bundle, Translator]:
    """A checkpoint with its translator, whose weights are in memory: the run may delete their file."""
    translator = load_translator(options, bundle)
    for parameter in translator.model.parameters():
        parameter.data = parameter.data.clone()
    return bundle, translator


def _evaluate_new(
    name: str,
    bundle: Bundle,
    translator: Translator,
    test_sets: Sequence[TestSet],
    tokenizers: Sequence[str],
    learned: Sequence[LearnedMetric],
    results: Results,
) -> Iterator[SystemResult]:
    """The results of a checkpoint that the run folder has not yet, appended to its file."""
    from dstransformer.evaluation.systems import bundle_facts, evaluate_bundle

    for test_set, tokenize in zip(test_sets, tokenizers, strict=True):
        facts = {**bundle_facts(bundle, translator, tokenize), "test_set": test_set.to_json()}
        if results.has(facts, {metric.name for metric in learned}):
            continue
        (result,) = evaluate_bundle(
            bundle, translator, [test_set], name=name, tokenize=tokenize, learned=learned, is_lenient=True
        )
        results.append(name, result.to_json())
        yield result


def _warn_of_languages(options: Evaluate, bundles: Sequence[Bundle], test_sets: Sequence[TestSet]) -> None:
    """Warn of sides that may be swapped, or in other languages than those of the first model or of ``--langpair``."""
    from dstransformer.io.compression import without_ending
    from dstransformer.io.glance import Sample, judge_languages
    from dstransformer.io.languages import MULTIPLE, divide_codes

    src_lang, tgt_lang = divide_codes(options.langpair, []) if options.langpair is not None else (MULTIPLE, MULTIPLE)
    for bundle in bundles[:1]:
        src_lang, tgt_lang = bundle.src_lang or MULTIPLE, options.to or bundle.tgt_lang or MULTIPLE
    for test_set in test_sets:
        name = " and ".join(filter(None, (test_set.src, test_set.ref)))
        src, tgt = Sample(test_set.sources or (), src_lang), Sample(test_set.references, tgt_lang)
        try:
            warning = judge_languages(name, src, tgt)
        except DataError as error:  # a model with other codes than ours may be right
            warning = str(error)
        suffixes = [Path(without_ending(name)).suffix for name in (test_set.src or "", test_set.ref)]
        if warning is None and suffixes == [f".{tgt_lang}", f".{src_lang}"]:
            warning = (
                f"--src {test_set.src} is taken for {src_lang} and --ref {test_set.ref} for {tgt_lang}: are the sides "
                "swapped?"
            )
        if warning is not None:
            logger.warning(warning)


def writing_output(
    options: Evaluate, inputs: Iterable[str]
) -> contextlib.AbstractContextManager[Callable[[str], None] | None]:
    """Open ``--output`` and enter with a function that writes an output to it; None without that option.

    Args:
        options: The options of the command.
        inputs: The files that it reads, which the output must not replace.
    """
    from dstransformer.io.text import is_stdout, writing_lines

    if options.output is None:
        return contextlib.nullcontext()
    if is_stdout(options.output):
        raise UserError("--output - would mix the outputs with the scores on stdout: name a file")
    return writing_lines(options.output, overwrite=options.overwrite, inputs=[*inputs])
