"""``dst-prep``: parallel text in, sharded corpus out. Handlers import lazily, so ``--help`` answers at once."""

import argparse
import math
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from dstransformer.errors import DstError, StorageError, UserError

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


Number = TypeVar("Number", int, float)


def _number(kind: Callable[[str], Number], allows: Callable[[Number], bool], wanted: str) -> Callable[[str], Number]:
    """The type of an option: a number that ``allows`` agrees to, which is ``wanted`` in words."""

    def read(text: str) -> Number:
        try:
            value = kind(text)
        except ValueError:
            value = None
        if value is None or not allows(value):
            raise argparse.ArgumentTypeError(f"{text!r} is not {wanted}")
        return value

    return read


_count = _number(int, lambda value: value >= 0, "a whole number of 0 or more")
_positive = _number(int, lambda value: value >= 1, "a whole number of 1 or more")
_ratio = _number(float, lambda value: 1 <= value < math.inf, "a number of 1 or more")
_share = _number(float, lambda value: 0 < value <= 1, "a number above 0 and at most 1")


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line; ``--help`` has the usage."""

    def error(self, message: str) -> NoReturn:
        """A wrong option or value."""
        self.exit(UserError.exit_code, f"dst-prep: error: {message}; see `{self.prog} --help`\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``dst-prep``; returns the process's exit status."""
    arguments = _build_parser().parse_args(argv)
    try:
        arguments.handler(arguments)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader of our output has had enough
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115
    except DstError as error:
        print(f"dst-prep: error: {error}", file=sys.stderr)
        return error.exit_code
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        print(
            f"dst-prep: error: {where}{error.strerror or error}; mend that and run the command again", file=sys.stderr
        )
        return StorageError.exit_code
    except KeyboardInterrupt:
        print("dst-prep: interrupted; the same command goes on from the last finished stage", file=sys.stderr)
        return 130
    return 0


def _build_parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="dst-prep", description="Turn parallel text into a sharded, encoded corpus.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    build = _add_command(commands, "build", _build, "all stages: text in, corpus out")
    for add in (_add_source, _add_clean, _add_vocab, _add_encode, _add_out, _add_workers):
        add(build)
    build.add_argument("--work", type=Path, help="folder for unfinished work (default: OUT.work)")

    read = _add_command(commands, "read", _read, "stage one: read the source into a work folder")
    clean = _add_command(commands, "clean", _clean, "stage two: normalise and filter the training text")
    vocab = _add_command(commands, "vocab", _vocab, "stage three: train or take over a tokenizer")
    encode = _add_command(commands, "encode", _encode, "stage four: write the corpus")
    for stage in (read, clean, vocab, encode):
        stage.add_argument("--work", type=Path, required=True, help="folder shared by the stages")
        _add_workers(stage)
    _add_source(read)
    _add_clean(clean)
    _add_vocab(vocab)
    _add_encode(encode)
    _add_out(encode)

    info = _add_command(commands, "info", _info, "show what a corpus holds")
    info.add_argument("corpus", type=Path, metavar="CORPUS")
    info.add_argument("--json", action="store_true", help="print the manifest")
    verify = _add_command(commands, "verify", _verify, "check every checksum of a corpus")
    verify.add_argument("corpus", type=Path, metavar="CORPUS")
    text = _add_command(commands, "text", _text, "write the raw text of a held-out split to two files")
    text.add_argument("corpus", type=Path, metavar="CORPUS")
    text.add_argument("--split", default="test", help="(default: test)")
    text.add_argument("--src", required=True, type=Path, metavar="FILE", help="source text, a sentence a line")
    text.add_argument("--tgt", required=True, type=Path, metavar="FILE", help="its translation, line by line")
    text.add_argument("--overwrite", action="store_true", help="replace files that are there")
    return parser


def _add_command(commands: Any, name: str, handler: Any, help_text: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(name, help=help_text, description=help_text)
    parser.set_defaults(handler=handler)
    return parser


def _add_source(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("source")
    group.add_argument("--source", choices=("toy", "files", "wmt14"), required=True)
    group.add_argument("--src-lang", metavar="CODE", help="for example en")
    group.add_argument("--tgt-lang", metavar="CODE", help="for example de")
    group.add_argument("--seed", type=_count, help="of the toy sentences and of held-out pairs (default: 1)")
    group.add_argument("--valid-size", type=_count, metavar="N", help="toy: validation pairs; files: pairs held out")
    group.add_argument("--test-size", type=_count, metavar="N", help="the same for the test set")

    group = parser.add_argument_group("source toy: an English-German grammar")
    group.add_argument("--pairs", type=_positive, help="training pairs (default: 100000)")

    group = parser.add_argument_group("source files, plain or gzipped: two texts a split, a sentence a line")
    for flag in ("--src", "--tgt", "--valid-src", "--valid-tgt", "--test-src", "--test-tgt"):
        group.add_argument(flag, type=Path, metavar="FILE")

    group = parser.add_argument_group("source files: or one .tsv, .jsonl (also .gz) or .parquet a split")
    for flag in ("--train", "--valid", "--test"):
        group.add_argument(flag, type=Path, metavar="FILE")

    group = parser.add_argument_group("source wmt14")
    group.add_argument("--pair", choices=("de-en", "fr-en"), help="(default: de-en)")
    group.add_argument("--revision", help="of the hub's data set (default: main)")
    group.add_argument("--hub-path", type=Path, metavar="DIR", help="a local copy in the hub's layout")
    group.add_argument("--cache-dir", type=Path, metavar="DIR", help="where `datasets` keeps downloads")
    group.add_argument("--offline", action="store_true", default=None, help="use the cache only")


def _add_clean(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("cleaning of the training text")
    group.add_argument("--normalise", choices=("nfkc", "none"), default="nfkc", help="Unicode form (default: nfkc)")
    group.add_argument("--max-words", type=_positive, default=250, help="on either side (default: 250)")
    group.add_argument("--max-ratio", type=_ratio, default=4.0, help="longer to shorter, in words (default: 4)")
    group.add_argument("--dedup", action=argparse.BooleanOptionalAction, default=True, help="drop repeated pairs")
    group.add_argument(
        "--drop-overlap",
        action=argparse.BooleanOptionalAction,
        default=False,
        help="drop training pairs whose source sentence is in the validation or test set (default: only count them)",
    )


def _add_vocab(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("vocabulary, joint for both languages")
    group.add_argument("--tokenizer", choices=("bpe", "unigram"), help="(default: bpe; unigram for wmt14 fr-en)")
    group.add_argument(
        "--vocab-size", type=_positive, help="(default: 37000; 32000 for wmt14 fr-en; 2000 for the toy source)"
    )
    group.add_argument(
        "--tokenizer-sample", type=_positive, default=5_000_000, metavar="N", help="lines (default: 5000000)"
    )
    group.add_argument("--tokenizer-seed", type=_count, default=1, help="of that sample (default: 1)")
    group.add_argument(
        "--character-coverage", type=_share, help="the rest is spelled in bytes (default: 1.0; 0.9998 for wmt14)"
    )
    group.add_argument("--tokenizer-model", type=Path, metavar="FILE", help="reuse this tokenizer, train none")


def _add_encode(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("encoding")
    group.add_argument("--max-tokens", type=_positive, default=256, help="drop longer training pairs (default: 256)")
    group.add_argument("--shard-rows", type=_positive, default=1_000_000, help="pairs a shard (default: 1000000)")


def _add_out(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", type=Path, required=True, metavar="CORPUS", help="the corpus to make")
    parser.add_argument("--overwrite", action="store_true", help="replace another corpus at CORPUS")


def _add_workers(parser: argparse.ArgumentParser) -> None:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    parser.add_argument("--workers", type=_positive, default=cores, help="processes (default: all cores)")


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

    with open_workspace(arguments.work, build_progress()) as space:
        run_clean(space, _clean_options(arguments), arguments.workers)
        report = space.report("clean", CleanReport)
    show_cleaning(report.cleaning)


def _vocab(arguments: argparse.Namespace) -> None:
    from data_prep.pipeline import run_vocab
    from data_prep.progress import build_progress
    from data_prep.workspace import open_workspace

    with open_workspace(arguments.work, build_progress()) as space:
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
    with open_workspace(arguments.work, build_progress()) as space:
        manifest = run_encode(
            space, _encode_options(arguments), out, workers=arguments.workers, overwrite=arguments.overwrite
        )
    show_manifest(arguments.out, manifest)


def _info(arguments: argparse.Namespace) -> None:
    from data_prep.report import show_manifest
    from dstransformer.corpus import Manifest

    manifest = Manifest.load(arguments.corpus)
    if arguments.json:
        print(manifest.to_json(), end="")
    else:
        show_manifest(arguments.corpus, manifest)


def _verify(arguments: argparse.Namespace) -> None:
    from dstransformer.corpus import Corpus

    corpus = Corpus.open(arguments.corpus)
    shards = sum(len(info.shards) for info in corpus.manifest.splits.values())
    print(f"{arguments.corpus}: format, tokenizer and {shards} shards are as the manifest says")


def _text(arguments: argparse.Namespace) -> None:
    from contextlib import ExitStack

    from data_prep.output import check_text_files
    from dstransformer.corpus import Corpus
    from dstransformer.corpus.lines import writing_lines

    check_text_files(arguments.src, arguments.tgt, arguments.overwrite)
    split = Corpus.open(arguments.corpus, verify=False).split(arguments.split)
    texts = (split.src_texts(), split.tgt_texts())
    with ExitStack() as files:  # both appear at the end, or neither
        for path, sentences in zip((arguments.src, arguments.tgt), texts, strict=True):
            write = files.enter_context(writing_lines(path))
            for sentence in sentences:
                write(" ".join(sentence.splitlines()))


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
