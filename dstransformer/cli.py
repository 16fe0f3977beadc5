"""The command ``dst``. Handlers import what they need, so that ``dst --help`` answers at once."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from dstransformer import __version__
from dstransformer.errors import UserError
from dstransformer.terminal import Parser, exit_on_sigterm, run_guarded, say

STOPPED_BY_SIGNAL = 143

#: What a handler comes back with: the exit status, and what there is to say on stdout.
Answer = tuple[int, str]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a subcommand; returns the exit status."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    return run_guarded(lambda: _run(given), speaks=_speaks(given))


def _run(arguments: Sequence[str]) -> int:
    try:
        options = _build_parser().parse_args(_one_value_each(arguments))
    except UserError as error:
        advice = "required: PRESET (one of `dst presets`, or a .yaml file; before --ds)"
        raise UserError(str(error).replace("required: PRESET", advice)) from None
    finally:
        say("")  # what --help and --version have printed
    handler: Callable[[argparse.Namespace], Answer] = options.handler
    status, text = handler(options)
    say(text)
    return status


_OVERRIDE = re.compile(r"[\w.]+=")


def _one_value_each(arguments: Sequence[str]) -> list[str]:
    """Write ``--set a=1 b=2 toy`` as ``--set=a=1 --set=b=2 toy``, and ``--ds`` likewise.

    Their values are told from the preset that may follow: overrides have a ``=``, and no fragment is called as a
    preset.
    """
    rewritten: list[str] = []
    option = ""
    belongs: Callable[[str], bool] = bool
    for word in arguments:
        if word in ("--set", "--ds"):
            option, first = word, True
            belongs = _is_override if word == "--set" else _is_fragment
            rewritten.append(word)
        elif not option or word.startswith("-"):
            option = ""
            rewritten.append(word)
        elif first:
            first = False
            rewritten[-1] = f"{option}={word}"
        elif belongs(word):
            rewritten.append(f"{option}={word}")
        else:
            option = ""
            rewritten.append(word)
    return rewritten


def _is_override(word: str) -> bool:
    return _OVERRIDE.match(word) is not None


def _is_fragment(word: str) -> bool:
    from dstransformer.config import preset_names

    return not word.endswith((".yaml", ".yml")) and word not in preset_names()


def _speaks(arguments: Sequence[str]) -> bool:
    """Whether this process says what every process of its run meets: the first one that a launcher started for it.

    Only ``train`` is many processes; the variables of a launcher mean nothing to the other commands.
    """
    from dstransformer.training.processes import LauncherError, read_processes

    if next((argument for argument in arguments if not argument.startswith("-")), None) != "train":
        return True
    try:
        return read_processes(os.environ, alone=True).rank == 0
    except LauncherError:
        return True


def _build_parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="dst",
        description="Train, translate with and evaluate Transformers (Vaswani et al., 2017) on DeepSpeed.",
        epilog="A mistake is said in one line; DST_DEBUG=1 in the environment adds where it was found.",
    )
    parser.add_argument("--version", action="version", version=f"dst {__version__}")
    parser.add_argument("--local_rank", "--local-rank", type=int, help=argparse.SUPPRESS)  # the deepspeed launcher's
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    _add_train(commands)
    _add_translate(commands)
    _add_evaluate(commands)
    _add_average(commands)
    _add_track(commands)
    _add_presets(commands)
    _add_ds_config(commands)
    return parser


Commands = "argparse._SubParsersAction[Parser]"


def _add_train(commands: Commands) -> None:  # type: ignore[valid-type]
    parser = commands.add_parser(  # type: ignore[attr-defined]
        "train", help="train a model; alone it is one process, under deepspeed, torchrun or srun as many as they start"
    )
    _add_experiment(parser)
    parser.add_argument("--corpus", required=True, type=Path, help="folder that dst-prep built")
    parser.add_argument("--run", required=True, type=Path, help="folder of the run: checkpoints, metrics, bundle")
    parser.add_argument(
        "--resume",
        default="auto",
        metavar="auto|never|PATH",
        help="go on from the latest checkpoint, or from one (auto)",
    )
    parser.add_argument("--name", help="the run's name in MLflow (preset, folder and date)")
    parser.add_argument("--dry-run", action="store_true", help="print the resolved configuration and figures, and stop")
    parser.add_argument("--json", action="store_true", help="print the outcome, or the dry run, as JSON on stdout")
    parser.set_defaults(handler=_train)


def _add_experiment(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("preset", metavar="PRESET", help="name of a preset (dst presets) or a YAML file")
    parser.add_argument(
        "--set", dest="overrides", action="append", default=[], metavar="a.b=c", help="override values, one or several"
    )
    parser.add_argument(
        "--ds",
        action="append",
        default=[],
        metavar="NAME",
        help="DeepSpeed fragments or JSON files instead of the preset's, one or several",
    )


def _add_decoding(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("bundle", metavar="BUNDLE", help="folder of a bundle, a checkpoint or a run")
    parser.add_argument("--beam", type=int, metavar="N", help="beam size, 1 to 1000 (the bundle's)")
    parser.add_argument("--length-penalty", type=float, metavar="ALPHA", help="of the length, 0 to 10 (the bundle's)")
    parser.add_argument(
        "--max-input-tokens",
        type=int,
        metavar="N",
        help="cut a longer sentence to its first tokens, with a warning; 0: never (the bundle's)",
    )
    parser.add_argument(
        "--max-extra-tokens", type=int, metavar="N", help="most tokens that an output is longer (the bundle's)"
    )
    parser.add_argument(
        "--batch-tokens",
        type=int,
        metavar="N",
        help="source tokens translated at once, fewer where the beam is wider than 8 (the bundle's)",
    )
    parser.add_argument("--device", help="cpu, cuda, cuda:1 ... (a GPU where there is one)")
    parser.add_argument("--overwrite", action="store_true", help="replace the --output that is there already")
    parser.add_argument(
        "--precision", choices=("fp32", "bf16", "fp16"), help="of the weights (bf16 on a GPU, fp32 elsewhere)"
    )


def _add_translate(commands: Commands) -> None:  # type: ignore[valid-type]
    parser = commands.add_parser("translate", help="translate text, a sentence a line")  # type: ignore[attr-defined]
    _add_decoding(parser)
    parser.add_argument("file", nargs="?", metavar="FILE", help="text or gzip file; - is stdin (stdin)")
    parser.add_argument(
        "--output", metavar="FILE", help="where the translations go, gzipped if it ends in .gz; - is stdout (stdout)"
    )
    parser.set_defaults(handler=_translate)


def _add_evaluate(commands: Commands) -> None:  # type: ignore[valid-type]
    parser = commands.add_parser("evaluate", help="translate a test set and score it with sacrebleu")  # type: ignore[attr-defined]
    _add_decoding(parser)
    parser.add_argument("--src", required=True, metavar="FILE", help="source text, a sentence a line")
    parser.add_argument("--ref", required=True, metavar="FILE", help="its reference translation, line by line")
    parser.add_argument("--output", metavar="FILE", help="keep the translations in this file, gzipped if .gz")
    parser.add_argument("--json", action="store_true", help="print the scores as JSON")
    parser.set_defaults(handler=_evaluate)


def _add_average(commands: Commands) -> None:  # type: ignore[valid-type]
    parser = commands.add_parser("average", help="average checkpoints of a run into a bundle")  # type: ignore[attr-defined]
    parser.add_argument("run", metavar="RUN", type=Path, help="folder that dst train wrote")
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--last",
        type=int,
        metavar="N",
        help="the newest N checkpoints (checkpoint.average_last, fewer where fewer are past the warm-up)",
    )
    which.add_argument("--best", type=int, metavar="N", help="the N checkpoints with the highest validation score")
    parser.add_argument(
        "--include-warmup", action="store_true", help="take checkpoints from before the end of the warm-up as well"
    )
    parser.add_argument("--out", required=True, type=Path, metavar="BUNDLE", help="folder for the average")
    parser.add_argument("--overwrite", action="store_true", help="replace a bundle that is there already")
    parser.set_defaults(handler=_average)


def _add_track(commands: Commands) -> None:  # type: ignore[valid-type]
    parser = commands.add_parser(  # type: ignore[attr-defined]
        "track", help="send what a run could not send to its tracking server; run it too after moving a folder of runs"
    )
    parser.add_argument("run", metavar="RUN", type=Path, help="folder of a run")
    parser.set_defaults(handler=_track)


def _add_presets(commands: Commands) -> None:  # type: ignore[valid-type]
    parser = commands.add_parser("presets", help="list the presets")  # type: ignore[attr-defined]
    parser.set_defaults(handler=_presets)


def _add_ds_config(commands: Commands) -> None:  # type: ignore[valid-type]
    parser = commands.add_parser("ds-config", help="print the DeepSpeed JSON of an experiment")  # type: ignore[attr-defined]
    _add_experiment(parser)
    parser.add_argument("--world-size", type=int, default=1, help="number of processes (1)")
    parser.set_defaults(handler=_ds_config)


def _train(options: argparse.Namespace) -> Answer:
    from dstransformer.training import launch

    request = launch.TrainRequest(
        options.preset, options.corpus, options.run, options.overrides, options.ds, options.resume, options.name
    )
    if options.dry_run:
        result = launch.dry_run(request)
        return 0, _describe_dry_run(result, options.json) if _speaks(["train"]) else ""
    with contextlib.redirect_stdout(sys.stderr):  # DeepSpeed prints; stdout is for the outcome
        outcome = launch.train(request)
    status = 0 if outcome["stopped_by"] is None else STOPPED_BY_SIGNAL
    if not _speaks(["train"]):
        return status, ""
    return status, json.dumps(outcome, indent=2) if options.json else _describe_outcome(outcome)


def _describe_dry_run(result: launch.DryRun, as_json: bool) -> str:  # type: ignore[name-defined]  # noqa: F821
    from dstransformer.config import dump_config
    from dstransformer.training.launch import dry_run_as_json

    if as_json:
        return json.dumps(dry_run_as_json(result), indent=2)
    figures = result.estimate
    lines = [
        dump_config(result.config),
        f"DeepSpeed, world size {result.world_size}: {json.dumps(result.ds_config)}\n",
        f"pairs              {figures.pairs:>14,}",
        f"updates an epoch   {figures.updates_per_epoch:>14,}   epochs in all {figures.epochs:.1f}",
        f"an update holds    {figures.pairs_per_update:>14,.0f}   pairs",
        f"                   {figures.src_tokens_per_update:>14,.0f}   source tokens",
        f"                   {figures.tgt_tokens_per_update:>14,.0f}   target tokens",
        f"accumulation steps {figures.accumulation_steps:>14,}",
        f"parameters         {figures.parameters:>14,}",
    ]
    lines += [
        f"model states {stage} {gib:>14.3f}   GiB a process, activations not included"
        for stage, gib in figures.model_state_gib.items()
    ]
    lines += [f"warning: {warning}" for warning in result.warnings]
    return "\n".join(lines)


def _describe_outcome(outcome: dict[str, object]) -> str:
    from dstransformer.training.closing import Choice

    if outcome["stopped_by"] is not None:
        return f"stopped by {outcome['stopped_by']} at step {outcome['step']}; the same command goes on from there"
    evaluations = outcome["evaluations"]
    assert isinstance(evaluations, dict)
    lines = []
    for split, evaluation in evaluations.items():
        name, signature = next(item for item in evaluation["signatures"].items() if item[0].startswith("bleu"))
        part = name.removeprefix("bleu").replace("_", " ")
        lines.append(f"{split}{part} BLEU {evaluation['metrics'][name]:.2f} ({signature})")
    choice = Choice(**outcome["final"])  # type: ignore[arg-type]
    return "\n".join([*lines, *choice.lines(), f"{outcome['run']}/bundle"])


def _translate(options: argparse.Namespace) -> Answer:
    from dstransformer.decoding.commands import translate_files
    from dstransformer.progress import reporting

    exit_on_sigterm()
    apart = options.output not in (None, "-") or sys.stdout is None or not sys.stdout.isatty()
    with reporting("lines", bar=apart) as progress:
        translate_files(
            options.file,
            options.output,
            lambda: _load_translator(options, options.bundle),
            overwrite=options.overwrite,
            progress=progress,
        )
    return 0, ""


def _evaluate(options: argparse.Namespace) -> Answer:
    from dstransformer.evaluation.commands import evaluate, read_test_set
    from dstransformer.model import open_bundle
    from dstransformer.progress import reporting

    exit_on_sigterm()
    sources, references = read_test_set(options.src, options.ref)
    with _keeping(options) as write:
        bundle = open_bundle(options.bundle)
        language = bundle.provenance.get("tgt_lang")
        translator = _load_translator(options, bundle)
        with reporting("sentences", len(sources)) as progress:
            report = evaluate(
                sources,
                references,
                translator,
                language=language if isinstance(language, str) else None,
                write=write,
                progress=progress,
            )
    how = translator.describe()
    if options.json:
        return 0, json.dumps({**report.as_json(), "bundle": str(bundle.path), **how}, indent=2)
    search = f"beam {how['beam_size']}, length penalty {how['length_penalty']}, {how['precision']} on {how['device']}"
    return 0, f"{report.as_text()}, {search}"


@contextlib.contextmanager
def _keeping(options: argparse.Namespace) -> Iterator[Callable[[str], None] | None]:
    """What writes a translation into ``--output``; None where there is no such option."""
    from dstransformer.corpus.lines import writing_lines

    if options.output is None:
        yield None
        return
    if options.output == "-" and options.json:
        raise UserError("--output - and --json would both write to stdout: give --output a file")
    with writing_lines(options.output, overwrite=options.overwrite) as write:
        yield write


def _load_translator(options: argparse.Namespace, bundle: str | Bundle) -> Translator:  # type: ignore[name-defined]  # noqa: F821
    from dstransformer.decoding.commands import load_translator

    return load_translator(
        bundle,
        beam_size=options.beam,
        length_penalty=options.length_penalty,
        max_input_tokens=options.max_input_tokens,
        max_extra_tokens=options.max_extra_tokens,
        batch_tokens=options.batch_tokens,
        device=options.device,
        precision=options.precision,
    )


def _average(options: argparse.Namespace) -> Answer:
    from dstransformer.training.averaging import average_run

    checkpoints = average_run(
        options.run,
        options.out,
        last=options.last,
        best=options.best,
        include_warmup=options.include_warmup,
        overwrite=options.overwrite,
    )
    steps = ", ".join(str(checkpoint.state.step) for checkpoint in checkpoints)
    return 0, f"{options.out}: the average of steps {steps}"


def _track(options: argparse.Namespace) -> Answer:
    from dstransformer.tracking import send_pending

    sent = send_pending(options.run)
    return 0, f"{options.run}: {sent} records sent, none pending"


def _presets(options: argparse.Namespace) -> Answer:
    from dstransformer.config import preset_names, preset_summary

    del options
    names = preset_names()
    width = max(map(len, names))
    return 0, "\n".join(f"{name:<{width}}  {preset_summary(name)}" for name in names)


def _ds_config(options: argparse.Namespace) -> Answer:
    from dstransformer.config import compose, load_config

    config = load_config(options.preset, options.overrides, options.ds)
    return 0, json.dumps(compose(config, options.world_size), indent=2)


if __name__ == "__main__":
    sys.exit(main())
