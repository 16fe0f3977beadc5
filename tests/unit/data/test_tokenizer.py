from __future__ import annotations

import pickle
import re
import sys
import unicodedata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import regex
import sentencepiece
from hypothesis import example, given, settings
from hypothesis import strategies as st
from sentencepiece.sentencepiece_model_pb2 import ModelProto
from support.data.corpora import TEXT, small_tokenizer, train_model

from data_prep.stages.vocab import with_rules
from dstransformer.data import BOS_ID, EOS_ID, PAD_ID, UNK_ID, Tokenizer
from dstransformer.data.tokenizer import INVISIBLE_CHARACTERS, plain_spaces
from dstransformer.errors import DataError


def canonical(text: str) -> str:
    """A sentence as cleaning leaves it."""
    words = unicodedata.normalize("NFKC", plain_spaces(text)).split(" ")
    return " ".join(word for word in words if word)


# SentencePiece writes a space as U+2581.
sentences = st.text(st.characters(exclude_categories=("Cs", "Co", "Cn"), exclude_characters="▁")).map(canonical)


@settings(deadline=None)
@given(sentences)
@example("Fünf 🦊 und 👨‍👩‍👧: 中文, ½ ﬁ … fertig!")
@example("naïve café — “quoted” 100 %")
def test_any_normalised_text_round_trips(text: str) -> None:
    text = canonical(text)
    assert small_tokenizer().decode(small_tokenizer().encode([text])) == [text]


def test_ids_hold_no_special_pieces_and_cover_unseen_characters() -> None:
    for ids in small_tokenizer().encode([*TEXT, "🦊 ж 中"]):
        assert ids
        assert all(EOS_ID < token < small_tokenizer().vocab_size for token in ids)


def test_decoding_drops_padding_begin_and_end() -> None:
    ids = small_tokenizer().encode(TEXT)
    framed = [[BOS_ID, *row, EOS_ID, PAD_ID, PAD_ID] for row in ids]
    assert small_tokenizer().decode(framed) == TEXT
    assert small_tokenizer().decode([np.array(row, dtype=np.int32).tolist() for row in ids]) == TEXT
    assert small_tokenizer().decode([[], [BOS_ID, EOS_ID]]) == ["", ""]
    assert small_tokenizer().decode([[UNK_ID]]) == [" ⁇ "]


def test_raw_text_is_normalised_like_training_text() -> None:
    raw = "\ufeffTwo\tmen\u00a0are  talk\u00ading\x00 ﬁne\r\n"
    assert small_tokenizer().encode([raw]) == small_tokenizer().encode(["Two men are talking fine"])


def test_invisible_characters_are_those_of_unicode() -> None:
    spelled = r"\p{Prepended_Concatenation_Mark}\p{Variation_Selector}\u034f\u115f\u1160\u200c\u200d"
    joiners = regex.compile(rf"[{spelled}\U00013430-\U0001345f\U000e0020-\U000e007f]")
    removed = regex.compile(r"[\p{Cf}\p{Default_Ignorable_Code_Point}]")
    characters = [chr(number) for number in range(sys.maxunicode + 1) if not 0xD800 <= number < 0xE000]
    invisible = {character for character in characters if re.match(INVISIBLE_CHARACTERS, character)}
    assert invisible == {one for one in characters if removed.match(one) and not joiners.match(one)}
    for character in invisible:
        assert plain_spaces(f"The teacher{character} reads") == "The teacher reads"
    for kept in ("می\u200cخواهم", "👨\u200d👩", "❤\ufe0f", "🏴\U000e0067\U000e007f", "\u06dd١"):
        assert plain_spaces(kept) == kept


def test_a_text_with_nothing_visible_has_no_token() -> None:
    for text in ("\u2581", "\u2800 \u2800", "\u200d", "\u200c\ufe0f", "\u3164", "\u00ad\u3000", "\u115f"):
        assert small_tokenizer().encode([text]) == [[]]
    assert small_tokenizer().encode(["a ▁ b\u3164"]) == small_tokenizer().encode(["a b"])


def test_one_model_may_read_the_sides_by_two_rules(tmp_path: Path) -> None:
    model = with_rules(train_model(normalization_rule_name="identity"), ("nfkc", "nfc"))
    tokenizer: Tokenizer = pickle.loads(pickle.dumps(Tokenizer(model)))
    assert (tokenizer.is_joint, tokenizer.shares_ids, tokenizer.is_single, small_tokenizer().is_single) == (1, 1, 0, 1)
    text = "ﬁ，ｶﾞ\u00a0gro\u0308ß\u2000ẫ\u3000\u0e33"
    ids, folded = tokenizer.encode([text])[0], tokenizer.src.encode([text])[0]
    assert tokenizer.decode([ids]) == tokenizer.tgt.decode([ids]) == ["ﬁ，ｶﾞ größ ẫ \u0e33"]
    assert tokenizer.src.decode([folded]) == ["fi,ガ größ ẫ \u0e4d\u0e32"]
    tokenizer.save(tmp_path / "model")
    assert (tmp_path / "model").read_bytes() == model
    theirs = sentencepiece.SentencePieceProcessor(model_proto=model)
    assert (theirs.encode(text), theirs.decode(ids)) == (folded, tokenizer.decode([ids])[0])
    tokenizer.tgt.save(tmp_path / "tgt")
    assert Tokenizer.load(tmp_path / "tgt").encode([text]) == [ids]
    assert Tokenizer(train_model(), src=tokenizer).src.encode([text]) == [folded]


def test_pickle_and_files_keep_the_model(tmp_path: Path) -> None:
    small_tokenizer().save(tmp_path / "tokenizer.model")
    for other in (pickle.loads(pickle.dumps(small_tokenizer())), Tokenizer.load(tmp_path / "tokenizer.model")):
        assert other.sha256 == small_tokenizer().sha256
        assert other.encode(TEXT) == small_tokenizer().encode(TEXT)


def test_a_tokenizer_may_have_another_one_for_the_source(tmp_path: Path) -> None:
    src = Tokenizer(train_model(TEXT[::2], vocab_size=300))
    pair = Tokenizer(train_model(), src=src)
    assert small_tokenizer().src is small_tokenizer()
    assert (pair.src, pair.is_joint, small_tokenizer().is_joint) == (src, False, True)
    assert small_tokenizer().identity == small_tokenizer().sha256 == pair.sha256 != pair.identity
    again = pickle.loads(pickle.dumps(pair))
    assert (again.identity, again.src.vocab_size, again.vocab_size) == (pair.identity, 300, 340)
    assert pair.save_in(tmp_path) == ("tokenizer.model", "tokenizer.src.model")
    assert Tokenizer.load(tmp_path / "tokenizer.src.model").sha256 == src.sha256


LAYOUTS: list[dict[str, object]] = [
    {"pad_id": -1, "unk_id": 0, "bos_id": 1, "eos_id": 2},  # SentencePiece's default: fairseq, OPUS-MT, Llama
    {"pad_id": -1, "unk_id": 1, "bos_id": -1, "eos_id": 0},  # Marian
    {"pad_id": 0, "unk_id": 2, "bos_id": -1, "eos_id": 1},  # T5
    {"pad_id": 3, "unk_id": 2, "bos_id": 0, "eos_id": 1},
    {"pad_id": 339, "unk_id": 7, "bos_id": -1, "eos_id": -1},
]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_other_special_ids_are_mapped(layout: dict[str, int], tmp_path: Path) -> None:
    model = train_model(**layout)
    tokenizer = Tokenizer(model)
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    ids = tokenizer.encode(TEXT)
    special = {piece for piece in layout.values() if piece >= 0}
    others = [piece for piece in range(processor.vocab_size()) if piece not in special]
    assert tokenizer.vocab_size == 4 + len(others)
    assert [[others[token - 4] for token in row] for row in ids] == processor.encode(TEXT)
    assert all(EOS_ID < token < tokenizer.vocab_size for row in ids for token in row)
    assert tokenizer.decode([[BOS_ID, *row, EOS_ID, PAD_ID] for row in ids]) == TEXT
    assert tokenizer.decode([[], [BOS_ID, EOS_ID], [UNK_ID]]) == ["", "", " ⁇ "]
    for wrong in (-1, tokenizer.vocab_size):
        with pytest.raises(IndexError):
            tokenizer.decode([[wrong]])
    tokenizer.save(tmp_path / "model")
    assert (tmp_path / "model").read_bytes() == model
    assert pickle.loads(pickle.dumps(tokenizer)).encode(TEXT) == ids


def test_unknown_text_gets_our_id_in_every_layout() -> None:
    for layout in LAYOUTS[:4]:
        tokenizer = Tokenizer(train_model(**layout, byte_fallback=False, vocab_size=60))
        assert UNK_ID in tokenizer.encode(["中"])[0]


def test_a_model_without_unk_is_refused() -> None:
    model = ModelProto.FromString(train_model())
    model.pieces[UNK_ID].type = ModelProto.SentencePiece.NORMAL
    with pytest.raises(DataError, match="no piece for unknown text"):
        Tokenizer(model.SerializeToString())


@pytest.mark.parametrize(("content", "wanted"), [
    (None, "cannot read"), (b"no model", "not a SentencePiece model"), (b"", "not a SentencePiece model"),
])  # fmt: skip
def test_files_that_are_not_tokenizers_are_refused(tmp_path: Path, content: bytes | None, wanted: str) -> None:
    if content is not None:
        (tmp_path / "spm.model").write_bytes(content)
    with pytest.raises(DataError, match=wanted):
        Tokenizer.load(tmp_path / "spm.model")


@pytest.mark.parametrize(("method", "given", "wanted"), [
    ("encode", "a dog", "a list of texts"), ("decode", ["a"], "rows of ids"), ("decode", [5, 6], "rows of ids"),
    ("decode", 5, "rows of ids"),
])  # fmt: skip
def test_what_is_no_list_of_texts_or_rows_is_refused(method: str, given: Any, wanted: str) -> None:
    with pytest.raises(TypeError, match=wanted):
        getattr(small_tokenizer(), method)(given)
