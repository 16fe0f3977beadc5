"""The commands of ``dst-prep``. Handlers import what they need, so that ``--help`` is fast."""

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import combinations
from typing import TYPE_CHECKING, NamedTuple

from dstransformer import __version__
from dstransformer.errors import DataError, DstError, UserError, counted
from dstransformer.io.command import CommandParser, printing, set_verbosity

if TYPE_CHECKING:
    from data_prep.store.workspace import Workspace
    from data_prep.workers import Workers
    from dstransformer.data import Corpus


def run(words: Sequence[str]) -> None:
    """Run the command that the command line ``words`` gives.

    Raises:
        DstError, OSError: The command failed.
        SystemExit: The user asked for help or the version.
    """
    with printing():  # help and version
        arguments = parse(words)
    set_verbosity(arguments)
    arguments.handler(arguments)


def parse(words: Sequence[str]) -> argparse.Namespace:
    """Parse a command line."""
    return build_parser(words).parse_args(words)


def build_parser(words: Sequence[str] | None = None) -> CommandParser:
    """Build the parser of ``dst-prep``.

    Args:
        words: The command line. Only the commands that it names get their options, which import pydantic and the
            recipes' models; None gives all commands theirs.
    """
    parser = CommandParser(prog="dst-prep", description="Turn parallel text into a sharded, encoded corpus.")
    parser.add_argument("--version", action="version", version=f"dst-prep {__version__}")
    commands = parser.add_commands("COMMAND")
    for command in _COMMANDS:
        subparser = commands.add_parser(command.name, help=command.summary, examples=command.examples)
        subparser.set_defaults(handler=command.handler)
        if words is None or command.name in words:
            from data_prep.cli.arguments import add_options

            add_options(subparser, command.name)
    return parser


def _build(arguments: argparse.Namespace) -> None:
    from data_prep.build import build
    from data_prep.cli import arguments as options
    from data_prep.cli.tables import show_manifest
    from data_prep.recipe.recipe import identify_recipe
    from data_prep.store.output import resolve_output
    from data_prep.workers import open_workers
    from dstransformer.io.progress import Progress

    recipe = options.read_recipe(arguments)
    out = resolve_output(arguments.out)
    work = arguments.work.absolute() if arguments.work else out.with_name(f"{out.name}.work")
    progress = Progress(bars=sys.stderr.isatty())
    try:
        manifest = build(
            recipe,
            out,
            work,
            workers=open_workers(arguments.workers, arguments.cluster, work, progress),
            overwrite=arguments.overwrite,
            progress=progress,
            command=options.recipe_command(arguments),
            recipes=identify_recipe(arguments.recipe),
        )
    except DstError:
        progress.repeat_warnings()
        raise
    with printing(f"; the corpus {arguments.out} is complete"):
        show_manifest(arguments.out, manifest)
    progress.repeat_warnings()


def _mono(arguments: argparse.Namespace) -> None:
    from data_prep.cli import arguments as options
    from data_prep.cli.tables import show_cleaning
    from data_prep.mono import clean_mono, record_path
    from data_prep.workers import open_workers
    from dstransformer.io.progress import Progress

    text, cleaning = options.read_mono(arguments)
    out = arguments.out
    work = (arguments.work or out.with_name(f"{out.name}.work")).absolute()
    progress = Progress(bars=sys.stderr.isatty())
    workers = open_workers(arguments.workers, arguments.cluster, work, progress)
    record = clean_mono(text, cleaning, out, work, workers=workers, overwrite=arguments.overwrite, progress=progress)
    with printing(f"; the text {out} is complete"):
        kept = counted(record.kept, "sentence")
        print(f"{out}: {kept} in {record.lang}; {record_path(out)} says what they were made from")
        show_cleaning(record, "lines")


def _filter(arguments: argparse.Namespace) -> None:
    from data_prep.filter import filter_pairs

    lowest = arguments.drop_lowest is not None
    done = filter_pairs(
        arguments.src,
        arguments.tgt,
        arguments.scores,
        (arguments.out_src, arguments.out_tgt),
        share=arguments.drop_lowest if lowest else arguments.drop_highest,
        worst="lowest" if lowest else "highest",
        column=arguments.column,
        overwrite=arguments.overwrite,
    )
    with printing("; the texts are complete"):
        print(done)


@contextmanager
def _open_work(arguments: argparse.Namespace, *, filled: bool = True) -> Iterator[tuple["Workspace", "Workers"]]:
    """Open the work folder of a single stage, which the stages before have filled, and the workers."""
    from data_prep.build import STAGES
    from data_prep.store.workspace import open_workspace
    from data_prep.workers import open_workers
    from dstransformer.io.progress import Progress

    # Workers of a cluster may run in another folder.
    folder = arguments.work.absolute() if arguments.cluster else arguments.work
    with (
        open_workspace(folder, Progress(bars=sys.stderr.isatty()), STAGES, filled=filled) as workspace,
        open_workers(arguments.workers, arguments.cluster, folder, workspace.progress) as workers,
    ):
        yield workspace, workers


def _recipes(_: argparse.Namespace) -> None:
    from data_prep.recipe.recipe import recipe_summaries

    with printing(needed=True):
        summaries = recipe_summaries()
        width = max(map(len, summaries))
        for name, summary in summaries.items():
            print(f"{name:{width}}  {summary}")


def _read(arguments: argparse.Namespace) -> None:
    from data_prep.cli import arguments as options
    from data_prep.sources.opening import open_parts
    from data_prep.stages.read import Read

    source = options.read_source(arguments)
    with _open_work(arguments, filled=False) as (workspace, workers):
        workspace.run(Read(open_parts({source.source: source}, workspace.progress)), workers)


def _clean(arguments: argparse.Namespace) -> None:
    from data_prep.cli import arguments as options
    from data_prep.cli.tables import show_cleaning
    from data_prep.recipe.options import CleanOptions
    from data_prep.stages.clean import Clean
    from data_prep.stages.read import Read

    with _open_work(arguments) as (workspace, workers):
        read = workspace.finished(Read)
        rules = options.read_stage(arguments, CleanOptions, "clean", read.options)
        workspace.run(Clean(rules, after=read.key), workers)
        report = workspace.report(Clean)
    with printing(f"; the stage in {arguments.work} is finished"):
        show_cleaning(report.cleaning)


def _vocab(arguments: argparse.Namespace) -> None:
    from data_prep.cli import arguments as options
    from data_prep.recipe.options import VocabOptions
    from data_prep.stages.clean import Clean
    from data_prep.stages.read import Read
    from data_prep.stages.vocab import Vocab

    with _open_work(arguments) as (workspace, workers):
        vocab = options.read_stage(arguments, VocabOptions, "vocab", workspace.finished(Read).options)
        workspace.run(Vocab(vocab, after=workspace.chain(Read, Clean)[-1].key), workers)


def _encode(arguments: argparse.Namespace) -> None:
    from data_prep.build import run_encode
    from data_prep.cli import arguments as options
    from data_prep.cli.tables import show_manifest
    from data_prep.recipe.options import EncodeOptions
    from data_prep.stages.read import Read
    from data_prep.store.output import check_paths, resolve_output

    out = resolve_output(arguments.out)
    check_paths(out, arguments.work)
    with _open_work(arguments) as (workspace, workers):
        encoding = options.read_stage(arguments, EncodeOptions, "encode", workspace.finished(Read).options)
        manifest = run_encode(workspace, encoding, out, workers=workers, overwrite=arguments.overwrite)
    with printing(f"; the corpus {arguments.out} is complete"):
        show_manifest(arguments.out, manifest)


def _info(arguments: argparse.Namespace) -> None:
    from data_prep.cli.tables import show_manifest
    from dstransformer.data import Corpus

    corpus = Corpus.open(arguments.corpus, verify=False)
    _check_files_of_datasets(corpus)
    manifest = corpus.manifest
    with printing(needed=True):
        if arguments.json:
            print(manifest.to_json(), end="")
        else:
            show_manifest(arguments.corpus, manifest)
            for warning in manifest.warnings:
                print(f"warning: {warning}")


def _verify(arguments: argparse.Namespace) -> None:
    from data_prep.cli.tables import show_counts
    from data_prep.cli.verify import check_held_out, check_tags, compare_inputs
    from dstransformer.data import Corpus

    corpus = Corpus.open(arguments.corpus)
    check_tags(corpus)
    check_held_out(corpus)
    _check_files_of_datasets(corpus)
    shards = sum(len(info.shards) for info in corpus.manifest.splits.values())
    with printing(needed=True):
        print(f"{arguments.corpus}: format, tokenizer and {shards} shards are as the manifest says")
        show_counts(corpus.manifest)
    if arguments.inputs:
        lines, lost, compared = compare_inputs(corpus.manifest, arguments.inputs)
        with printing(needed=True):
            print(*lines, sep="\n")
        if lost:
            raise DataError(f"{lost} of the {compared} files that {arguments.corpus} was made from changed or are gone")


def _check_files_of_datasets(corpus: "Corpus") -> None:
    """Check that ``datasets.load_from_disk`` finds what it needs; training does not need it.

    Raises:
        DataError: A file is missing.
    """
    names = ["dataset_dict.json"]
    names += [f"{split}/{name}" for split in corpus.splits for name in ("dataset_info.json", "state.json")]
    for name in names:
        if not (corpus.path / name).is_file():
            raise DataError(
                f"{corpus.path / name} is missing: `dst train` does not need it, but `datasets` cannot open the corpus "
                "without it; restore it or build the corpus again"
            )


def _report(arguments: argparse.Namespace) -> None:
    from data_prep.cli.page import render_report
    from dstransformer.data import Corpus
    from dstransformer.io.text import writing_lines

    if arguments.out.suffix != ".html":
        raise UserError(f"--out {arguments.out} does not end in .html: name the page, for example report.html")
    corpus = Corpus.open(arguments.corpus, verify=False)
    with writing_lines(arguments.out, overwrite=arguments.overwrite) as write:
        write(render_report(corpus, arguments.corpus.resolve().name))


def _text(arguments: argparse.Namespace) -> None:
    from dstransformer.data import Corpus
    from dstransformer.io.text import is_same_file, writing_files

    paths = {"--src": arguments.src, "--tgt": arguments.tgt}
    if arguments.alignments is not None:
        paths["--alignments"] = arguments.alignments
    for (flag, path), (other, its) in combinations(paths.items(), 2):
        if is_same_file(path, its):
            raise UserError(f"{flag} and {other} are both {path}: give each its own file")
    with writing_files(paths.values(), overwrite=arguments.overwrite) as writes:
        corpus = Corpus.open(arguments.corpus, verify=False)
        split = corpus.split(arguments.split)
        texts = [split.src_texts(), split.tgt_texts()]
        corpus.verify(arguments.split)
        if arguments.alignments is not None:
            from data_prep.sources.toy import reference_links
            from dstransformer.data.alignment import format_links

            texts.append([format_links(links) for links in reference_links(corpus, arguments.split)])
        for write, sentences in zip(writes, texts, strict=True):
            for sentence in sentences:
                write(" ".join(sentence.splitlines()))


def _completion(arguments: argparse.Namespace) -> None:
    from data_prep.recipe.recipe import recipe_summaries
    from dstransformer.io.command import completion_script

    with printing(needed=True):
        print(completion_script(build_parser(), arguments.shell, {"recipe": list(recipe_summaries())}))


class _Command(NamedTuple):
    """A command: its handler, what it does, and examples. Its options are in ``arguments``."""

    handler: Callable[[argparse.Namespace], None]
    summary: str
    examples: Sequence[str]

    @property
    def name(self) -> str:
        """The word of the command line: ``build`` of ``_build``."""
        return self.handler.__name__.removeprefix("_")


_COMMANDS = (
    _Command(
        _build,
        "all stages: text in, corpus out",
        ("dst-prep build --source toy --out corpora/toy", "dst-prep build wmt14_en_de --out corpora/en-de"),
    ),
    _Command(_read, "stage one: read the source into a work folder", ("dst-prep read --source toy --work work",)),
    _Command(
        _clean, "stage two: normalise and filter the training text", ("dst-prep clean --work work --max-ratio 2",)
    ),
    _Command(
        _vocab,
        "stage three: train a tokenizer, or use an existing one",
        ("dst-prep vocab --work work --vocab-size 8000",),
    ),
    _Command(_encode, "stage four: write the corpus", ("dst-prep encode --work work --out corpora/toy",)),
    _Command(
        _mono,
        "clean text of one language, for back-translation and distillation",
        ("dst-prep mono --lang de --in news.de.gz --held-out test.de --out mono.de.gz",),
    ),
    _Command(
        _filter,
        "drop the pairs with the worst scores",
        ("dst-prep filter --src en --tgt de --scores scores.tsv --out-src a.en --out-tgt a.de --drop-lowest 0.1",),
    ),
    _Command(_info, "show what a corpus holds", ("dst-prep info corpora/toy",)),
    _Command(_recipes, "list the recipes of the package", ("dst-prep recipes",)),
    _Command(_verify, "check every checksum and count of a corpus", ("dst-prep verify corpora/toy",)),
    _Command(
        _report,
        "draw a page: lengths, vocabulary, what cleaning dropped",
        ("dst-prep report corpora/toy --out report.html",),
    ),
    _Command(
        _text,
        "write the raw text of a held-out split to files",
        ("dst-prep text corpora/toy --split test --src test.en --tgt test.de",),
    ),
    _Command(_completion, "print a script that completes dst-prep in a shell", ("dst-prep completion bash",)),
)
