"""What can be asked for each line: several outputs, prefixes, long lines in parts, formats."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from support.data.corpora import TEXT, small_tokenizer, train_model

from dstransformer.config import Config
from dstransformer.data import Tokenizer
from dstransformer.decoding import Output, Sampling, Translator
from dstransformer.decoding.commands import load_translator
from dstransformer.decoding.formats import Request
from dstransformer.decoding.texts import join_outputs, split_long
from dstransformer.errors import ConfigError, DataError
from dstransformer.model import Transformer, save_bundle

OUTPUTS = [Output("ein Hund", -0.5, -1.25, [7, 8]), Output("der Hund", -0.75, -2.0, [9, 8, 7])]


def test_several_outputs_are_different_and_best_first(translator: Translator) -> None:
    best = translator.translate([*TEXT, ""])
    for (first, *others), expected in zip(translator.search([*TEXT, ""], n_best=4), best, strict=True):
        assert first.text == expected
        assert [one.score for one in others] == sorted((one.score for one in others), reverse=True)
        assert len({tuple(one.tokens) for one in (first, *others)}) == len(others) + 1
    assert translator.search([""], n_best=4) == [[Output("", 0.0, 0.0, [])]]


def test_of_equal_texts_the_best_is_kept() -> None:
    again = Output("ein Hund", -0.9, -3.0, [6, 5, 8], [(0, 0)])
    outputs = [OUTPUTS[0], again, OUTPUTS[1]]
    request = Request(n_best=3, format="tsv", distinct=True)
    assert request.choose(outputs) == OUTPUTS
    assert [line.split("\t")[1:] for line in request.render(1, "a dog", request.choose(outputs))] == [
        ["1", "-0.500000", "-1.250000", "ein Hund"],
        ["2", "-0.750000", "-2.000000", "der Hund"],
    ]
    assert Request(n_best=3).choose(outputs) == outputs
    with pytest.raises(ConfigError, match=r"--distinct .*--n-best"):
        Request(distinct=True)


@pytest.mark.parametrize("n_best", [0, 5])
def test_more_outputs_than_the_beam_are_refused(translator: Translator, n_best: int) -> None:
    with pytest.raises(ConfigError, match=f"--n-best {n_best}"):
        translator.search(TEXT, n_best=n_best)


def test_outputs_begin_with_the_text_of_their_prefix(translator: Translator) -> None:
    prefixes = ["the fox", "", "dog"]
    for found, prefix in zip(translator.search(TEXT[:3], prefixes=prefixes), prefixes, strict=True):
        assert found[0].text.startswith(prefix)
    stream = translator.iter_search(TEXT[:3], prefixes=iter(prefixes), buffer_lines=2)
    assert [outputs[0].text for _, outputs in stream] == [
        found[0].text for found in translator.search(TEXT[:3], prefixes=prefixes)
    ]
    with pytest.raises(DataError, match="line 3: --prefix-file"):
        list(translator.iter_search(TEXT[:3], prefixes=iter(prefixes[:2]), buffer_lines=2))


def test_long_lines_are_divided_where_sentences_end() -> None:
    tokenizer = small_tokenizer()
    sentences = ["The dog jumps.", "“The fox?”", "A dog (the fox!)", "dog dog dog dog dog dog dog dog."]
    counts = [len(ids) for ids in tokenizer.encode(sentences)]
    most = counts[0] + counts[1]
    texts = ["dog.", " ".join(sentences), ""]
    parts, owners = split_long(texts, tokenizer.encode(texts), [most] * 3, tokenizer)
    assert owners == [0, 1, 1, 1, 2]
    assert "".join(parts).replace(" ", "") == "".join(texts).replace(" ", "")
    assert all(
        len(ids) <= most or part == sentences[3] for part, ids in zip(parts, tokenizer.encode(parts), strict=True)
    )
    assert parts[1] == f"{sentences[0]} {sentences[1]}"
    japanese = "犬。猫。"
    assert split_long([japanese], tokenizer.encode([japanese]), [1], tokenizer) == (["犬。", "猫。"], [0, 0])
    assert split_long(texts, tokenizer.encode(texts), [0] * 3, tokenizer) == (texts, [0, 1, 2])


@pytest.mark.parametrize(
    "text",
    [
        "犬。猫。兎。",
        "犬。　猫。 兎。",
        "「犬」！猫？兎",
        "A dog.  A fox!\tA cat.",
        "कुत्ता दौड़ता है। बिल्ली सोती है।",
        "هل هو كلب؟ نعم۔ حسنا",
    ],
)
def test_a_part_is_a_piece_of_its_text(text: str) -> None:
    tokenizer = small_tokenizer()
    (ids,) = tokenizer.encode([text])
    first, second = split_long([text], [ids], [len(ids) - 1], tokenizer)[0]
    assert text.startswith(first)
    assert text.endswith(second)
    assert not text[len(first) : len(text) - len(second)].strip()


@pytest.mark.parametrize(("sentences", "between"), [
    (["कुत्ता दौड़ता है।", "बिल्ली सोती है॥", "ठीक है।"], " "),
    (["هل هو كلب؟", "نعم۔", "«حسنا.»", "شكرا"], " "),
    (["Սա շուն է։", "Այո։"], " "),
    (["ውሻ ነው።", "አዎ፧", "እሺ።"], " "),
    (["Είναι σκύλος.", "Ναι!"], " "),
    (["이것은 개다.", "그래?"], " "),
    (["这是狗。", "“是吗？”", "对！"], ""),
    (["នេះជាឆ្កែ។", "បាទ៕"], ""),
])  # fmt: skip
def test_long_lines_are_divided_at_the_ends_of_many_scripts(sentences: list[str], between: str) -> None:
    tokenizer = small_tokenizer()
    text = between.join(sentences)
    assert split_long([text], tokenizer.encode([text]), [1], tokenizer) == (sentences, [0] * len(sentences))


@pytest.mark.parametrize(("texts", "joined"), [
    (["犬。", "猫！", "", "兎。"], "犬。猫！兎。"),
    (["他说：“狗。”", "猫", "A cat."], "他说：“狗。”猫A cat."),
    (["A dog.", "A cat 🐈", "“Yes.”", ""], "A dog. A cat 🐈 “Yes.”"),
    (["개다.", "고양이다."], "개다. 고양이다."),
])  # fmt: skip
def test_the_outputs_of_parts_are_joined_as_their_language_does(texts: list[str], joined: str) -> None:
    outputs = [[Output(text, -1.0, -2.0, [5])] for text in texts]
    ((one,),) = join_outputs(outputs, [0] * len(texts))
    assert one == Output(joined, -len(texts), -2.0 * len(texts), [5] * len(texts))


class SpacesTokenizer(Tokenizer):
    """Makes tokens of spaces too, as one without normalisation does of spaces that it does not know."""

    def encode(self, texts: Sequence[str], *, threads: int = -1) -> list[list[int]]:  # noqa: ARG002
        return [[1] * len(text) for text in texts]


def test_a_line_of_spaces_keeps_its_place() -> None:
    tokenizer = SpacesTokenizer(train_model())
    texts = ["\u1680" * 4, "a. b."]
    parts, owners = split_long(texts, tokenizer.encode(texts), [2] * 2, tokenizer)
    assert (parts, owners) == (["\u1680" * 4, "a.", "b."], [0, 1, 1])


def test_long_lines_are_translated_in_parts_or_not_at_all(
    translator: Translator, caplog: pytest.LogCaptureFixture
) -> None:
    sentences = ["The dog jumps.", "The fox jumps.", "A lazy dog."]
    most = max(len(ids) for ids in translator.tokenizer.encode(sentences))
    lines = ["dog", " ".join(sentences), "fox"]
    limits = {"max_input_tokens": most, "long_inputs": "split"}
    translator.settings = translator.settings.model_copy(update=limits)
    parts = [found[0] for found in translator.search(sentences)]
    dog, (joined,), fox = translator.search(lines)
    assert "sentence" not in caplog.text
    translator.search(["dog " * (most + 1)])
    assert caplog.messages[-1].endswith("; no sentence ends in it: divide it")
    assert joined.text == " ".join(one.text for one in parts)
    assert joined.log_probability == pytest.approx(sum(one.log_probability for one in parts))
    assert [dog[0].text, fox[0].text] == translator.translate(["dog", "fox"])
    with pytest.raises(ConfigError, match="--long"):
        translator.search(lines, n_best=2)
    translator.settings = translator.settings.model_copy(update={"long_inputs": "refuse"})
    assert translator.translate(lines)[1] == ""
    assert "sentence 2 has" in caplog.text
    assert "it gets no output (--max-input-tokens, " in caplog.text


def test_each_format_says_what_it_promises() -> None:
    assert Request().render(3, "a dog", OUTPUTS[:1]) == ["ein Hund"]
    assert Request(n_best=2).render(3, "a dog", OUTPUTS) == [
        "2 ||| ein Hund ||| logprob= -1.250000 ||| -0.500000",
        "2 ||| der Hund ||| logprob= -2.000000 ||| -0.750000",
    ]
    assert Request(n_best=2, format="tsv").render(3, "a dog", OUTPUTS)[1] == "3\t2\t-0.750000\t-2.000000\tder Hund"
    second = {"line": 3, "rank": 2, "source": "a dog", "text": "der Hund", "score": -0.75, "log_probability": -2.0}
    assert json.loads(Request(n_best=2, format="jsonl").render(3, "a dog", OUTPUTS)[1]) == second | {"tokens": 4}
    pairs = Request(n_best=2, format="pairs", tag="<BT>", sampling=Sampling())
    assert pairs.render(3, "a\tdog", OUTPUTS) == ["<BT> ein Hund\ta dog", "<BT> der Hund\ta dog"]
    assert pairs.render(3, "a dog", [Output("", 0.0, 0.0, [])]) == ["\ta dog"]


@pytest.mark.parametrize(("values", "message"), [
    ({"tag": "<BT>"}, "add --format pairs"),
    ({"tag": "two words", "format": "pairs"}, "--tag 'two words': must be one word"),
    ({"prefix": "a", "prefix_file": "b"}, "--prefix and --prefix-file do not go together"),
])  # fmt: skip
def test_requests_that_make_no_sense_are_refused(values: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Request(**values)  # type: ignore[arg-type]


def test_models_of_an_ensemble_share_a_tokenizer(
    bundle: Path, tmp_path: Path, config: Config, model: Transformer
) -> None:
    twice = load_translator(bundle, others=[bundle])
    alone = load_translator(bundle)
    assert twice.translate(TEXT) == alone.translate(TEXT)
    assert twice.identity == alone.identity * 2
    other = Tokenizer(train_model(vocab_size=330))
    weights = Transformer(config.model, other.vocab_size).state_dict()
    save_bundle(tmp_path / "other", weights, config, other, {"step": 0})
    with pytest.raises(DataError, match=r"other .*tokenizer .*bundle"):
        load_translator(bundle, others=[tmp_path / "other"])
