"""Finds the corpus that a model was trained on, by its hashes, or builds it again with the recorded command."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from dstransformer.data import Corpus
from dstransformer.data.manifest import Manifest
from dstransformer.errors import RUN_AGAIN, DataError, DstError, UserError
from dstransformer.extras.child import run_module
from dstransformer.extras.reproduction.record import Record

Say = Callable[[str], None]

#: Options of ``dst-prep build`` that decide where it writes and runs. No corpus records them, so a command that has one
#: was changed. They may be abbreviated.
_OWN_OPTIONS = ("--out", "--overwrite", "--work", "--workers", "--cluster", "--cache-dir")


def find_corpus(record: Record, given: Path | None, built: Path) -> Corpus | None:
    """Open the corpus of a training. Every file is checked.

    Args:
        record: The training.
        given: A folder with the corpus; None for that which the training names, if it still holds the same, or else
            for one built again.
        built: Where an earlier call built it, perhaps.

    Returns:
        The corpus; None if it must be built again.

    Raises:
        DataError: The corpus is another or damaged.
    """
    place = given if given is not None else _former_place(record)
    if place is None and built.exists():
        place = built
    return None if place is None else _open(record, place)


def _open(record: Record, place: Path) -> Corpus:
    """Open and check a corpus.

    Raises:
        DataError: It is another than the recorded one, or damaged.
    """
    corpus = Corpus.open(place)
    for split in record.figures:
        corpus.split(split)
    if difference := _difference(record, corpus.manifest):
        raise DataError(f"{place} is not the corpus of {record.name}: {difference}")
    return corpus


def _former_place(record: Record) -> Path | None:
    """Where the corpus was, if it is still there and the same."""
    recorded = record.provenance.get("corpus")
    if not isinstance(recorded, str):
        return None
    try:
        manifest = Manifest.load(Path(recorded))
    except DataError:
        return None
    return None if _difference(record, manifest) else Path(recorded)


def _difference(record: Record, manifest: Manifest) -> str | None:
    """What differs between a corpus and the recorded one; None if nothing does."""
    sides = (("", manifest.tokenizer), ("src_", manifest.src_tokenizer))
    for side, info in sides:
        before, found = record.provenance.get(f"{side}tokenizer_sha256"), None if info is None else info.sha256
        if before != found:
            return f"{side}tokenizer_sha256 is {found}, not {before}"
    before, found = record.corpus["shards"], manifest.identity["shards"]
    for split in dict.fromkeys([*before, *found]):
        if before.get(split) != found.get(split):
            return f"its split {split} has other hashes{_cause(record.corpus, manifest)}"
    return None


def _cause(before: Mapping[str, Any], manifest: Manifest) -> str:
    """Why a corpus that was built with the recorded command may differ."""
    now = manifest.identity
    for what in ("sources", "recipes", "versions"):
        if before.get(what) != now[what]:
            return f"; its {what} differ: recorded {before.get(what)}, here {now[what]}"[:600]
    return ""


def build_corpus(record: Record, out: Path, inputs: Path | None, say: Say) -> Corpus:
    """Build the corpus of a training with the recorded command.

    Args:
        record: The training.
        out: The folder; the log of the build lies beside it.
        inputs: The folder with the files that it is built from; None for the working folder.
        say: Called with a line about the build.

    Raises:
        DataError: The command is not known, or fails, or builds another corpus.
        UserError: There is no such folder of inputs.
        DstError: The build was stopped.
    """
    if inputs is not None and not inputs.is_dir():
        raise UserError(f"--inputs {inputs} is not a folder: name the one with the files of the corpus")
    command = str(record.corpus["command"])
    try:
        _, *arguments = shlex.split(command)
    except ValueError as error:
        raise DataError(f"the command that built the corpus of {record.name} is damaged ({error}): {command}") from None
    for option in (word.partition("=")[0] for word in arguments if word.startswith("--")):
        if any(len(option) > 2 and own.startswith(option) for own in _OWN_OPTIONS):
            raise DataError(f"the command that built the corpus of {record.name} has {option}, which none records")
    log = out.with_name("corpus.log")
    say(f"corpus    built again in {out} with `{command}`; its log is {log}")
    done = run_module("data_prep", [*arguments, "--out", str(out.absolute())], log, folder=inputs)
    if done.signal is not None:
        raise stopped_early("the build of the corpus")
    if done.status != 0:
        raise DataError(
            f"the corpus cannot be built again ({done.error}): name the folder of its input files with --inputs, or "
            f"the corpus with --corpus; see {log}"
        )
    return _open(record, out)


def stopped_early(what: str) -> DstError:
    """The error for a signal; the exit status says that the same command goes on."""
    stopped = DstError(f"{what} was stopped: run the same command to go on")
    stopped.exit_code = RUN_AGAIN
    return stopped
