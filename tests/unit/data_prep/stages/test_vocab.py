from __future__ import annotations

import re
from pathlib import Path

import pyarrow as pa
import pytest
import sentencepiece

from data_prep.recipe.options import VocabOptions
from data_prep.stages.text import TextFormat
from data_prep.stages.vocab import check_symbols, make_tokenizer
from data_prep.store.pairs import SCHEMA, PairsWriter
from dstransformer.data import Tokenizer, TokenizerInfo
from dstransformer.errors import DataError, UserError
from dstransformer.io.progress import Progress

OPTIONS = VocabOptions(vocab_size=400, tokenizer_sample=10_000)


@pytest.fixture(scope="module")
def train(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("vocab") / "train.arrow"
    numbers = range(800)
    src = [f"the number {n} is greater than {n // 3}" for n in numbers]
    tgt = [f"die Zahl {n} ist größer als {n // 3}" for n in numbers]
    with PairsWriter(path) as writer:
        writer.write(pa.table([src, tgt, [0] * len(src), [False] * len(src)], names=SCHEMA.names[:4]))
    return path


def make(train: Path, target: Path, options: VocabOptions) -> TokenizerInfo:
    return make_tokenizer(train, target, options, ("nfkc", "nfc"), TextFormat((None,)), Progress())


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_training_is_deterministic(train: Path, tmp_path: Path, kind: str) -> None:
    options = OPTIONS.model_copy(update={"tokenizer": kind, "tokenizer_sample": 1000})
    one, two = make(train, tmp_path / "one", options), make(train, tmp_path / "two", options)
    assert one == two == TokenizerInfo(kind=kind, vocab_size=400, sha256=Tokenizer.load(tmp_path / "one").sha256)
    assert make(train, tmp_path / "three", options.model_copy(update={"tokenizer_seed": 2})) != one


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
@pytest.mark.parametrize(("size", "limit"), [(20_000, "about"), (265, "at least")])
def test_an_impossible_size_is_refused_with_one_that_fits(
    train: Path, tmp_path: Path, kind: str, size: int, limit: str
) -> None:
    options = OPTIONS.model_copy(update={"tokenizer": kind, "vocab_size": size})
    with pytest.raises(UserError, match=rf"--vocab-size {size} .* give {limit} \d+") as caught:
        make(train, tmp_path / "model", options)
    assert not (tmp_path / "model").exists()
    named = int(re.findall(rf"{limit} (\d+)", str(caught.value))[0])
    assert make(train, tmp_path / "model", options.model_copy(update={"vocab_size": named})).vocab_size == named
    assert named < 500, "a size for 50,000 characters, of which few differ"


def test_every_part_of_a_large_text_gives_its_share_to_the_sample(tmp_path: Path) -> None:
    from data_prep.stages.vocab import _sample_lines

    with PairsWriter(tmp_path / "train.arrow") as writer:
        numbers = list(map(str, range(9000)))
        writer.write(pa.table([numbers, numbers, [0] * 9000, [False] * 9000], names=SCHEMA.names[:4]))
    options = OPTIONS.model_copy(update={"tokenizer_sample": 901})
    sample = [int(text) for text in _sample_lines(tmp_path / "train.arrow", 9000, options, "src")]
    assert len(sample) == 901
    assert sample == sorted(set(sample))
    assert [sum(begin <= number < begin + 2000 for number in sample) for begin in range(0, 9000, 2000)] == [
        200, 200, 200, 200, 101
    ]  # fmt: skip


def test_pieces_equal_those_of_sentencepiece_trained_directly(train: Path, tmp_path: Path) -> None:
    from data_prep.stages.vocab import _sample_lines

    make(train, tmp_path / "ours", OPTIONS)
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=_sample_lines(train, 1600, OPTIONS),
        model_prefix=str(tmp_path / "theirs"),
        model_type="bpe",
        vocab_size=OPTIONS.vocab_size,
        character_coverage=1.0,
        byte_fallback=True,
        pad_id=0,
        unk_id=1,
        bos_id=2,
        eos_id=3,
        minloglevel=2,
    )
    ours, theirs = (sentencepiece.SentencePieceProcessor(str(tmp_path / name)) for name in ("ours", "theirs.model"))
    pieces = range(OPTIONS.vocab_size)
    assert [ours.id_to_piece(i) for i in pieces] == [theirs.id_to_piece(i) for i in pieces]


def test_a_given_model_is_copied_unchanged(train: Path, tmp_path: Path) -> None:
    make(train, tmp_path / "given", OPTIONS)
    info = make(train, tmp_path / "taken", OPTIONS.model_copy(update={"tokenizer_model": tmp_path / "given"}))
    assert info.kind == "given"
    assert (tmp_path / "taken").read_bytes() == (tmp_path / "given").read_bytes()
    with pytest.raises(DataError, match="cannot read the tokenizer"):
        make(train, tmp_path / "taken", OPTIONS.model_copy(update={"tokenizer_model": tmp_path / "none"}))


@pytest.fixture(scope="module")
def marked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Training text with placeholders, and with their characters in other words."""
    path = tmp_path_factory.mktemp("marked") / "train.arrow"
    numbers = range(400)
    src = [f"the <ph1> {n} is <greater> than<unk-name>{n // 3}, unk-name, ph1 @" for n in numbers]
    tgt = [f"die <ph1> {n} ist größer als<unk-name>{n // 3} <unk, name> @" for n in numbers]
    with PairsWriter(path) as writer:
        writer.write(pa.table([src, tgt, [0] * len(src), [False] * len(src)], names=SCHEMA.names[:4]))
    return path


SYMBOLS = ("<ph1>", "<unk-name>", "@", "x,y", '"z"')


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_symbols_stay_whole_wherever_they_stand(
    marked: Path, tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    options = OPTIONS.model_copy(update={"tokenizer": kind, "vocab_size": 345, "symbols": SYMBOLS})
    assert make(marked, tmp_path / "model", options).vocab_size == 345
    assert "the symbol 'x,y' is nowhere in the training text" in capsys.readouterr().err
    tokenizer = Tokenizer.load(tmp_path / "model")
    assert set(tokenizer.symbols) == set(SYMBOLS)
    for symbol in SYMBOLS:
        for form in ("{}", "the {} is", "die{}ist", "<{}>", "({}{})", "ä{}\u4e00"):
            text = form.replace("{}", symbol)
            (ids,) = tokenizer.encode([text])
            assert ids.count(tokenizer.symbols[symbol]) == text.count(symbol)
            assert tokenizer.decode([ids]) == [text]
    other = tokenizer.encode(["< ph1 > <PH1> <ph> unk-name"])[0]
    assert not set(other) & set(tokenizer.symbols.values())


def test_a_given_model_must_keep_the_symbols_whole(train: Path, marked: Path, tmp_path: Path) -> None:
    make(train, tmp_path / "without", OPTIONS)
    make(marked, tmp_path / "with", OPTIONS.model_copy(update={"vocab_size": 345, "symbols": SYMBOLS[:2]}))
    given = VocabOptions(tokenizer_model=tmp_path / "with", symbols=SYMBOLS[1:2])
    assert given.record() == {"tokenizer_model": "with", "symbols": "<unk-name>"}
    assert make(marked, tmp_path / "taken", given).kind == "given"
    for model, symbol in (("without", "<ph1>"), ("with", "@")):
        options = VocabOptions(tokenizer_model=tmp_path / model, symbols=(symbol,))
        with pytest.raises(DataError, match=f"--tokenizer-model .*{model} .*'{symbol}'"):
            make(marked, tmp_path / "refused", options)
    assert not (tmp_path / "refused").exists()


def test_symbols_that_cleaning_would_change_are_refused() -> None:
    check_symbols(("<ph1>", "⦅ph⦆"), ("nfkc", "nfc"))
    check_symbols(("｟ph｠",), ("none", "nfc"))
    with pytest.raises(UserError, match=r"--symbols ｟ph｠: .*'⦅ph⦆'"):
        check_symbols(("<ph1>", "｟ph｠"), ("nfkc", "nfc"))
