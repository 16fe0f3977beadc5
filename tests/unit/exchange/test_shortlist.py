"""The shortlist of an export: model 1 against plain enumeration, and translations that stay within it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from support.data.corpora import build_toy, train_model
from support.models.random_bundle import random_bundle
from support.processes.launching import run_dst

from dstransformer.cli import main
from dstransformer.data import EOS_ID, Corpus
from dstransformer.exchange import shortlist as shortlist_module
from dstransformer.exchange.ct2 import VOCABULARY_MAP, export_ct2
from dstransformer.exchange.ct2_engine import open_ct2
from dstransformer.exchange.shortlist import ITERATIONS, ShortlistOptions, build_shortlist, lexical_table

BEST, FREQUENT = 20, 40


class Pairs:
    """What the model reads of a split."""

    def __init__(self, *pairs: tuple[list[int], list[int]]) -> None:
        self.pairs = pairs

    def __len__(self) -> int:
        return len(self.pairs)

    def gather(self, indices: np.ndarray) -> tuple[np.ndarray, ...]:
        chosen = [self.pairs[index] for index in indices]
        return tuple(
            part
            for side in (0, 1)
            for part in (
                np.array([piece for pair in chosen for piece in pair[side]], dtype=np.int32),
                np.array([len(pair[side]) for pair in chosen], dtype=np.int32),
            )
        )


def enumerate_model_1(pairs: Pairs, empty: int) -> dict[tuple[int, int], float]:
    """Brown et al. (1993), equations 14 to 17, in dictionaries."""
    probability: dict[tuple[int, int], float] = defaultdict(lambda: 1.0)
    for _ in range(ITERATIONS):
        counts: dict[tuple[int, int], float] = defaultdict(float)
        for src, tgt in pairs.pairs:
            for target in tgt:
                words = [*src, empty]
                total = sum(probability[word, target] for word in words)
                for word in words:
                    counts[word, target] += probability[word, target] / total
        sums: dict[int, float] = defaultdict(float)
        for (word, _), count in counts.items():
            sums[word] += count
        probability = defaultdict(float, {pair: count / sums[pair[0]] for pair, count in counts.items()})
    return dict(probability)


@pytest.mark.parametrize("chunk", [20_000, 2])
def test_the_probabilities_are_those_of_enumeration(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shortlist_module, "CHUNK_PAIRS", chunk)
    pairs = Pairs(([1, 2], [5, 6, 6]), ([1, 3], [5, 7]), ([2], [6]), ([3, 3, 1], [7, 5]), ([4], [8, 5]))
    table = lexical_table(pairs, 5, 9)  # type: ignore[arg-type]
    found = {(int(s), int(t)): p for s, t, p in zip(*table, strict=True)}
    assert found == pytest.approx(enumerate_model_1(pairs, 5))
    assert max(((p, t) for (s, t), p in found.items() if s == 1))[1] == 5
    assert list(found) == sorted(found)


@pytest.fixture(scope="session")
def exported(shared_folder: Callable[[str, Callable[[Path], object]], Path], trained: Path, toy_corpus: Path) -> Path:
    options = ShortlistOptions(toy_corpus, BEST, FREQUENT)
    return shared_folder("export-shortlist", lambda folder: export_ct2(trained, folder, shortlist=options))


def allowed_pieces(corpus: Corpus, sentence: str) -> set[int]:
    always, by_source = build_shortlist(corpus, best=BEST, frequent=FREQUENT)
    (ids,) = corpus.tokenizer.encode([sentence])
    return {*always, *(piece for source in ids for piece in by_source[source])}


def test_translations_stay_within_the_shortlist(exported: Path, toy_corpus: Path, learned: list[str]) -> None:
    short, corpus = open_ct2(exported, threads=1), Corpus.open(toy_corpus)
    for sentence in learned[:30]:
        allowed = allowed_pieces(corpus, sentence)
        outputs = short.search([sentence], n_best=4)[0]
        assert all(set(one.tokens) <= allowed for one in outputs)
        assert len(allowed) < corpus.tokenizer.vocab_size / 2


def test_a_shortlist_of_all_frequent_pieces_keeps_nearly_all_translations(
    tmp_path: Path, trained: Path, toy_corpus: Path, learned: list[str]
) -> None:
    """By greedy search, because this small model is unsure: its beams end in other hypotheses for little reason."""
    export_ct2(trained, tmp_path / "ct2", shortlist=ShortlistOptions(toy_corpus, 5, 400))
    short, free = (open_ct2(tmp_path / "ct2", threads=1, shortlist=on, beam_size=1) for on in (True, False))
    kept = sum(map(str.__eq__, short.translate(learned[:60]), free.translate(learned[:60])))
    assert kept > 54


def test_an_impossible_shortlist_changes_translations(tmp_path: Path, exported: Path, learned: list[str]) -> None:
    """So the map is used, and --no-shortlist is without it."""
    free = open_ct2(exported, shortlist=False)
    lines = (exported / VOCABULARY_MAP).read_text(encoding="utf-8").splitlines()
    assert lines[0].startswith("\t")
    target = tmp_path / "ct2"
    target.mkdir()
    for path in exported.iterdir():
        (target / path.name).write_bytes(path.read_bytes())
    (target / VOCABULARY_MAP).write_text("\t▁die </s>\n", encoding="utf-8")
    (narrow,) = open_ct2(target).search(learned[:1])[0]
    assert set(narrow.text.split()) <= {"die"}
    assert open_ct2(target, shortlist=False).translate(learned[:5]) == free.translate(learned[:5])
    identities = {open_ct2(path, shortlist=on).engine.identity for path in (exported, target) for on in (True, False)}
    assert len(identities) == 3, "parts of an interrupted translation are of one shortlist"


def test_prefixes_and_least_lengths_work(exported: Path, learned: list[str]) -> None:
    short = open_ct2(exported)
    prefixes = ["die Katze", "", "the dog"]
    begun = short.search(learned[:3], prefixes=prefixes)
    assert all(one.text.startswith(prefix) for (one,), prefix in zip(begun, prefixes, strict=True))
    assert all(len(one.tokens) >= 20 for (one,) in open_ct2(exported, min_tokens=20).search(learned[:3]))


def test_the_command_makes_and_uses_it(
    tmp_path: Path, trained: Path, toy_corpus: Path, learned: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    out, text = str(tmp_path / "ct2"), tmp_path / "text"
    text.write_text(learned[0] + "\n", encoding="utf-8")
    asked = ["--shortlist", str(toy_corpus), "--shortlist-best", "3", "--shortlist-frequent", "5"]
    assert main(["export", "ct2", str(trained), out, *asked]) == 0
    assert main(["export", "ct2", str(trained), out, *asked, "--overwrite"]) == 0
    for options in ([], ["--no-shortlist"]):
        done = run_dst("translate", out, str(text), "--engine", "ct2", *options)
        assert done.returncode == 0, done.stderr
    for command, complaint in (
        (["export", "ct2", str(trained), out, "--shortlist-best", "3"], "--shortlist-best is for --shortlist"),
        (
            ["export", "ct2", str(trained), out, *asked[:2], "--shortlist-frequent", "0"],
            "--shortlist-frequent 0: give 1",
        ),
        (["export", "ct2", str(trained), str(tmp_path / "x"), "--shortlist", str(trained)], str(trained)),
        (["translate", str(trained), str(text), "--no-shortlist"], "--no-shortlist is for --engine ct2"),
    ):
        capsys.readouterr()
        assert main(command) == 2
        assert complaint in capsys.readouterr().err
    other = random_bundle(tmp_path / "other")
    assert main(["export", "ct2", str(other), str(tmp_path / "y"), "--shortlist", str(toy_corpus)]) == 2
    assert "the corpus has another tokenizer than the model" in capsys.readouterr().err
    assert not (tmp_path / "y").exists()


def build_with_equal_pieces(folder: Path) -> None:
    """A corpus with two models that have the same pieces and normalise differently."""
    folder.mkdir()
    for name, rule in (("src", "nfkc"), ("tgt", "identity")):
        (folder / name).write_bytes(train_model(normalization_rule_name=rule))
    models = ["--no-joint", "--src-tokenizer-model", str(folder / "src"), "--tokenizer-model", str(folder / "tgt")]
    build_toy(folder / "corpus", 400, *models, vocab_size=None)


@pytest.mark.parametrize("kind", ["different", "equal"])
def test_with_two_vocabularies_every_piece_of_both_can_be_copied(
    tmp_path: Path, shared_folder: Callable[[str, Callable[[Path], object]], Path], kind: str
) -> None:
    if kind == "equal":
        corpus = shared_folder("separate-equal", build_with_equal_pieces) / "corpus"
    else:
        corpus = shared_folder("separate-corpus", lambda folder: build_toy(folder, 400, "--no-joint"))
    tokenizer = Corpus.open(corpus).tokenizer
    assert not tokenizer.is_joint
    assert tokenizer.shares_ids == (kind == "equal")
    bundle, options = (
        random_bundle(tmp_path / "bundle", tokenizer, tie_embeddings="target"),
        ShortlistOptions(corpus, BEST, FREQUENT),
    )
    export_ct2(bundle, tmp_path / "ct2", shortlist=options)
    rows = (line.split("\t") for line in (tmp_path / "ct2" / VOCABULARY_MAP).read_text(encoding="utf-8").splitlines())
    allowed = {source: set(targets.split(" ")) for source, targets in rows}
    lexicon: dict[str, dict[str, float]] = defaultdict(dict)
    for line in options.lexical_text(tokenizer).splitlines():
        target, source, probability = line.split(" ")
        lexicon[source][target] = float(probability)
    sides = (one.pieces(range(EOS_ID + 1, one.vocab_size)) for one in (tokenizer.src, tokenizer))
    shared = set.intersection(*map(set, sides))
    assert sum(piece.startswith("<0x") for piece in shared) == 256
    assert len(shared) == (tokenizer.vocab_size - 4 if kind == "equal" else len(shared)) > 300
    assert {piece for piece in shared if piece not in allowed[""] | allowed.get(piece, set())} == set()
    assert {piece for piece in shared if lexicon[piece].get(piece) != 1.0} == set(), "Marian keeps the most probable"


def test_the_lexical_table_of_marian_has_the_likely_pieces(toy_corpus: Path) -> None:
    corpus = Corpus.open(toy_corpus)
    tokenizer = corpus.tokenizer
    table = lexical_table(corpus.split("train"), tokenizer.src.vocab_size, tokenizer.vocab_size)
    expected = {(int(s), int(t)): p for s, t, p in zip(*table, strict=True)}
    ids = {piece: number for number, piece in enumerate(tokenizer.pieces(range(tokenizer.vocab_size)))}
    lines = ShortlistOptions(toy_corpus, BEST, FREQUENT).lexical_text(tokenizer).splitlines()
    found: dict[int, list[float]] = defaultdict(list)
    for line in lines:
        target, source, probability = line.split(" ")
        assert float(probability) == pytest.approx(expected[ids[source], ids[target]], rel=1e-5)
        found[ids[source]].append(float(probability))
    assert max(map(len, found.values())) == BEST
    for source, probabilities in found.items():
        own = sorted((p for (s, _), p in expected.items() if s == source), reverse=True)
        assert probabilities == pytest.approx(own[:BEST], rel=1e-5)
