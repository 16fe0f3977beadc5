"""The command ``dst``. Handlers import what they need, so that ``dst --help`` answers at once."""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

from dstransformer.errors import DstError, StorageError, UserError

INTERRUPTED = 130
STOPPED_BY_SIGNAL = 143


#: What a handler comes back with: the exit status, and what there is to say on stdout.
Answer = tuple[int, str]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a subcommand; returns the exit status."""
    logging.basicConfig(level=logging.WARNING, format="dst: %(message)s", stream=sys.stderr)
    status = 0
    try:
        options = _build_parser().parse_args(arguments)
        handler: Callable[[argparse.Namespace], Answer] = options.handler
        status, text = handler(options)
        _say(text)
    except DstError as error:
        _complain(error)
        return error.exit_code
    except KeyboardInterrupt:
        return INTERRUPTED
    return status


def _say(text: str) -> None:
    """Print the outcome. A reader that has had enough changes nothing about it."""
    if not text:
        return
    try:
        print(text, flush=True)
    except OSError as error:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115
        if not isinstance(error, BrokenPipeError):
            raise StorageError(f"cannot write to stdout: {error.strerror}") from None


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, as for any other mistake; ``--help`` has the usage."""

    def error(self, message: str) -> NoReturn:
        """A wrong option or value."""
        raise UserError(f"{message}; see `{self.prog} --help`")


def _is_first() -> bool:
    """Whether this is the process that talks: the only one, or the first that a launcher or ``srun`` started."""
    return os.environ.get("RANK", os.environ.get("SLURM_PROCID", "0")) == "0"


def _complain(error: DstError) -> None:
    """One line. What every rank meets is said by the first; what one of them met, by that one."""
    if error.rank:
        print(f"dst (rank {error.rank}): error: {error}", file=sys.stderr, flush=True)
    elif _is_first():
        print(f"dst: error: {error}", file=sys.stderr, flush=True)


def _build_parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="dst", description="Train, translate with and evaluate Transformers (Vaswani et al., 2017) on DeepSpeed."
    )
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


Commands = "argparse._SubParsersAction[_Parser]"


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
        "--set", dest="overrides", nargs="+", action="extend", default=[], metavar="a.b=c", help="override values"
    )
    parser.add_argument(
        "--ds", nargs="+", default=[], metavar="NAME", help="DeepSpeed fragments or JSON files instead of the preset's"
    )


def _add_decoding(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("bundle", metavar="BUNDLE", help="folder of a bundle, a checkpoint or a run")
    parser.add_argument("--beam", type=int, help="beam size (the bundle's)")
    parser.add_argument("--length-penalty", type=float, help="alpha of the length penalty (the bundle's)")
    parser.add_argument("--max-extra-tokens", type=int, help="most tokens that an output is longer (the bundle's)")
    parser.add_argument("--batch-tokens", type=int, help="source tokens translated at once (the bundle's)")
    parser.add_argument("--device", help="cpu, cuda, cuda:1 … (a GPU where there is one)")
    parser.add_argument(
        "--precision", choices=("fp32", "bf16", "fp16"), help="of the weights (bf16 on a GPU, fp32 elsewhere)"
    )


def _add_translate(commands: Commands) -> None:  # type: ignore[valid-type]
    parser = commands.add_parser("translate", help="translate text, a sentence a line")  # type: ignore[attr-defined]
    _add_decoding(parser)
    parser.add_argument("file", nargs="?", metavar="FILE", help="text or gzip file (stdin)")
    parser.add_argument("--output", metavar="FILE", help="where the translations go (stdout)")
    parser.set_defaults(handler=_translate)


def _add_evaluate(commands: Commands) -> None:  # type: ignore[valid-type]
    parser = commands.add_parser("evaluate", help="translate a test set and score it with sacrebleu")  # type: ignore[attr-defined]
    _add_decoding(parser)
    parser.add_argument("--src", required=True, metavar="FILE", help="source text, a sentence a line")
    parser.add_argument("--ref", required=True, metavar="FILE", help="its reference translation, line by line")
    parser.add_argument("--output", metavar="FILE", help="keep the translations in this file")
    parser.add_argument("--json", action="store_true", help="print the scores as JSON")
    parser.set_defaults(handler=_evaluate)


def _add_average(commands: Commands) -> None:  # type: ignore[valid-type]
    parser = commands.add_parser("average", help="average a run's last checkpoints into a bundle")  # type: ignore[attr-defined]
    parser.add_argument("run", metavar="RUN", type=Path)
    parser.add_argument("--last", type=int, default=5, help="checkpoints to average (5)")
    parser.add_argument("--out", required=True, type=Path, metavar="BUNDLE")
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
        return 0, _describe_dry_run(result, options.json) if _is_first() else ""
    with contextlib.redirect_stdout(sys.stderr):  # DeepSpeed prints; stdout is for the outcome
        outcome = launch.train(request)
    status = 0 if outcome["stopped_by"] is None else STOPPED_BY_SIGNAL
    if not _is_first():
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
    return "\n".join(lines)


def _describe_outcome(outcome: dict[str, object]) -> str:
    if outcome["stopped_by"] is not None:
        return f"stopped by {outcome['stopped_by']} at step {outcome['step']}; the same command goes on from there"
    evaluations = outcome["evaluations"]
    assert isinstance(evaluations, dict)
    lines = []
    for split, evaluation in evaluations.items():
        bleu, signature = evaluation["metrics"]["bleu"], evaluation["signatures"]["bleu"]
        lines.append(f"{split} BLEU {bleu:.2f} ({signature})")
    steps = ", ".join(map(str, outcome["averaged_steps"]))  # type: ignore[call-overload]
    return "\n".join([*lines, f"{outcome['run']}/bundle: the average of steps {steps}"])


def _translate(options: argparse.Namespace) -> Answer:
    from dstransformer.decoding.commands import translate_files

    translate_files(options.file, options.output, _load_translator(options))
    return 0, ""


def _evaluate(options: argparse.Namespace) -> Answer:
    from dstransformer.evaluation.commands import evaluate_files
    from dstransformer.model import open_bundle

    language = open_bundle(options.bundle).provenance.get("tgt_lang")
    report = evaluate_files(options.src, options.ref, _load_translator(options), options.output, language=language)
    return 0, json.dumps(report.as_json(), indent=2) if options.json else report.as_text()


def _load_translator(options: argparse.Namespace) -> Translator:  # type: ignore[name-defined]  # noqa: F821
    from dstransformer.decoding.commands import load_translator

    return load_translator(
        options.bundle,
        beam_size=options.beam,
        length_penalty=options.length_penalty,
        max_extra_tokens=options.max_extra_tokens,
        batch_tokens=options.batch_tokens,
        device=options.device,
        precision=options.precision,
    )


def _average(options: argparse.Namespace) -> Answer:
    from dstransformer.training.averaging import average_run

    checkpoints = average_run(options.run, options.last, options.out)
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
