"""Texts are divided into sentences and joined again."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dstransformer.data.sentences import split_sentences, with_spaces

pytest.importorskip("sentencex", reason="needs sentencex: pip install 'dstransformer[split]'")

#: Letters of many scripts, what ends sentences, and what stands between them; spaces of several bytes too.
WORDS = st.sampled_from(["a", "A", "Dr", "z.B.", "J.", "3.5", "他", "あ", "ภา", "نعم", "é", "𝒳", "\u0301"])
ENDS = st.sampled_from(["", ".", "!", "?", "…", "。", "！", "؟", "”", "」", '"', ")", ".“"])
SPACES = st.sampled_from(["", " ", "  ", "\t", "\n", "\r\n", "\n\n", "\r", "\u3000", "\xa0", "\u2028", "\x85", "\v"])
TEXTS = st.lists(st.tuples(WORDS, ENDS, SPACES).map("".join), max_size=12).map("".join)


@given(st.lists(TEXTS | st.text(), max_size=4), st.sampled_from([None, "en", "deu", "zh_Hans", "ja", "ar", "th"]))
@example([""], "en")
@example([" \n", "A.\r\n\r\n  B. C", "\u3000一。二。 \n"], "zh")
def test_a_text_comes_back_where_the_model_is_the_identity(texts: list[str], language: str | None) -> None:
    sentences, owners = split_sentences(texts, language)
    assert sorted(set(owners)) == list(range(len(texts)))
    for index, text in enumerate(texts):
        own = [sentence for sentence, owner in zip(sentences, owners, strict=True) if owner == index]
        assert "".join(with_spaces(text, own, own)) == text
        assert all(own) or own == [""]
        assert all(one.splitlines() == [one] and one == one.strip() for one in own if one)


@pytest.mark.parametrize(("language", "divided"), [
    ("en", "Dr. Smith met Mrs. Jones at 5 p.m. in Boston. |They had tea. |It costs $3.50!"),
    ("en", "J. R. R. Tolkien wrote it, i.e. the book. |\n\n|He works for Apple Inc. in the U.S. today."),
    ("de", "Am 3. Oktober feiern wir z. B. in Berlin. |Dr. Müller kam usw. nicht. |„Ja.“ |Gut."),
    ("fr", "Il a dit : « Oui ! » |Mme Durand rit. |Ça va ?"),
    ("zh", "价格是3.5元。|很便宜！|真的吗？"),
    ("ja", "価格は3.5ドルです。|安い。"),
    ("ar", "هل أنت بخير؟ |نعم، أنا بخير."),
    ("th", "เขามาแล้ว เธอยิ้ม"),
])  # fmt: skip
def test_sentences_end_where_they_do(language: str, divided: str) -> None:
    sentences, _ = split_sentences([divided.replace("|", "")], language)
    assert sentences == [one.strip() for one in divided.split("|") if one.strip()]


def test_spaces_are_those_of_the_target_language() -> None:
    assert with_spaces(" 一。二。\n三。", ["一。", "二。", "三。"], ["One.", "Two.", "Three."]) == [
        " One.", " Two.", "\nThree.", "",
    ]  # fmt: skip
    assert with_spaces("One. Two.\n\nThree. ", ["One.", "Two.", "Three."], ["一。", "二。", "三。"]) == [
        "一。", "二。", "\n\n三。", " ",
    ]  # fmt: skip
