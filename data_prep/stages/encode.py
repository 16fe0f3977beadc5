"""Stage four: encode the text in parallel and write the sharded corpus with its manifest."""

import platform
import shlex
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from importlib.metadata import version
from itertools import chain, count, islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import dstransformer
from data_prep.recipe.options import CleanOptions, EncodeOptions, NormalForm
from data_prep.stages.alignments import AlignmentEncoder
from data_prep.stages.clean import Clean, CleanReport
from data_prep.stages.read import Read, ReadReport, text_format
from data_prep.stages.text import TextFormat, count_words, describe_words, no_words, normalise
from data_prep.stages.vocab import Vocab, load_tokenizer, open_tokenizer
from data_prep.store.chunks import Report, chunk_folder, open_chunks, write_chunk
from data_prep.store.pairs import Chunk, add_examples, cut_pairs, iter_chunk, iter_pairs, merge_examples
from data_prep.store.workspace import Stage, StageFiles, Workspace
from data_prep.workers import Workers, run_tasks
from dstransformer.data import (
    CleaningReport,
    CorpusWriter,
    InputFile,
    Manifest,
    Option,
    PartInfo,
    SplitInfo,
    SplitWriter,
    Tokenizer,
    WordCounts,
)
from dstransformer.data.directions import common_language
from dstransformer.errors import DataError
from dstransformer.io.progress import Progress

# Maximum share of unknown tokens without a warning.
_MAX_UNKNOWN = 0.01

#: The token ids in the folder of a chunk.
_IDS = "ids.arrow"


@dataclass(frozen=True)
class Encode(Stage):
    """Encodes the text and writes the corpus. The corpus is not kept in the work folder."""

    name = "encode"
    files = StageFiles(in_chunk=("ids.arrow",))

    options: EncodeOptions
    after: str

    def write(
        self, work: Workspace, folder: Path, workers: Workers, command: str = "", recipes: Sequence[InputFile] = ()
    ) -> Manifest:
        """Write the corpus.

        Args:
            work: The work folder, with the other stages finished.
            folder: Where the corpus goes; a new folder.
            workers: Where the tasks run.
            command: The command line for the manifest, if the options are not all flags.
            recipes: The files of the recipe.

        Raises:
            DataError: A file of a stage is damaged, or no pair is left.
        """
        work.verify(Read)
        work.verify(Clean)
        tokenizer, read = open_tokenizer(work), work.report(Read)
        form = CleanOptions.model_validate(work.finished(Clean).options).normalise_target
        writer = CorpusWriter(folder, tokenizer, shard_rows=self.options.shard_rows)
        with work.unfinished(self) as unfinished:
            encode = partial(_encode_split, work, open_chunks(unfinished), tokenizer.identity, workers)
            rows = writer.split("train", has_text=False, aligned=read.aligned)
            training = encode(work.folder / Clean.name / "train.arrow", rows, self.options.max_tokens)
            splits = {"train": training.info}
            for split in read.pairs:
                if split != "train":
                    path = work.folder / Read.name / f"{split}.arrow"
                    splits[split] = encode(path, writer.split(split, has_text=True), None).info
                    if not text_format(work).trees:
                        _warn_of_unwritable(path, tokenizer, form, work.progress)
        directions = [f"{part.src_lang}-{part.tgt_lang}" for part in read.parts]
        if len(set(directions)) > 1:
            for split, sizes in read.held_out.items():
                pairs = {directions[number]: size for number, size in sizes}
                splits[split] = splits[split].model_copy(update={"directions": pairs})
        manifest = self._manifest(work, splits, training, command, tuple(recipes))
        _warn(manifest, work.progress)
        manifest = manifest.model_copy(update={"warnings": tuple(work.progress.warnings)})
        writer.close(manifest)
        return manifest

    def _manifest(
        self,
        work: Workspace,
        splits: Mapping[str, SplitInfo],
        training: "EncodedSplit",
        command: str,
        recipes: tuple[InputFile, ...],
    ) -> Manifest:
        read, clean, vocab = work.report(Read), work.report(Clean), work.report(Vocab)
        stages = (Read, Clean, Vocab)
        options = {name: value for stage in stages for name, value in work.finished(stage).options.items()}
        options |= self.record()
        cleaning = clean.cleaning
        return Manifest(
            build_key=self.key,
            src_lang=common_language(str(part.src_lang) for part in read.parts),
            tgt_lang=common_language(str(part.tgt_lang) for part in read.parts),
            tokenizer=vocab.tokenizer,
            src_tokenizer=vocab.src_tokenizer,
            trees=text_format(work).trees,
            splits=dict(splits),
            sources=read.sources,
            parts=_parts(read, clean, training.files),
            recipes=recipes,
            cleaning=CleaningReport(
                read=cleaning.read,
                kept=training.info.pairs,
                dropped=cleaning.dropped | {"too_many_tokens": training.too_long},
                examples=cleaning.examples | ({"too_many_tokens": training.examples} if training.examples else {}),
                before=cleaning.before,
                after=training.words,
            ),
            overlap=clean.overlap,
            options=options,
            command=command or _command_line(options),
            versions={
                "dstransformer": dstransformer.__version__,
                "python": platform.python_version(),
                **{name: version(name) for name in ("numpy", "pyarrow", "sentencepiece")},
                "unicode": unicodedata.unidata_version,
                **clean.packages,
            },
        )


def _parts(read: ReadReport, cleaned: CleanReport, kept: Counter[int]) -> tuple[PartInfo, ...]:
    """The parts with what each rule dropped of them, and the pairs that were ``kept`` to the end, of each file."""
    parts, numbers = [], count()
    for part, before, dropped in zip(read.parts, cleaned.parts, cleaned.dropped, strict=True):
        in_files = [kept[number] for number in islice(numbers, max(1, len(part.files)))]
        files = tuple((name, n, stays) for (name, n, _), stays in zip(part.files, in_files, strict=False))
        pairs = sum(in_files)
        lost = dropped | {"too_many_tokens": before - pairs}
        parts.append(part.model_copy(update={"pairs": pairs, "dropped": lost, "files": files}))
    return tuple(parts)


def _command_line(options: Mapping[str, Option]) -> str:
    """The command with every option, as a manifest states it."""
    words = ["dst-prep", "build"]
    for name, value in options.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            words += [f"--{flag}", shlex.join(str(value).split(" ") if name == "symbols" else shlex.split(str(value)))]
    return " ".join(words)


def _warn(manifest: Manifest, progress: Progress) -> None:
    """Warn of unknown tokens, and of sources without a pair that is kept."""
    for (split, language), share in unknown_shares(manifest).items():
        if share > _MAX_UNKNOWN:
            progress.note(
                f"warning: {share:.1%} of the {language} tokens in {split} are unknown to the tokenizer (<unk>): train "
                "one with byte fallback, as `dst-prep vocab` and `dst-prep build` without --tokenizer-model do"
            )
    for part in manifest.parts:
        if part.read and not part.pairs:
            lost = sorted((part.dropped or {}).items(), key=lambda item: -item[1])
            counts = ", ".join(f"{rule} dropped {count:,}" for rule, count in lost if count)
            progress.note(
                f"warning: no training pair of the source {part.name!r} is left: {counts or 'all are held out'}"
            )


def unknown_shares(manifest: Manifest) -> dict[tuple[str, str], float]:
    """Return the share of UNK tokens by split and language."""
    src, tgt = manifest.src_lang, manifest.tgt_lang
    if src == tgt:  # several languages on both sides
        src, tgt = "source", "target"
    return {
        (name, language): unknown / max(tokens, 1)
        for name, info in manifest.splits.items()
        for language, unknown, tokens in (
            (src, info.src_unknown, info.src_tokens),
            (tgt, info.tgt_unknown, info.tgt_tokens),
        )
    }


class Encoded(Report):
    """The pairs of an encoded chunk, by file, its sentences by words, see :func:`count_words`, and dropped pairs."""

    files: list[int]
    words: list[list[int]]
    examples: list[tuple[str, str]]


class EncodedSplit(NamedTuple):
    """A split: the pairs of each file that are in it, word counts, and how many were too long, with some of them."""

    info: SplitInfo
    files: Counter[int]
    words: WordCounts
    too_long: int
    examples: Sequence[tuple[str, str]]


@dataclass(frozen=True)
class _Context:
    """What a worker needs to encode a chunk: ``identity`` is that of the tokenizer in the folder ``vocab``."""

    root: Path
    schema: pa.Schema
    vocab: Path
    identity: str
    text: TextFormat
    max_tokens: int | None


def _encode_split(
    work: Workspace,
    root: Path,
    identity: str,
    workers: Workers,
    path: Path,
    rows: SplitWriter,
    max_tokens: int | None,
) -> EncodedSplit:
    """Write the pairs of a file as the split that it is named after.

    Pairs with more than ``max_tokens`` tokens on either side are left out; None keeps all.

    Raises:
        DataError: Every pair is dropped.
    """
    chunks, examples = cut_pairs(path), list[tuple[str, str]]()
    total = sum(chunk.rows for chunk in chunks)
    files, words = Counter[int](), no_words()
    context = _Context(root, rows.schema, work.folder / Vocab.name, identity, text_format(work), max_tokens)
    with (
        work.progress.task(f"encode {path.stem}", total) as advance,
        run_tasks(partial(_encode_chunk, context), chunks, workers) as results,
    ):
        for chunk, report in zip(chunks, results, strict=True):
            with pa.memory_map(str(chunk_folder(root, path.stem, chunk.number) / _IDS)) as file:
                rows.write(pa.ipc.open_stream(file).read_all())
            files.update(dict(enumerate(report.files)))
            words += report.words
            merge_examples(examples, report.examples)
            advance(chunk.rows)
    if not files.total() and max_tokens is not None:
        raise DataError(f"all {total} {path.stem} pairs have more than {max_tokens} tokens: raise --max-tokens")
    info = rows.close()
    return EncodedSplit(info, files, describe_words(words), total - info.pairs, tuple(examples))


def _warn_of_unwritable(path: Path, tokenizer: Tokenizer, form: NormalForm, progress: Progress) -> None:
    """Warn of target sentences that a model cannot write, as it learns from text in the Unicode ``form``."""
    references = [text for batch in iter_pairs(path) for text in batch["tgt"].to_pylist()]
    outputs = tokenizer.decode(tokenizer.encode([normalise(text, form) for text in references]))
    changed = [pair for pair in zip(references, outputs, strict=True) if pair[0].split() != pair[1].split()]
    if changed:
        reference, output = min(changed, key=lambda pair: len(pair[0]))
        advice = "leave out --normalise-target, or take another tokenizer"
        if normalise(reference, "nfc") == normalise(output, "nfc"):  # they look alike
            reference, output = ascii(reference)[1:-1], ascii(output)[1:-1]
            advice = "write the references in Unicode form NFC, without invisible characters"
        progress.note(
            f"warning: a model cannot write {len(changed) / len(references):.1%} of the target sentences of "
            f"{path.stem} as they are, such as '{reference}' as '{output}': {advice}"
        )


def _encode_chunk(context: _Context, chunk: Chunk) -> Encoded:
    """Write the token ids of a chunk."""

    def write(folder: Path) -> Encoded:
        tokenizer = _load_tokenizer_once(context.vocab, context.identity)
        aligned = AlignmentEncoder(tokenizer) if "alignment" in context.schema.names else None
        files, words, examples = [np.empty(0, dtype=np.uint32)], no_words(), list[tuple[str, str]]()
        with pa.ipc.new_stream(str(folder / _IDS), context.schema) as stream:
            for batch in iter_chunk(chunk):
                table = encode_pairs(batch, tokenizer, context.max_tokens, context.text, aligned, examples)
                stream.write_table(table.select(context.schema.names).cast(context.schema))
                files.append(table["file"].to_numpy())
                words += count_words(table["src_text"], table["tgt_text"])
        return Encoded(files=np.bincount(np.concatenate(files)).tolist(), words=words.tolist(), examples=examples)

    return write_chunk(chunk_folder(context.root, chunk.path.stem, chunk.number), Encoded, write)


@lru_cache(maxsize=1)
def _load_tokenizer_once(vocab: Path, identity: str) -> Tokenizer:
    """Load the tokenizer. A worker keeps it from one chunk to the next."""
    tokenizer = load_tokenizer(vocab)
    if tokenizer.identity != identity:
        raise DataError(f"the tokenizer in {vocab} has changed since the build began: run it again")
    return tokenizer


def encode_pairs(
    table: pa.Table,
    tokenizer: Tokenizer,
    max_tokens: int | None,
    text: TextFormat,
    aligned: AlignmentEncoder | None = None,
    examples: list[tuple[str, str]] | None = None,
) -> pa.Table:
    """Encode both sides, without BOS and EOS.

    Args:
        table: Pairs.
        tokenizer: The tokenizer.
        max_tokens: Drop pairs with more tokens on either side, or none; None keeps every pair.
        text: How sentences are written.
        aligned: Encodes the alignments of training pairs; None leaves them out.
        examples: Takes the first pairs that are dropped.

    Returns:
        The ids, the file, with ``aligned`` the alignment, and the text: ``src_text`` with its tag if every pair is
        kept, as held-out text is stored.
    """
    sentences, form = text.tagged(table), text.form
    src = _column(tokenizer.src.encode(form.sources(sentences), threads=1))
    texts = table["tgt"].to_pylist()
    tgt = _column(form.encode(texts, tokenizer))
    encoded = pa.table({"src": src, "tgt": tgt, "file": table["file"], "tgt_text": table["tgt"]})
    if max_tokens is None:
        return encoded.append_column("src_text", pa.array(sentences, pa.string()))
    encoded = encoded.append_column("src_text", table["src"])
    if aligned is not None:
        skipped = [
            len(tagged.split()) - len(plain.split())
            for tagged, plain in zip(sentences, table["src"].to_pylist(), strict=True)
        ]
        links = aligned.encode(table["alignment"].to_pylist(), (sentences, texts), (src, tgt), skipped)
        encoded = encoded.append_column("alignment", links)
    lengths = pc.list_value_length(src), pc.list_value_length(tgt)
    # A given tokenizer can leave nothing of a text.
    keep = pc.and_(
        pc.less_equal(pc.max_element_wise(*lengths), max_tokens), pc.greater(pc.min_element_wise(*lengths), 0)
    )
    if examples is not None:
        add_examples(examples, table, np.asarray(pc.invert(keep)))
    return encoded.filter(keep)


def _column(ids: list[list[int]]) -> pa.ListArray:
    offsets = np.cumsum([0, *map(len, ids)], dtype=np.int32)
    return pa.ListArray.from_arrays(offsets, np.fromiter(chain.from_iterable(ids), dtype=np.int32, count=offsets[-1]))
