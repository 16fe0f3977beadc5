"""The commands of ``dst-prep``. Handlers import lazily, so ``--help`` answers at once."""

import argparse
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from data_prep import arguments as options
from dstransformer import __version__
from dstransformer.errors import StorageError, UserError

# What an option is where it is not given; by source where sources differ.
_DEFAULTS: dict[str, dict[str, Any]] = {
    "toy": {"src_lang": "en", "tgt_lang": "de", "vocab_size": 2000, "valid_size": 1000, "test_size": 1000},
    "files": {"vocab_size": 37_000, "valid_size": 0, "test_size": 0},
    "wmt14 de-en": {"vocab_size": 37_000, "character_coverage": 0.9998},
    "wmt14 fr-en": {"vocab_size": 32_000, "character_coverage": 0.9998, "tokenizer": "unigram"},
}
_COMMON_DEFAULTS: dict[str, Any] = {
    "tokenizer": "bpe",
    "character_coverage": 1.0,
    "pairs": 100_000,
    "pair": "de-en",
    "revision": "main",
    "offline": False,
    "seed": 1,
}


@contextmanager
def _printing(rest: str = "") -> Iterator[None]:
    """Say that standard output cannot be written; ``rest`` is what is to be known beside."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise StorageError(f"cannot write standard output: {error.strerror}{rest}") from None


def run(argv: Sequence[str] | None = None) -> None:
    """Run the command that the command line, or ``argv``, gives.

    Raises:
        DstError, OSError: what went wrong.
        SystemExit: the command line is at fault, or asks for help.
    """
    arguments = _build_parser().parse_args(argv)
    arguments.handler(arguments)


def _build_parser() -> argparse.ArgumentParser:
    parser = options.Parser(prog="dst-prep", description="Turn parallel text into a sharded, encoded corpus.")
    parser.add_argument("--version", action="version", version=f"dst-prep {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    build = _add_command(commands, "build", _build, "all stages: text in, corpus out")
    for add in (
        options.add_source,
        options.add_clean,
        options.add_vocab,
        options.add_encode,
        options.add_out,
        options.add_workers,
    ):
        add(build)
    build.add_argument(
        "--work", type=options.folder, metavar="DIR", help="folder for unfinished work (default: OUT.work)"
    )

    read = _add_command(commands, "read", _read, "stage one: read the source into a work folder")
    clean = _add_command(commands, "clean", _clean, "stage two: normalise and filter the training text")
    vocab = _add_command(commands, "vocab", _vocab, "stage three: train or take over a tokenizer")
    encode = _add_command(commands, "encode", _encode, "stage four: write the corpus")
    for stage in (read, clean, vocab, encode):
        stage.add_argument(
            "--work", type=options.folder, required=True, metavar="DIR", help="folder shared by the stages"
        )
        options.add_workers(stage)
    options.add_source(read)
    options.add_clean(clean)
    options.add_vocab(vocab)
    options.add_encode(encode)
    options.add_out(encode)

    info = _add_command(commands, "info", _info, "show what a corpus holds")
    info.add_argument("corpus", type=options.folder, metavar="CORPUS", help="a corpus folder")
    info.add_argument("--json", action="store_true", help="print the manifest")
    verify = _add_command(commands, "verify", _verify, "check every checksum of a corpus")
    verify.add_argument("corpus", type=options.folder, metavar="CORPUS", help="a corpus folder")
    text = _add_command(commands, "text", _text, "write the raw text of a held-out split to two files")
    text.add_argument("corpus", type=options.folder, metavar="CORPUS", help="a corpus folder")
    text.add_argument("--split", default="test", metavar="NAME", help="validation or test (default: test)")
    text.add_argument(
        "--src",
        required=True,
        type=options.path,
        metavar="FILE",
        help="source text, one sentence per line (-: standard output)",
    )
    text.add_argument("--tgt", required=True, type=options.path, metavar="FILE", help="its translation, line by line")
    text.add_argument("--overwrite", action="store_true", help="replace files that are there")
    return parser


def _add_command(commands: Any, name: str, handler: Any, help_text: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(name, help=help_text, description=help_text)
    parser.set_defaults(handler=handler)
    return parser


def _build(arguments: argparse.Namespace) -> None:
    from data_prep.output import resolve_output
    from data_prep.pipeline import BuildOptions, build
    from data_prep.progress import build_progress
    from data_prep.report import show_manifest

    options = BuildOptions(
        source=_source_options(arguments),
        clean=_clean_options(arguments),
        vocab=_vocab_options(arguments, _defaults(arguments.source, arguments.pair)),
        encode=_encode_options(arguments),
    )
    out = resolve_output(arguments.out)
    work = arguments.work.absolute() if arguments.work else out.with_name(f"{out.name}.work")
    manifest = build(
        options, out, work, workers=arguments.workers, overwrite=arguments.overwrite, progress=build_progress()
    )
    with _printing(f"; the corpus {arguments.out} is whole"):
        show_manifest(arguments.out, manifest)


def _read(arguments: argparse.Namespace) -> None:
    from data_prep.pipeline import run_read
    from data_prep.progress import build_progress
    from data_prep.workspace import open_workspace

    options = _source_options(arguments)
    with open_workspace(arguments.work, build_progress()) as space:
        run_read(space, options, arguments.workers)


def _clean(arguments: argparse.Namespace) -> None:
    from data_prep.clean import CleanReport
    from data_prep.pipeline import run_clean
    from data_prep.progress import build_progress
    from data_prep.report import show_cleaning
    from data_prep.workspace import open_workspace

    with open_workspace(arguments.work, build_progress(), after="read") as space:
        run_clean(space, _clean_options(arguments), arguments.workers)
        report = space.report("clean", CleanReport)
    with _printing(f"; the stage in {arguments.work} is finished"):
        show_cleaning(report.cleaning)


def _vocab(arguments: argparse.Namespace) -> None:
    from data_prep.pipeline import run_vocab
    from data_prep.progress import build_progress
    from data_prep.workspace import open_workspace

    with open_workspace(arguments.work, build_progress(), after="read") as space:
        read = space.finished("read")
        defaults = _defaults(str(read.options["source"]), read.options.get("pair"))  # type: ignore[arg-type]
        run_vocab(space, _vocab_options(arguments, defaults))


def _encode(arguments: argparse.Namespace) -> None:
    from data_prep.output import check_places, resolve_output
    from data_prep.pipeline import run_encode
    from data_prep.progress import build_progress
    from data_prep.report import show_manifest
    from data_prep.workspace import open_workspace

    out = resolve_output(arguments.out)
    check_places(out, arguments.work)
    with open_workspace(arguments.work, build_progress(), after="read") as space:
        manifest = run_encode(
            space, _encode_options(arguments), out, workers=arguments.workers, overwrite=arguments.overwrite
        )
    with _printing(f"; the corpus {arguments.out} is whole"):
        show_manifest(arguments.out, manifest)


def _info(arguments: argparse.Namespace) -> None:
    from data_prep.report import show_manifest
    from dstransformer.corpus import Manifest

    manifest = Manifest.load(arguments.corpus)
    with _printing():
        if arguments.json:
            print(manifest.to_json(), end="")
        else:
            show_manifest(arguments.corpus, manifest)


def _verify(arguments: argparse.Namespace) -> None:
    from dstransformer.corpus import Corpus

    corpus = Corpus.open(arguments.corpus)
    shards = sum(len(info.shards) for info in corpus.manifest.splits.values())
    with _printing():
        print(f"{arguments.corpus}: format, tokenizer and {shards} shards are as the manifest says")


def _text(arguments: argparse.Namespace) -> None:
    from data_prep.output import check_text_files, write_text_files
    from dstransformer.corpus import Corpus

    check_text_files(arguments.src, arguments.tgt, arguments.overwrite)
    corpus = Corpus.open(arguments.corpus, verify=False)
    split = corpus.split(arguments.split)
    texts = {arguments.src: split.src_texts(), arguments.tgt: split.tgt_texts()}
    corpus.verify(arguments.split)
    write_text_files(texts, overwrite=arguments.overwrite)


def _defaults(source: str, pair: str | None) -> dict[str, Any]:
    pair = pair or _COMMON_DEFAULTS["pair"]
    return _COMMON_DEFAULTS | _DEFAULTS[f"{source} {pair}" if source == "wmt14" else source]


def _source_options(arguments: argparse.Namespace) -> Any:
    from dataclasses import fields

    from data_prep.options import FilesOptions, ToyOptions, Wmt14Options

    kinds: dict[str, Any] = {"toy": ToyOptions, "files": FilesOptions, "wmt14": Wmt14Options}
    kind = kinds[arguments.source]
    names = {field.name for field in fields(kind)}
    for name in sorted({field.name for other in kinds.values() for field in fields(other)} - names):
        if getattr(arguments, name) is not None:
            raise UserError(f"--{name.replace('_', '-')} is not an option of source {arguments.source}: leave it out")
    values = _given(arguments, names, _defaults(arguments.source, arguments.pair))
    if arguments.source == "wmt14":
        english = {"src_lang": "en", "tgt_lang": values["pair"].removesuffix("-en")}
        values |= {name: values[name] or language for name, language in english.items()}
    for name in ("src_lang", "tgt_lang"):
        if not values[name]:
            raise UserError(f"--{name.replace('_', '-')} is missing: the language code of that side, for example en")
    return kind(**values)


def _clean_options(arguments: argparse.Namespace) -> Any:
    from dataclasses import fields

    from data_prep.options import CleanOptions

    return CleanOptions(**_given(arguments, {field.name for field in fields(CleanOptions)}, {}))


def _vocab_options(arguments: argparse.Namespace, defaults: dict[str, Any]) -> Any:
    from dataclasses import fields

    from data_prep.options import VocabOptions

    if arguments.tokenizer_model and (arguments.vocab_size or arguments.tokenizer):
        raise UserError("--tokenizer-model brings its own kind and size: leave out --tokenizer and --vocab-size")
    return VocabOptions(**_given(arguments, {field.name for field in fields(VocabOptions)}, defaults))


def _encode_options(arguments: argparse.Namespace) -> Any:
    from data_prep.options import EncodeOptions

    return EncodeOptions(**_given(arguments, {"max_tokens", "shard_rows"}, {}))


def _given(arguments: argparse.Namespace, names: set[str], defaults: dict[str, Any]) -> dict[str, Any]:
    """The options ``names``, each as given on the command line or else its default."""
    given = {name: getattr(arguments, name) for name in names}
    return {name: defaults.get(name) if value is None else value for name, value in given.items()}
