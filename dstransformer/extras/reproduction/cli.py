"""``dst reproduce``, a training done again from its record; ``dst sign`` and ``dst verify``, signatures of models."""

from __future__ import annotations

import contextlib
import json
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from dstransformer.cli.options import Command, CommandResult, Folder
from dstransformer.errors import DataError, UserError, shell_word
from dstransformer.io.command import exit_on_sigterm
from dstransformer.io.flags import argument, option
from dstransformer.io.progress import note

if TYPE_CHECKING:
    from dstransformer.extras.reproduction.reproduce import Report


class Reproduce(Command, examples=("dst reproduce runs/en-de --out runs/again",)):
    """Do a training again from its record, and compare the figures."""

    recorded: Folder = argument("RUN_OR_BUNDLE", "folder of a run or its final bundle, or a record's file")
    corpus: Folder | None = option("the corpus (where the record says, or built again)")
    inputs: Folder | None = option("folder with the files that the corpus is built from (.)", "FOLDER")
    init: Folder | None = option("the bundle that the training started from (where it was then)", "BUNDLE")
    processes: int | None = option("number of processes (as recorded)", "N")
    evaluate_only: bool = option("evaluate the recorded weights again; train nothing")
    prepare_only: bool = option("find or build the corpus, write the configuration and print the command that trains")
    out: Folder | None = option("folder for what is made again (NAME.reproduction)", "FOLDER")
    write_record: Folder | None = option("only write the record to a file, which others can name", "FILE")
    json: bool = option("print the comparison as JSON")


@Reproduce.handler
def run(options: Reproduce) -> CommandResult:
    """Reproduce a training, or write its record. The status is 1 if a figure is outside its bound."""
    from dstransformer.extras.reproduction.reproduce import Request, reproduce

    if options.write_record is not None:
        return _write_record(options, options.write_record)
    for name in ("prepare_only", "processes", "init"):
        if options.evaluate_only and getattr(options, name) not in (None, False):
            raise UserError(f"--evaluate-only trains nothing: leave out --{name.replace('_', '-')}")
    name = options.recorded.absolute().name
    out = options.out or Path(f"{name.removesuffix('.json')}.reproduction")
    request = Request(
        recorded=options.recorded,
        out=out,
        corpus=options.corpus,
        inputs=options.inputs,
        init=options.init,
        processes=options.processes,
        evaluate_only=options.evaluate_only,
        prepare_only=options.prepare_only,
    )
    with contextlib.redirect_stdout(sys.stderr):
        report = reproduce(request, note)
    if report is None:
        return CommandResult()
    text = json.dumps(report.to_json(), indent=2) if options.json else _describe(report)
    return CommandResult(text, 0 if report.reproduced else 1)


def _write_record(options: Reproduce, file: Path) -> CommandResult:
    from dstransformer.extras.reproduction import record
    from dstransformer.io.text import check_output_file

    for name in ("corpus", "inputs", "init", "processes", "evaluate-only", "prepare-only", "out"):
        if getattr(options, name.replace("-", "_")) not in (None, False):
            raise UserError(f"--write-record only writes a file: leave out --{name}")
    path = check_output_file(file)
    if path.exists():
        raise UserError(f"{path} already exists: give another name")
    record.read(options.recorded).without_places().write(path)
    return CommandResult(f"{path}: `dst reproduce {shell_word(path)}` does the training again")


def _describe(report: Report) -> str:
    """The comparison as a table and a last line."""
    rows = [("figure", "recorded", "here", "difference", "bound", "")]
    for one in report.figures:
        bound = f"{one.bound:.4f}" if math.isfinite(one.bound) else "none"
        difference = "0" if one.found == one.recorded else f"{one.found - one.recorded:+.2g}"
        rows.append((one.name, f"{one.recorded:.4f}", f"{one.found:.4f}", difference, bound, one.verdict))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(cell.ljust(width) if place in (0, 5) else cell.rjust(width)
                  for place, (cell, width) in enumerate(zip(row, widths, strict=True))).rstrip()
        for row in rows
    ]  # fmt: skip
    if report.loss_difference is not None:
        gap, step = report.loss_difference
        apart = "all logged values are equal" if gap == 0 else f"at most {gap:.2g} apart, at update {step:,}"
        stopped = "; a run that was stopped logs means of fewer updates" if gap and report.same_weights else ""
        lines.append(f"training loss: {apart}{stopped}")
    if report.same_weights is not None:
        lines.append(f"weights: {'the same bits' if report.same_weights else 'other bits'}")
    if report.reproduced:
        is_equal = all(one.verdict == "equal" for one in report.figures)
        how = "equal" if is_equal else "equal or within its bound"
        lines.append(f"{report.name} is reproduced: every figure is {how}")
    else:
        failed = [f"{one.name} is {one.verdict}" for one in report.figures if not one.holds]
        why = ", ".join(failed) if failed else "its weights have other bits, and nothing differs"
        lines.append(f"{report.name} is NOT reproduced: {why}")
    return "\n".join(lines)


class Sign(Command, examples=("dst sign runs/en-de/bundle --key private.pem",)):
    """Sign a bundle or an export (needs dstransformer[sign])."""

    folder: Folder = argument("FOLDER", "folder of a bundle, a run or an export")
    key: Folder = option("private key of an elliptic curve, in PEM format", "FILE", required=True)


class Verify(Command, examples=("dst verify runs/en-de/bundle --key public.pem",)):
    """Check the signature of a bundle or an export, and all its hashes."""

    folder: Folder = argument("FOLDER", "folder of a bundle, a run or an export")
    key: Folder | None = option("public key, in PEM format; without it only a bundle's own hashes", "FILE")


@Sign.handler
def run_sign(options: Sign) -> CommandResult:
    """Sign a folder, after its hashes have been checked.

    Raises:
        DataError: The folder is neither a bundle nor an export, or is damaged.
    """
    from dstransformer.io.products import SIGNATURE, kind_of
    from dstransformer.io.signatures import Signer

    exit_on_sigterm()
    signer = Signer(options.key)
    if kind_of(options.folder) == "export":
        place = options.folder
    else:
        from dstransformer.model import open_bundle

        bundle = open_bundle(options.folder)
        bundle.verify_weights()
        place = bundle.path
    signer.sign(place)
    return CommandResult(f"{place / SIGNATURE}: signed with {options.key}")


@Verify.handler
def run_verify(options: Verify) -> CommandResult:
    """Check a signature and hashes.

    Raises:
        DataError: The folder is not what was signed, or does not match its hashes; or it is an export without a key.
    """
    from dstransformer.io.products import kind_of
    from dstransformer.io.signatures import verify_signature

    place, checked = options.folder, []
    if kind_of(place) != "export":
        from dstransformer.model import open_bundle

        bundle = open_bundle(place)
        (bundle.verify_weights if options.key is not None else bundle.verify_files)()
        what = "files match" if options.key is None else "weights and tokenizer match"
        place, checked = bundle.path, [f"its {what} their hashes"]
    elif options.key is None:
        raise DataError(f"{place} is an export, which has no hashes of its own: give --key")
    if options.key is not None:
        verify_signature(place, options.key)
        checked.append(f"every file is as it was signed with the key of {options.key}")
    return CommandResult(f"{place}: {', and '.join(checked)}")
