"""The text that every system trains on: the same sentences, cut into the same pieces."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import sentencepiece

from dstransformer.corpus import Corpus

VOCABULARY = 8000
SIDES = {"src": "en", "tgt": "de"}


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
    command = [sys.executable, "-m", "data_prep", "build", "--source", "files", "--src-lang", "en", "--tgt-lang", "de"]
    for option, split in (("", "train"), ("valid-", "val")):
        for side, language in SIDES.items():
            command += [f"--{option}{side}", str(_find(data, f"{split}.{language}"))]
    command += ["--vocab-size", str(VOCABULARY), "--tokenizer", "bpe", "--out", str(corpus)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    built = Corpus.open(corpus)
    train = built.split("train")
    pieces = folder / "pieces"
    _write_pieces(built, pieces)
    return Text(corpus, pieces, train.src_lengths + 1, train.tgt_lengths + 1)


def _find(data: Path, name: str) -> Path:
    for path in (data / name, data / f"{name}.gz"):
        if path.is_file():
            return path
    raise SystemExit(f"{data} holds neither {name} nor {name}.gz: give --data the folder of Multi30k")


def _write_pieces(corpus: Corpus, folder: Path) -> None:
    folder.mkdir()
    model = sentencepiece.SentencePieceProcessor(model_file=str(corpus.path / "tokenizer.model"))
    vocabulary = [model.id_to_piece(number) for number in range(model.vocab_size())]
    (folder / "vocabulary.txt").write_text("".join(f"{piece}\n" for piece in vocabulary), encoding="utf-8")
    for split, name in (("train", "train"), ("validation", "valid")):
        rows = corpus.split(split)
        src, src_lengths, tgt, tgt_lengths = rows.gather(np.arange(len(rows)))
        for side, ids, lengths in (("src", src, src_lengths), ("tgt", tgt, tgt_lengths)):
            with (folder / f"{name}.{side}").open("w", encoding="utf-8") as file:
                for sentence in np.split(ids, np.cumsum(lengths)[:-1]):
                    file.write(" ".join(vocabulary[number] for number in sentence) + "\n")
