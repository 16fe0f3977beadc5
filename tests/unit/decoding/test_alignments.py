"""Outputs that carry their alignments, with a model of random weights."""

from __future__ import annotations

import logging

import pytest
from support.data.corpora import TEXT

from dstransformer.data import Direction
from dstransformer.data.alignment import Link
from dstransformer.data.directions import Tags
from dstransformer.decoding import Output, Sampling, Translator
from dstransformer.decoding.texts import join_outputs
from dstransformer.errors import ConfigError

#: Any word can tell directions apart: it need not be a symbol of the tokenizer.
DIRECTIONS = [Direction("en", "de", ">>deu<<"), Direction("en", "fr", ">>fra<<")]


def check_links(source: str, output: Output) -> None:
    """Every word of the target has a link, to a word of the source."""
    assert output.alignment is not None
    assert output.alignment == sorted(set(output.alignment))
    assert {target for _, target in output.alignment} == set(range(len(output.text.split())))
    assert {number for number, _ in output.alignment} <= set(range(len(source.split())))


def moved(links: list[Link] | None, src: int, tgt: int) -> list[Link]:
    return [(one + src, other + tgt) for one, other in links or ()]


def test_each_output_is_aligned_with_its_sentence(translator: Translator) -> None:
    sentences = [*TEXT, "", "  "]
    plain = translator.search(sentences, n_best=3)
    for source, outputs, others in zip(
        sentences, translator.search(sentences, n_best=3, alignments=True), plain, strict=True
    ):
        assert [one._replace(alignment=None) for one in outputs] == others
        for output in outputs:
            check_links(source, output)
    drawn = translator.search(TEXT[:2], n_best=2, sampling=Sampling(seed=3), alignments=True)
    for source, outputs in zip(TEXT, drawn, strict=False):
        for output in outputs:
            check_links(source, output)
    assert not translator.model.training


def test_a_stream_is_aligned_too(translator: Translator) -> None:
    expected = translator.search(TEXT, alignments=True)
    stream = translator.iter_search(iter(TEXT), alignments=True, buffer_lines=2)
    assert [outputs for _, outputs in stream] == expected


def test_a_model_without_guided_alignment_warns_once(translator: Translator, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            translator.search(["dog"], alignments=True)
    assert caplog.text.count("the model was trained without guided alignment") == 1


def test_alignments_of_parts_count_the_words_of_the_line(translator: Translator) -> None:
    sentences = ["The dog jumps.", "The fox jumps.", "A lazy dog."]
    most = max(len(ids) for ids in translator.tokenizer.encode(sentences))
    limits = {"max_input_tokens": most, "long_inputs": "split"}
    translator.settings = translator.settings.model_copy(update=limits)
    one, two, three = (found[0] for found in translator.search(sentences, alignments=True))
    expected = [*(one.alignment or ())]
    expected += moved(two.alignment, 3, len(one.text.split()))
    expected += moved(three.alignment, 6, len(f"{one.text} {two.text}".split()))
    lines = ["dog", "  ".join(sentences)]
    found = [outputs[0] for outputs in translator.search(lines, alignments=True)]
    assert found[1].alignment == sorted(expected)
    check_links(lines[1], found[1])


@pytest.mark.parametrize(("texts", "firsts"), [(["A b.", "", "c d."], (0, 0, 2)), (["犬。", "猫 c", "d"], (0, 0, 2))])
def test_parts_are_joined_with_their_links(texts: list[str], firsts: tuple[int, ...]) -> None:
    parts = [[Output(text, -1.0, -1.0, [], [(0, 0)] if text else [])] for text in texts]
    ((joined,),) = join_outputs(parts, [0] * len(parts))
    assert joined.alignment == sorted({(0, first) for text, first in zip(texts, firsts, strict=True) if text})
    parts[0] = [parts[0][0]._replace(alignment=None)]
    assert join_outputs(parts, [0] * len(parts))[0][0].alignment is None


def test_cut_sentences_are_aligned_as_far_as_they_are_translated(translator: Translator) -> None:
    translator.settings = translator.settings.model_copy(update={"max_input_tokens": 3})
    (output,) = translator.search([TEXT[0]], alignments=True)[0]
    kept = translator.tokenizer.decode([translator.tokenizer.encode([TEXT[0]])[0][:3]])[0]
    assert max(number for number, _ in output.alignment or ()) < len(kept.split())


def test_the_tag_of_a_direction_gets_no_links(translator: Translator) -> None:
    translator.tags = Tags(DIRECTIONS, "fr")
    added, typed = (found[0] for found in translator.search([TEXT[0], f">>fra<< {TEXT[0]}"], alignments=True))
    assert added.text == typed.text
    check_links(TEXT[0], added)
    assert typed.alignment == moved(added.alignment, 1, 0)


def test_another_engine_does_not_align(translator: Translator) -> None:
    translator.engine = object()  # type: ignore[assignment]
    with pytest.raises(ConfigError, match="this engine cannot align"):
        translator.search(["dog"], alignments=True)
