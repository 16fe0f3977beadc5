"""Alignments between words become links between the pieces of a micro-batch, however the words are spelled in it."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch
from support.data.corpora import small_tokenizer
from support.data.prep import build

from dstransformer.data import Corpus
from dstransformer.data.alignment import WordBorders
from dstransformer.data.links import LinkReader
from dstransformer.data.packing import Links
from dstransformer.data.plan import Position
from dstransformer.data.reader import Pairs
from dstransformer.data.subwords import BpeDropout

SRC = ["the big houses jump", "two men talk", "a small fox runs over it", "no link here"]
TGT = ["die großen Häuser springen", "zwei Männer unterhalten sich", "es rennt ein Fuchs", "gar nichts"]
ALIGNMENTS = ["0-0 1-1 2-2 3-3", "0-0 1-1 2-2 2-3", "0-2 2-3 3-1 5-0", ""]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    folder = tmp_path_factory.mktemp("aligned")
    small_tokenizer().save(folder / "spm.model")
    for name, lines in (("src", SRC), ("tgt", TGT), ("align", ALIGNMENTS), ("v.src", ["a b"]), ("v.tgt", ["c d"])):
        (folder / name).write_text("".join(line + "\n" for line in lines))
    options = ["--source", "files", "--src-lang", "en", "--tgt-lang", "de", "--tokenizer-model", f"{folder}/spm.model"]
    options += ["--src", f"{folder}/src", "--tgt", f"{folder}/tgt", "--alignments", f"{folder}/align"]
    options += ["--valid-src", f"{folder}/v.src", "--valid-tgt", f"{folder}/v.tgt"]
    assert build(*options, "--out", folder / "corpus") == 0
    return Corpus.open(folder / "corpus")


def expected(corpus: Corpus, rows: list[int], pairs: Pairs) -> dict[tuple[int, int, int], float]:
    """The share of each linked pair of pieces, by sentence, target piece and source piece, computed one by one."""
    borders = WordBorders(corpus.tokenizer)
    src, tgt = (borders.numbers(*side) for side in pairs.sides)
    found: dict[tuple[int, int, int], float] = {}
    src_begin = tgt_begin = 0
    for sentence, row in enumerate(rows):
        own = (
            src[src_begin : src_begin + pairs.src_lengths[sentence]],
            tgt[tgt_begin : tgt_begin + pairs.tgt_lengths[sentence]],
        )
        links = {(int(a), int(b)) for a, _, b in (link.partition("-") for link in ALIGNMENTS[row].split())}
        cells = [(t, s) for t, b in enumerate(own[1]) for s, a in enumerate(own[0]) if (a, b) in links]
        counts = Counter(t for t, _ in cells)
        found |= {(sentence, t, s): 1 / counts[t] for t, s in cells}
        src_begin, tgt_begin = src_begin + pairs.src_lengths[sentence], tgt_begin + pairs.tgt_lengths[sentence]
    return found


def cells(links: Links, aligned: list[int]) -> dict[tuple[int, int, int], float]:
    shape = len(aligned), links.tgt_packing.max_len, links.src_packing.max_len
    places = zip(*np.unravel_index(links.places.numpy(), shape), strict=True)
    return {(aligned[n], int(t), int(s)): share for (n, t, s), share in zip(places, links.shares.tolist(), strict=True)}


@pytest.mark.parametrize("dropout", [0.0, 0.6])
def test_links_equal_those_found_one_by_one(corpus: Corpus, dropout: float) -> None:
    split, rows = corpus.split("train"), [2, 3, 0, 1]
    stored = pairs = split.gather(np.array(rows))
    if dropout:
        pairs = BpeDropout(corpus.tokenizer, dropout, 1, None).sample(pairs, Position(), 0)
        assert len(pairs.src_ids) > len(stored.src_ids)
    links = LinkReader(split, corpus.tokenizer).read(np.array(rows), stored, pairs)
    assert links is not None
    found, wanted = cells(links, [0, 2, 3]), expected(corpus, rows, pairs)
    assert found.keys() == wanted.keys()
    assert all(found[cell] == pytest.approx(wanted[cell]) for cell in wanted)
    lengths = [side[[0, 2, 3]] + 1 for side in (pairs.src_lengths, pairs.tgt_lengths)]
    assert [packing.lengths.tolist() for packing in (links.src_packing, links.tgt_packing)] == [
        one.tolist() for one in lengths
    ]
    begins = np.cumsum(pairs.src_lengths + 1) - pairs.src_lengths - 1
    assert links.src_rows.tolist() == [
        row for n in (0, 2, 3) for row in range(begins[n], begins[n] + pairs.src_lengths[n] + 1)
    ]
    assert torch.equal(links.to(torch.device("cpu")).places, links.places)


def test_pairs_without_links_or_with_another_number_of_words_are_left_out(corpus: Corpus) -> None:
    split = corpus.split("train")
    reader = LinkReader(split, corpus.tokenizer)
    empty = split.gather(np.array([3]))
    assert reader.read(np.array([3]), empty, empty) is None
    stored = split.gather(np.array([0]))
    longer = split.gather(np.array([2]))
    assert reader.read(np.array([0]), stored, longer) is None
