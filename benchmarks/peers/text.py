"""The text that every system trains on and translates: the same sentences in the same pieces."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import sentencepiece

from benchmarks.lib.multi30k import LANGUAGES, find_text
from benchmarks.lib.processes import run_prep
from dstransformer.data import Corpus, Tokenizer
from dstransformer.io.text import iter_lines

VOCABULARY = 8000

#: In the folder of a corpus, and in that of trained models.
TOKENIZER = "tokenizer.model"


@dataclass(frozen=True)
class Text:
    """A corpus of ours, and the same pairs as files of pieces in ``pieces``.

    Attributes:
        src_lengths: Tokens of each training pair's source, end of sentence included, ``(pairs,)``.
        tgt_lengths: The same of the target.
    """

    corpus: Path
    pieces: Path
    src_lengths: np.ndarray
    tgt_lengths: np.ndarray


def build_text(data: Path, folder: Path) -> Text:
    """Clean and encode ``{train,val}.{en,de}`` (or ``.gz``) of ``data`` into ``folder``."""
    corpus = folder / "corpus"
    files = []
    for option, split in (("", "train"), ("valid-", "val")):
        for side, language in LANGUAGES.items():
            files.append(f"--{option}{side}={find_text(data, split, language)}")
    vocabulary = ["--vocab-size", str(VOCABULARY), "--tokenizer", "bpe"]
    languages = ["--src-lang", "en", "--tgt-lang", "de"]
    run_prep("build", "--source", "files", *languages, *files, *vocabulary, "--out", str(corpus))
    built = Corpus.open(corpus)
    train = built.split("train")
    pieces = folder / "pieces"
    _write_pieces(built, pieces)
    return Text(corpus, pieces, train.src_lengths + 1, train.tgt_lengths + 1)


@dataclass(frozen=True)
class HeldOut:
    """A split to translate.

    Attributes:
        pieces: The source of each sentence, without its end.
        references: The target as it stands in the data.
    """

    name: str
    pieces: list[list[str]]
    references: list[str]


class Pieces:
    """Text to pieces and back, with the tokenizer of a corpus or of a bundle."""

    def __init__(self, path: Path) -> None:
        model = sentencepiece.SentencePieceProcessor(model_file=str(path))
        self._tokenizer = Tokenizer.load(path)
        self.vocabulary = [model.id_to_piece(number) for number in range(model.vocab_size())]
        self._ids = {piece: number for number, piece in enumerate(self.vocabulary)}

    def split(self, ids: Sequence[int]) -> list[str]:
        """A sentence of ids as pieces."""
        return [self.vocabulary[number] for number in ids]

    def join(self, sentences: Sequence[Sequence[str]]) -> list[str]:
        """Sentences of pieces as a reader wants them."""
        return self._tokenizer.decode([[self._ids[piece] for piece in sentence] for sentence in sentences])

    def read(self, data: Path, split: str) -> HeldOut:
        """``{split}.{en,de}`` (or ``.gz``) of ``data``."""
        src, references = (list(iter_lines(find_text(data, split, language))) for language in LANGUAGES.values())
        return HeldOut(split, [self.split(ids) for ids in self._tokenizer.encode(src)], references)

    def write_vocabulary(self, path: Path) -> None:
        """A piece a line, in the order of the ids."""
        path.write_text("".join(f"{piece}\n" for piece in self.vocabulary), encoding="utf-8")


def _write_pieces(corpus: Corpus, folder: Path) -> None:
    folder.mkdir()
    pieces = Pieces(corpus.path / TOKENIZER)
    pieces.write_vocabulary(folder / "vocabulary.txt")
    for split, name in (("train", "train"), ("validation", "valid")):
        rows = corpus.split(split)
        src, src_lengths, tgt, tgt_lengths = rows.gather(np.arange(len(rows)))
        for side, ids, lengths in (("src", src, src_lengths), ("tgt", tgt, tgt_lengths)):
            with (folder / f"{name}.{side}").open("w", encoding="utf-8") as file:
                for sentence in np.split(ids, np.cumsum(lengths)[:-1]):
                    file.write(" ".join(pieces.split(sentence.tolist())) + "\n")
