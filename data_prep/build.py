"""Builds a corpus: four stages over a work folder, then the finished corpus moves to its place."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from data_prep.recipe.options import EncodeOptions
from data_prep.recipe.recipe import Recipe
from data_prep.sources.opening import open_parts
from data_prep.sources.texts import local_text
from data_prep.stages.clean import Clean
from data_prep.stages.encode import Encode
from data_prep.stages.read import Read
from data_prep.stages.rules import check_rules
from data_prep.stages.vocab import Vocab, check_symbols
from data_prep.store.output import check_paths, find_corpus, install, open_output
from data_prep.store.workspace import FULL_ADVICE, Stage, Workspace, check_workspace, open_workspace
from data_prep.workers import Workers
from dstransformer.data import InputFile, Manifest
from dstransformer.io.files import storage_errors
from dstransformer.io.progress import Progress

#: The stages in order.
STAGES: tuple[type[Stage], ...] = (Read, Clean, Vocab, Encode)


def build(
    recipe: Recipe,
    out: Path,
    work: Path,
    *,
    workers: AbstractContextManager[Workers],
    overwrite: bool,
    progress: Progress,
    command: str = "",
    recipes: Sequence[InputFile] = (),
) -> Manifest:
    """Build the corpus ``out``, reusing the stages that an interrupted build of the same corpus left in ``work``.

    Args:
        recipe: The sources, and the options of all stages.
        out: The corpus.
        work: The work folder.
        workers: Where the tasks run; started only if a stage has to run.
        overwrite: Whether another corpus at ``out`` is replaced.
        progress: Shows what is done.
        command: The command line for the manifest, where flags alone do not give the recipe.
        recipes: The files that the recipe came from, if any.

    Raises:
        UserError, DataError: An option, a file or ``out`` cannot be used; finished stages stay in ``work``.
        StorageError: A write failed; ``work`` is removed.
    """
    check_symbols(recipe.vocab.symbols, (recipe.clean.normalise, recipe.clean.normalise_target))
    check_paths(out, work, _inputs(recipe))
    read = Read(open_parts(recipe.sources, progress))
    check_rules(recipe.clean, [part.languages for part in read.parts])
    clean = Clean(recipe.clean, after=read.key)
    vocab = Vocab(recipe.vocab, after=clean.key)
    encode = Encode(recipe.encode, after=vocab.key)
    if corpus := find_corpus(out, encode.key, overwrite):
        progress.note(f"{out} is already built from these inputs with these options")
        return corpus
    check_workspace(work)
    with (
        open_output(out, progress) as unfinished,
        open_workspace(work, progress, STAGES) as workspace,
        workspace.kept_for_retry(),
        workers as executor,
    ):
        if corpus := find_corpus(out, encode.key, overwrite):  # another build has just finished it
            return corpus
        for stage in (read, clean, vocab):
            workspace.run(stage, executor)
        with storage_errors(out.parent, full=FULL_ADVICE):
            manifest = encode.write(workspace, unfinished, executor, command, recipes)
            install(unfinished, out, overwrite)
        workspace.clear()
    return manifest


def run_encode(
    workspace: Workspace, options: EncodeOptions, out: Path, *, workers: Workers, overwrite: bool
) -> Manifest:
    """Write the corpus from the finished stages of a work folder, beside ``out``, and rename it when it is complete.

    ``out`` and the work folder must have passed ``check_paths``.

    Raises:
        UserError: A stage is not finished, or something else is at ``out``.
    """
    encode = Encode(options, after=workspace.chain(Read, Clean, Vocab)[-1].key)
    with open_output(out, workspace.progress) as unfinished:
        if corpus := find_corpus(out, encode.key, overwrite):
            workspace.progress.note(f"{out} is already built from these inputs with these options")
            return corpus
        with storage_errors(out.parent, full=FULL_ADVICE):
            manifest = encode.write(workspace, unfinished, workers)
            install(unfinished, out, overwrite)
    return manifest


def _inputs(recipe: Recipe) -> list[Path | None]:
    """List the files that a build reads, and the folder of a copy of the hub's data."""
    inputs: list[Path | None] = [recipe.vocab.tokenizer_model, recipe.vocab.src_tokenizer_model]
    for source in recipe.sources.values():
        options = dict(source)
        values = [item for value in options.values() for item in (value if isinstance(value, tuple) else (value,))]
        paths = [local_text(value).path for value in values if isinstance(value, Path)]
        inputs += [options.get("hub_path"), *(path for path in paths if path.is_file())]
    return inputs
