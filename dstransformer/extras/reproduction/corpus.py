"""Finds the corpus that a model was trained on, by its hashes, or builds it again with the recorded command."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

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
    path, recorded = given, record.provenance.get("corpus")
    if path is None and isinstance(recorded, str):
        with suppress(DataError):
            path = None if _difference(record, Manifest.load(Path(recorded))) else Path(recorded)
    if path is None and built.exists():
        path = built
    return None if path is None else _open(record, path)


def _open(record: Record, path: Path) -> Corpus:
    """Open a corpus; raises if it is another than the recorded one, or damaged."""
    corpus = Corpus.open(path)
    for split in record.figures:
        corpus.split(split)
    if difference := _difference(record, corpus.manifest):
        raise DataError(f"{path} is not the corpus of {record.name}: {difference}")
    return corpus


def _difference(record: Record, manifest: Manifest) -> str | None:
    """What differs between a corpus and the recorded one; None if nothing does."""
    sides = (("", manifest.tokenizer), ("src_", manifest.src_tokenizer))
    for side, info in sides:
        before, found = record.provenance.get(f"{side}tokenizer_sha256"), None if info is None else info.sha256
        if before != found:
            return f"{side}tokenizer_sha256 is {found}, not {before}"
    before, now = record.corpus, manifest.identity
    shards, new_shards = before["shards"], now["shards"]
    split = next((name for name in {**shards, **new_shards} if shards.get(name) != new_shards.get(name)), None)
    if split is None:
        return None
    for part in ("sources", "recipes", "versions"):  # why one built with the recorded command may differ
        if before.get(part) != now[part]:
            cause = f"; its {part} differ: recorded {before.get(part)}, here {now[part]}"[:600]
            return f"its split {split} has other hashes{cause}"
    return f"its split {split} has other hashes"


def build_corpus(record: Record, out: Path, inputs: Path | None, say: Say) -> Corpus:
    """Build the corpus of a training with the recorded command, from files in ``inputs`` or the working folder.

    The log of the build lies beside ``out``.

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
