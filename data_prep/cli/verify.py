"""Checks of ``dst-prep verify``: inputs against the manifest, tags and held-out text against the token ids."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import sentencepiece

from data_prep.grammar.sentences import GRAMMAR_REVISION
from data_prep.recipe.names import printable_name
from data_prep.recipe.recipe import RECIPES
from data_prep.stages.encode import encode_pairs
from data_prep.stages.text import TextFormat
from data_prep.store.workspace import list_names
from dstransformer.data import Corpus, InputFile, Manifest, SourceInfo
from dstransformer.data.manifest import MANIFEST_NAME
from dstransformer.errors import DataError, UserError
from dstransformer.io.files import file_sha256

#: Pairs that are read at a time, and pairs that are encoded.
_ROWS, _TEXTS = 1_000_000, 10_000


def compare_inputs(manifest: Manifest, paths: Sequence[Path]) -> tuple[list[str], int, int]:
    """Compare the files of all sources, the recipe and given tokenizers with their hashes and sizes.

    The manifest has their names without folders. Of several files with the same name, one must match.

    Args:
        manifest: The manifest.
        paths: Files, and folders that are searched at any depth.

    Returns:
        What was found, a line for each file that changed or is gone, and one for the others; the number of files that
        changed or are gone, and of all.

    Raises:
        UserError: A path does not exist.
    """
    recorded = _recorded(manifest)
    candidates = _find({file.name for file in recorded}, [*paths, RECIPES] if manifest.recipes else paths)
    hashes: dict[Path, str] = {}
    compared = (_difference(file, candidates.get(file.name, []), hashes) for file in recorded)
    problems = [line for line in compared if line is not None]
    lines = [*problems, *_revisions(manifest.sources)]
    if recorded:
        lines.append(f"inputs: {len(recorded) - len(problems)} of {len(recorded)} files are as the manifest says")
    return lines, len(problems), len(recorded)


def _recorded(manifest: Manifest) -> list[InputFile]:
    """The files that the corpus was made from; an archive once, however many of its members were read."""
    files = {
        (_file_name(file), file.sha256): InputFile(name=_file_name(file), sha256=file.sha256, size=file.size)
        for file in (*(file for source in manifest.sources for file in source.inputs), *manifest.recipes)
        if "://" not in file.name
    }
    for option, info in (
        ("tokenizer_model", manifest.tokenizer),
        ("src_tokenizer_model", manifest.src_tokenizer),
    ):
        if info and (model := manifest.options.get(option)):
            files[str(model), info.sha256] = InputFile(name=str(model), sha256=info.sha256)
    return list(files.values())


def _file_name(file: InputFile) -> str:
    """The name of a file on disk: of ``FILE.tgz::MEMBER`` that of the archive, of a tree file without its split."""
    return file.name.partition("::")[0].rpartition("/")[2]


def _find(names: set[str], paths: Sequence[Path]) -> dict[str, list[Path]]:
    """The files with these names, in order."""
    by_name: dict[str, list[Path]] = {}
    for path in dict.fromkeys(file for start in paths for file in _walk(start)):
        if (name := printable_name(path)) in names:
            by_name.setdefault(name, []).append(path)
    return by_name


def _walk(path: Path) -> Iterator[Path]:
    if not path.exists():
        raise UserError(f"--inputs {path} does not exist: name the files that the corpus was made from, or a folder")
    if not path.is_dir():
        yield path
    seen: set[str] = set()
    for folder, below, files in os.walk(path, followlinks=True):
        below.sort()
        real = os.path.realpath(folder)
        if real in seen:  # circular links
            below.clear()
            continue
        seen.add(real)
        yield from (Path(folder, file) for file in sorted(files) if Path(folder, file).is_file())


def _difference(file: InputFile, found: Sequence[Path], hashes: dict[Path, str]) -> str | None:
    """What is wrong with a file; None if one of those found is the recorded one. ``hashes`` caches those computed."""
    if not found:
        return f"gone: {file.name}"
    lines = []
    for path in found:
        try:
            size = path.stat().st_size
            if file.size is not None and size != file.size:
                lines.append(f"changed: {path} has {size:,} bytes, the manifest says {file.size:,}")
                continue
            if path not in hashes:
                hashes[path] = file_sha256(path)
        except OSError as error:
            lines.append(f"gone: {path} cannot be read ({error.strerror})")
            continue
        if hashes[path] == file.sha256:
            return None
        lines.append(f"changed: {path} has sha256 {hashes[path][:12]}, the manifest says {file.sha256[:12]}")
    return lines[0]


def _revisions(sources: Iterable[SourceInfo]) -> Iterator[str]:
    """Notes on sources that are not files."""
    for source in sources:
        if remote := [file.name for file in source.inputs if "://" in file.name]:
            yield f"note: {list_names(remote)} came from servers and were not compared"
        if source.name == "toy" and source.revision != str(GRAMMAR_REVISION):
            yield "note: this version of dst-prep has another toy grammar"
        elif source.name != "toy" and source.revision is not None:
            yield f"note: {source.name} is revision {source.revision} of a data set on the hub, which was not compared"


def check_tags(corpus: Corpus) -> None:
    """Check that the source sentences of each part begin with its tag.

    Raises:
        DataError: A sentence does not begin with its tag.
    """
    end = 0
    for part in corpus.manifest.parts:
        begin, end = end, end + part.pairs
        if part.tag is None:
            continue
        tag = np.array(corpus.tokenizer.src.encode([part.tag])[0], dtype=np.int32)
        for first in range(begin, end, _ROWS):
            ids, lengths, _, _ = corpus.split("train").gather(np.arange(first, min(first + _ROWS, end)))
            starts = np.cumsum(lengths, dtype=np.int64) - lengths
            if (lengths < len(tag)).any() or (ids[starts[:, None] + np.arange(len(tag))] != tag).any():
                raise DataError(
                    f"{corpus.path / MANIFEST_NAME} is damaged (parts: not all sentences of {part.name} begin with its "
                    f"tag {part.tag}): restore it or build the corpus again"
                )


def check_held_out(corpus: Corpus) -> None:
    """Check that the token ids of the held-out splits are those of their raw text.

    Raises:
        DataError: The tokenizer encodes a sentence to other ids.
    """
    text_format = TextFormat((None,), corpus.manifest.trees)
    for name in corpus.splits:
        split = corpus.split(name)
        if not split.info.has_text:
            continue
        zeros = np.zeros(len(split), np.uint16)
        texts = pa.table({"src": split.src_texts(), "tgt": split.tgt_texts(), "part": zeros, "file": zeros})
        for first in range(0, len(split), _TEXTS):
            stored = split.gather(np.arange(first, min(first + _TEXTS, len(split))))
            encoded = encode_pairs(texts.slice(first, _TEXTS), corpus.tokenizer, None, text_format)
            for side, ids, lengths in (("src", *stored[:2]), ("tgt", *stored[2:])):
                column = encoded[side].combine_chunks()
                if not (
                    np.array_equal(pc.list_value_length(column), lengths) and np.array_equal(column.flatten(), ids)
                ):
                    raise DataError(
                        f"{corpus.path / name} is damaged: token ids and text of the {side} side differ. Or "
                        f"SentencePiece {sentencepiece.__version__} encodes otherwise than the version that made them. "
                        "Restore it, or build the corpus again"
                    )
