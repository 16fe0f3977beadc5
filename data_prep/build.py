"""Runs the stages read, clean, vocab and encode in order, and moves the finished corpus to its place."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path

from pydantic import TypeAdapter

from data_prep.cli.tables import unknown_shares
from data_prep.cli.verify import changed_sources
from data_prep.recipe.options import (
    CleanOptions,
    EncodeOptions,
    FilesOptions,
    SourceOptions,
    VocabOptions,
    Wmt14Options,
)
from data_prep.recipe.recipe import Recipe, record_sources
from data_prep.sources import Part, open_parts
from data_prep.sources.files import same_sides, swapped_sides
from data_prep.sources.texts import archive_of
from data_prep.stages.clean import CleanReport, clean_text
from data_prep.stages.encode import Encoder, Form, load_tokenizer
from data_prep.stages.near import load_minhash
from data_prep.stages.origin import command_line, deciding_versions, package_versions, rule_versions
from data_prep.stages.read import ReadReport, read_text
from data_prep.stages.rules import load_detector
from data_prep.stages.vocab import Tokenizers, check_symbols, make_tokenizers
from data_prep.store.output import check_places, find_corpus, install, open_output
from data_prep.store.workspace import FULL_ADVICE, StageRecord, Workspace, check_workspace, open_workspace, stage_key
from data_prep.workers.pool import Workers
from dstransformer.corpus import (
    FORMAT_VERSION,
    CleaningReport,
    CorpusWriter,
    InputFile,
    Manifest,
    PartInfo,
    Tokenizer,
    TokenizerInfo,
)
from dstransformer.corpus.tokenizer import SRC_TOKENIZER_NAME, TOKENIZER_NAME
from dstransformer.errors import DataError, StorageError, UserError
from dstransformer.io.files import file_sha256, storage_errors
from dstransformer.parsing.linearise import Linearisation
from dstransformer.terminal.progress import Progress

# Shares above which a warning is printed: of held-out sentences in the training text, of unknown tokens.
_NOTED_OVERLAP = 0.005
_NOTED_UNKNOWN = 0.01

_SENTENCEPIECE_RULES = {"nfkc": "nfkc", "none": "identity"}


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
        workers: Who does it; opened when there is something to do.
        overwrite: Whether another corpus at ``out`` is replaced.
        progress: Shows what is done.
        command: The command line for the manifest, if the options are not all flags.
        recipes: The files of the recipe, if it is one of files.

    Raises:
        UserError, DataError: An option, a file or ``out`` cannot be used; finished stages stay in ``work``.
        StorageError: The file system refused; ``work`` is removed.
    """
    check_symbols(recipe.vocab.symbols, recipe.clean.normalise)
    check_places(out, work, _inputs(recipe))
    parts = open_parts(recipe.sources, progress)
    key = _build_key(parts, recipe)
    if there := find_corpus(out, key, overwrite):
        progress.note(f"{out} is already built from these inputs with these options")
        return there
    check_workspace(work)
    with (
        open_output(out, progress) as unfinished,
        open_workspace(work, progress) as space,
        _tidy(space),
        workers as hands,
    ):
        if there := find_corpus(out, key, overwrite):  # made by a build that has just ended
            return there
        run_read(space, recipe.sources, hands, parts)
        run_clean(space, recipe.clean, hands)
        run_vocab(space, recipe.vocab)
        records = _chained(space, "read", "clean", "vocab")
        with storage_errors(out.parent, full=FULL_ADVICE):
            manifest = _write_corpus(space, records, recipe.encode, unfinished, hands, command, recipes)
            install(unfinished, out, overwrite)
        space.clear()
    return manifest


def run_read(
    space: Workspace, sources: Mapping[str, SourceOptions], workers: Workers, parts: Sequence[Part] | None = None
) -> StageRecord:
    """Run stage one.

    Args:
        space: The work folder.
        sources: The sources.
        workers: Who does it.
        parts: The sources if they are already open.
    """
    opened = parts or open_parts(sources, space.progress)
    for options in sources.values():
        if isinstance(options, FilesOptions) and (warning := swapped_sides(options) or same_sides(options)):
            space.progress.note(warning)
    if changes := changed_sources(space, [part.source.info for part in opened]):
        space.progress.note(f"reading the text again, because {changes}")
    make = partial(read_text, opened, workers=workers, progress=space.progress)
    return space.run("read", "", _read_content(opened), record_sources(sources), make)


def run_clean(space: Workspace, options: CleanOptions, workers: Workers) -> StageRecord:
    """Run stage two on the text that stage one read."""
    read = space.finished("read")
    if read.options["source"] == "trees" and options.normalise != "none":
        raise UserError(f"--normalise {options.normalise} would change the words of trees: leave it out")
    space.verify("read")
    languages = str(read.options["src_lang"]), str(read.options["tgt_lang"])
    make = partial(
        clean_text,
        space.folder / "read",
        options=options,
        languages=languages,
        parts=len(space.report("read", ReadReport).parts),
        workers=workers,
        progress=space.progress,
    )
    record = space.run("clean", read.key, _clean_content(options), options.record(), make)
    _warn_of_overlap(space, space.report("read", ReadReport), space.report("clean", CleanReport))
    return record


def _warn_of_overlap(space: Workspace, read: ReadReport, clean: CleanReport) -> None:
    for split, overlap in clean.overlap.items():
        share = overlap.sentences / read.pairs[split]
        if share > _NOTED_OVERLAP:
            space.progress.note(
                f"warning: scores on the {split} set may be too high: {share:.1%} of its sentences are in the training "
                "text; --drop-overlap leaves such pairs out of training"
            )


def _warn_of_unknown(manifest: Manifest, progress: Progress) -> None:
    for (split, language), share in unknown_shares(manifest).items():
        if share > _NOTED_UNKNOWN:
            progress.note(
                f"warning: {share:.1%} of the {language} tokens in {split} are unknown to the tokenizer (<unk>): train "
                "one with byte fallback, as `dst-prep vocab` and `dst-prep build` without --tokenizer-model do"
            )


def run_vocab(space: Workspace, options: VocabOptions) -> StageRecord:
    """Run stage three on the cleaned training text."""
    clean = _chained(space, "read", "clean")[-1]
    space.verify("clean")
    normalise = str(clean.options["normalise"])
    check_symbols(options.symbols, normalise)
    rule = _SENTENCEPIECE_RULES[normalise]

    def make(folder: Path) -> Tokenizers:
        train = space.folder / "clean" / "train.arrow"
        return make_tokenizers(train, folder, options, rule, _form(space), space.progress)

    return space.run("vocab", clean.key, _vocab_content(options), options.record(), make)


def run_encode(space: Workspace, options: EncodeOptions, out: Path, *, workers: Workers, overwrite: bool) -> Manifest:
    """Run stage four: write the corpus beside ``out`` and rename it once it is complete and on disk.

    ``out`` and the work folder must have passed ``check_places``.
    """
    records = _chained(space, "read", "clean", "vocab")
    key = _encode_key(records[-1].key, options)
    with open_output(out, space.progress) as unfinished:
        if there := find_corpus(out, key, overwrite):
            space.progress.note(f"{out} is already built from these inputs with these options")
            return there
        with storage_errors(out.parent, full=FULL_ADVICE):
            manifest = _write_corpus(space, records, options, unfinished, workers)
            install(unfinished, out, overwrite)
    return manifest


def _inputs(recipe: Recipe) -> list[Path | None]:
    """List the files that a build reads, and the folder of a copy of the hub's data."""
    inputs: list[Path | None] = [recipe.vocab.tokenizer_model, recipe.vocab.src_tokenizer_model]
    for source in recipe.sources.values():
        if isinstance(source, Wmt14Options):
            inputs.append(source.hub_path)
        else:
            given = [one for _, value in source for one in (value if isinstance(value, tuple) else (value,))]
            paths = [archive_of(value) for value in given if isinstance(value, Path)]
            inputs += [path for path in paths if path.is_file()]
    return inputs


def _write_corpus(
    space: Workspace,
    records: list[StageRecord],
    options: EncodeOptions,
    folder: Path,
    workers: Workers,
    command: str = "",
    recipes: Sequence[InputFile] = (),
) -> Manifest:
    read, _, vocab = records
    space.verify("read")
    space.verify("clean")
    read_report = space.report("read", ReadReport)
    cleaned = space.report("clean", CleanReport)
    cleaning = cleaned.cleaning
    made = space.report("vocab", Tokenizers)
    tokenizer = _verified_tokenizer(space, made)
    writer = CorpusWriter(folder, tokenizer, shard_rows=options.shard_rows)
    train = space.folder / "clean" / "train.arrow"
    form = _form(space)
    with space.unfinished("encode", _encode_key(vocab.key, options)) as unfinished:
        vocabulary = space.folder / "vocab"
        encoder = Encoder(unfinished, writer, vocabulary, tokenizer.identity, form, workers, space.progress)
        encoded = encoder.encode_train(train, options.max_tokens)
        splits = {"train": encoded.info}
        for split in read_report.pairs:
            if split != "train":
                splits[split] = encoder.encode_held_out(space.folder / "read" / f"{split}.arrow")
    given = {name: value for record in records for name, value in record.options.items()} | options.record()
    manifest = Manifest(
        format_version=FORMAT_VERSION,
        build_key=_encode_key(vocab.key, options),
        src_lang=str(read.options["src_lang"]),
        tgt_lang=str(read.options["tgt_lang"]),
        tokenizer=made.tokenizer,
        src_tokenizer=made.src_tokenizer,
        trees=form.trees,
        splits=splits,
        sources=read_report.sources,
        parts=_parts(read_report, cleaned, encoded.parts),
        recipes=tuple(recipes),
        cleaning=CleaningReport(
            read=cleaning.read,
            kept=encoded.info.pairs,
            dropped=cleaning.dropped | {"too_many_tokens": encoded.too_long},
            examples=cleaning.examples,
            before=cleaning.before,
            after=encoded.words,
        ),
        overlap=cleaned.overlap,
        options=given,
        command=command or command_line(given),
        versions=package_versions() | cleaned.packages,
    )
    writer.close(manifest)
    _warn_of_unknown(manifest, space.progress)
    for part in manifest.parts:
        if part.read and not part.pairs:
            space.progress.note(f"warning: no training pair of the source {part.name!r} is left: {_most_dropped(part)}")
    return manifest


def _most_dropped(part: PartInfo) -> str:
    """What became of the pairs of a source, in words."""
    lost = sorted((part.dropped or {}).items(), key=lambda item: -item[1])
    counts = [f"{rule} dropped {count:,}" for rule, count in lost if count]
    return ", ".join(counts) or "all are held out"


def _parts(read: ReadReport, cleaned: CleanReport, kept: Sequence[int]) -> tuple[PartInfo, ...]:
    """The parts with what each rule dropped of them, and the pairs that were ``kept`` to the end."""
    return tuple(
        PartInfo(
            name=part.name,
            weight=part.weight,
            tag=part.tag,
            read=part.read,
            pairs=pairs,
            dropped=dropped | {"too_many_tokens": before - pairs},
            held_out=part.held_out,
        )
        for part, before, dropped, pairs in zip(read.parts, cleaned.parts, cleaned.dropped, kept, strict=True)
    )


def _linearisation(space: Workspace) -> Linearisation | None:
    """How the trees of the source are written; None if it is no treebank."""
    read = space.finished("read").options
    if read["source"] != "trees":
        return None
    return TypeAdapter(Linearisation).validate_python({name: read[name] for name in ("tags", "closing")})


def _form(space: Workspace) -> Form:
    """How the sentences of the sources are written."""
    parts = space.report("read", ReadReport).parts
    return Form(tuple(part.tag for part in parts), _linearisation(space))


def _verified_tokenizer(space: Workspace, made: Tokenizers) -> Tokenizer:
    folder = space.folder / "vocab"
    if made.src_tokenizer is not None:
        _check_unchanged(folder / SRC_TOKENIZER_NAME, made.src_tokenizer)
    _check_unchanged(folder / TOKENIZER_NAME, made.tokenizer)
    return load_tokenizer(folder)


def _check_unchanged(path: Path, info: TokenizerInfo) -> None:
    if not path.is_file() or file_sha256(path) != info.sha256:
        raise DataError(
            f"{path} is damaged or gone: remove {path.parent}, then run `dst-prep vocab` or `dst-prep build` again"
        )


def _build_key(parts: Sequence[Part], recipe: Recipe) -> str:
    """Compute the key of the corpus before any stage has run."""
    read = stage_key("read", "", _read_content(parts))
    clean = stage_key("clean", read, _clean_content(recipe.clean))
    vocab = stage_key("vocab", clean, _vocab_content(recipe.vocab))
    return _encode_key(vocab, recipe.encode)


def _encode_key(vocab: str, options: EncodeOptions) -> str:
    return stage_key("encode", vocab, options.record())


def _read_content(parts: Sequence[Part]) -> dict[str, object]:
    sources = {part.name: {"source": part.source.info.model_dump(), "options": part.options.record()} for part in parts}
    return {"sources": sources, "order": list(sources), "made_by": deciding_versions()}


def _clean_content(options: CleanOptions) -> dict[str, object]:
    content: dict[str, object] = dict(options.record())
    if options.min_language:
        load_detector()  # refused before any work if it is not there
    if options.near_duplicates is not None:
        load_minhash()
    return content | rule_versions(options)


def _vocab_content(options: VocabOptions) -> dict[str, object]:
    content: dict[str, object] = dict(options.record())
    if options.tokenizer_model:
        src = options.src_tokenizer_model
        content["sha256"] = Tokenizer.load(options.tokenizer_model, Tokenizer.load(src) if src else None).identity
    return content


def _chained(space: Workspace, *names: str) -> list[StageRecord]:
    """Return the records of finished stages.

    Raises:
        UserError: A stage is not finished, or an earlier one has changed since it was made.
    """
    records = [space.finished(name) for name in names]
    for before, record, name in zip(records, records[1:], names[1:], strict=False):
        if record.after != before.key:
            raise UserError(
                f"the stage {name!r} in {space.folder} was made from other text or options than are there now: "
                f"run `dst-prep {name} --work {space.folder}` again"
            )
    return records


@contextmanager
def _tidy(space: Workspace) -> Iterator[None]:
    """On an error, keep finished stages only if the user can fix it; a full disk must not stay full."""
    try:
        yield
    except (OSError, StorageError):
        space.clear()
        raise
    except UserError as error:
        if not space.has_work():
            raise
        raise type(error)(f"{error} (finished stages stay in {space.folder} for the next try)") from None
    finally:
        if not space.has_work():
            space.clear()
