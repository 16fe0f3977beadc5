"""``dst align``, alignments of translations and inline tags, with a model that has learned alignments."""

from __future__ import annotations

import html
import json
import random
import re
from dataclasses import replace
from pathlib import Path

import pytest
from support.data.prep import build, refuses
from support.services.serving import serving
from support.training.trained import trained_bundle

from dstransformer.cli import main
from dstransformer.data import Direction
from dstransformer.data.alignment import Link, format_links, parse_links
from dstransformer.decoding import Translator
from dstransformer.decoding.aligner import Aligner
from dstransformer.errors import DataError
from dstransformer.extras.markup.markup import parse_markup
from dstransformer.extras.markup.tag_placement import place_tags
from dstransformer.extras.markup.translator import MarkupTranslator
from dstransformer.model import open_bundle

PAIRS, HELD_OUT, ALIGNED = 3000, 200, 200
UPDATES = 400
NOUNS = {"dog": "Hund", "cat": "Katze", "child": "Kind", "man": "Mann", "bird": "Vogel", "house": "Haus"}
ADJECTIVES = {"old": "alt", "new": "neu", "red": "rot", "small": "klein", "big": "groß"}
VERBS = {"sees": "sieht", "hears": "hört", "likes": "mag", "finds": "findet"}
DETERMINERS = {"the": "das", "a": "ein", "this": "dies", "every": "jedes"}

_TAG = re.compile("<[^<>]*>")

#: A sentence, its translation and the links of their words.
Example = tuple[str, str, list[Link]]


def example(rng: random.Random) -> Example:
    """A sentence, translated word by word: the verb goes to the end, and adjectives behind their nouns."""
    source: list[str] = []
    target: list[tuple[str, int]] = []

    def take(words: dict[str, str]) -> tuple[str, int]:
        source.append(rng.choice([word for word in words if word not in source[-1:]]))
        return words[source[-1]], len(source) - 1

    def phrase() -> None:
        determiner = take(DETERMINERS)
        adjectives = [take(ADJECTIVES) for _ in range(rng.randrange(3))]
        target.extend([determiner, take(NOUNS), *adjectives])

    phrase()
    verb = take(VERBS)
    phrase()
    target.append(verb)
    links = sorted((place, number) for number, (_, place) in enumerate(target))
    return " ".join(source) + ".", " ".join(word for word, _ in target) + ".", links


@pytest.fixture(scope="module")
def examples() -> list[Example]:
    """Different sentences."""
    rng = random.Random(1)
    found: dict[str, Example] = {}
    while len(found) < PAIRS + HELD_OUT:
        one = example(rng)
        found.setdefault(one[0], one)
    return list(found.values())


@pytest.fixture(scope="module")
def held_out(examples: list[Example]) -> list[Example]:
    return examples[PAIRS:]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, examples: list[Example]) -> Path:
    """Texts, a corpus with alignments, a model trained on it, and held-out pairs with their alignments."""
    folder = tmp_path_factory.mktemp("markup")
    options = ["--source", "files", "--src-lang", "en", "--tgt-lang", "de", "--vocab-size", "400"]
    for flag, some in (("", examples[:PAIRS]), ("valid-", examples[PAIRS:])):
        for side, lines in zip(("src", "tgt"), list(zip(*some, strict=True))[:2], strict=True):
            (folder / f"{flag}{side}").write_text("".join(line + "\n" for line in lines))
            options += [f"--{flag}{side}", f"{folder}/{flag}{side}"]
    (folder / "links").write_text("".join(format_links(links) + "\n" for _, _, links in examples[:PAIRS]))
    assert build(*options, "--alignments", folder / "links", "--out", folder / "corpus") == 0
    trained_bundle(folder / "guided", folder / "corpus", updates=UPDATES, guided=1.0)
    few = [(source, target, format_links(links)) for source, target, links in examples[PAIRS:][:ALIGNED]]
    for name, lines in zip(("src", "tgt", "gold"), zip(*few, strict=True), strict=True):
        (folder / name).write_text("".join(f"{line}\n" for line in lines))
    return folder


def align(folder: Path, model: str, *options: str) -> int:
    return main(["align", f"{folder}/{model}", f"--src={folder}/src", f"--tgt={folder}/tgt", *options])


def error_rate(folder: Path, model: str, capsys: pytest.CaptureFixture[str], *options: str) -> float:
    capsys.readouterr()
    assert align(folder, model, f"--reference={folder}/gold", *options) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["pairs"] == ALIGNED
    assert figures["sure"] > 4 * ALIGNED
    aer: float = figures["aer"]
    return aer


def pair(link: str) -> list[int]:
    return list(map(int, link.split("-")))


def test_a_guided_model_aligns_as_the_reference_does(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = tmp_path / "found"
    assert error_rate(folder, "guided", capsys) < 0.1
    assert error_rate(folder, "guided", capsys, f"--output={found}") < 0.1
    assert align(folder, "guided", "--batch-tokens=1", f"--output={tmp_path}/small") == 0
    assert (tmp_path / "small").read_text() == found.read_text()
    assert all(line == " ".join(sorted(line.split(), key=pair)) for line in found.read_text().splitlines())


def test_translations_come_with_their_alignments(folder: Path, tmp_path: Path) -> None:
    files = [f"{folder}/src", "--output", f"{tmp_path}/out", "--alignments", f"{tmp_path}/found"]
    assert main(["translate", f"{folder}/guided", *files]) == 0
    outputs, found = ((tmp_path / name).read_text().splitlines() for name in ("out", "found"))
    sources = (folder / "src").read_text().splitlines()
    assert len(found) == len(outputs) == ALIGNED
    for source, output, line in zip(sources, outputs, found, strict=True):
        links = [pair(link) for link in line.split()]
        assert {target for _, target in links} == set(range(len(output.split())))
        assert all(0 <= number < len(source.split()) for number, _ in links)


def test_empty_and_long_lines_get_no_links(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "src").write_text("the old\u00a0dog.\n\nsees\n" + "the " * 50 + "\n")
    (tmp_path / "tgt").write_text("das Hund alt.\nder\n\nder\n")
    files = ["--src", f"{tmp_path}/src", "--tgt", f"{tmp_path}/tgt", "--max-tokens", "20"]
    assert main(["align", f"{folder}/guided", *files, "--output", f"{tmp_path}/found"]) == 0
    first, *others = (tmp_path / "found").read_text().splitlines()
    assert {link.split("-")[1] for link in first.split()} == {"0", "1", "2"}
    assert others == ["", "", ""]


def test_what_cannot_be_aligned_is_refused(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = (folder / "gold").read_text().splitlines()
    (tmp_path / "gold").write_text("\n".join([*lines[:-1], "0-0 0p99"]))
    reference, output = f"--reference={tmp_path}/gold", f"--output={tmp_path}/found"
    wrong = f"gold, line {len(lines)}, column 5: 0p99 names word 99 of the target"
    assert wrong in refuses(capsys, align(folder, "guided", reference, output))
    assert "name a file as --output" in refuses(capsys, align(folder, "guided", reference, "--output=-"))
    given = ["translate", f"{folder}/guided", f"{folder}/src", "--alignments", f"{tmp_path}/found"]
    said = refuses(capsys, main([*given, "--output", f"{tmp_path}/out", "--resume"]))
    assert "use `dst align` afterwards" in said
    assert not (tmp_path / "found").exists()
    directions = Direction("en", "de", ">>deu<<"), Direction("de", "en", ">>eng<<")
    bundle = replace(open_bundle(folder / "guided"), directions=directions)
    with pytest.raises(DataError, match="directions"):
        Aligner.load(bundle)


def test_long_lines_are_aligned_in_parts(folder: Path, tmp_path: Path) -> None:
    lines = (folder / "valid-src").read_text().splitlines()[:2]
    (tmp_path / "short").write_text("\n".join(lines) + "\n")
    (tmp_path / "long").write_text(" ".join(lines) + "\n")
    for name in ("short", "long"):
        files = [f"{tmp_path}/{name}", "--output", f"{tmp_path}/{name}.out", "--alignments", f"{tmp_path}/{name}.align"]
        options = ["--long", "split", "--max-input-tokens", "11"]
        assert main(["translate", f"{folder}/guided", *files, *options]) == 0
    first, second = ((tmp_path / f"short.{name}").read_text().splitlines() for name in ("out", "align"))
    parts = [[tuple(map(int, link.split("-"))) for link in line.split()] for line in second]
    before = len(lines[0].split()), len(first[0].split())
    joined = parts[0] + [(source + before[0], target + before[1]) for source, target in parts[1]]
    assert (tmp_path / "long.out").read_text() == " ".join(first) + "\n"
    assert (tmp_path / "long.align").read_text() == " ".join(f"{one}-{other}" for one, other in sorted(joined)) + "\n"


def with_tags(rng: random.Random, sentence: str) -> str:
    """The sentence with up to three tags: pairs around some of its words, one perhaps in another, and a void one."""
    words = sentence.removesuffix(".").split()
    begin, end = sorted(rng.sample(range(len(words) + 1), 2))
    inner = sorted(rng.sample(range(begin, end + 1), 2))
    if rng.random() < 0.3:
        words[rng.randrange(len(words))] += rng.choice(["", "<fn/>"])
        at = rng.randrange(len(words))
        words[at] = f"<img/>{words[at]}"
    if rng.random() < 0.5:
        words[inner[0]] = f"<i>{words[inner[0]]}"
        words[inner[1] - 1] += "</i>"
    words[begin] = f'<a href="x?y&amp;z">{words[begin]}'
    words[end - 1] += "</a>"
    return " ".join(words) + "."


@pytest.fixture(scope="module")
def marked(held_out: list[Example]) -> list[tuple[str, str]]:
    """Sentences with tags, and their translations with the tags where the right links put them."""
    rng = random.Random(2)
    sources = [with_tags(rng, source) for source, _, _ in held_out]
    placed = [
        place_tags(parse_markup(source, ""), target, links)
        for source, (_, target, links) in zip(sources, held_out, strict=True)
    ]
    return list(zip(sources, placed, strict=True))


def test_translations_have_the_tags_of_their_sentences(
    folder: Path, held_out: list[Example], marked: list[tuple[str, str]], tmp_path: Path
) -> None:
    lines = [source for source, _ in marked[:50]]
    (tmp_path / "text").write_text("".join(f"{line}\n" for line in [*lines, "", "<b></b>"]))
    command = ["translate", f"{folder}/guided", f"{tmp_path}/text", "--markup"]
    assert main([*command, "--output", f"{tmp_path}/out"]) == 0
    *found, empty, without_words = (tmp_path / "out").read_text().splitlines()
    assert (empty, without_words) == ("", "<b></b>")
    assert all(
        sorted(_TAG.findall(one)) == sorted(_TAG.findall(other)) for one, other in zip(lines, found, strict=True)
    )
    translated = [html.unescape(_TAG.sub("", line)) for line in found]
    same = [number for number, text in enumerate(translated) if text == held_out[number][1]]
    assert len(same) > 40
    assert sum(found[number] == marked[number][1] for number in same) >= len(same) - 1
    assert main([*command, "--output", f"{tmp_path}/resumed", "--resume"]) == 0
    assert (tmp_path / "resumed").read_text() == (tmp_path / "out").read_text()
    assert main([*command, "--format", "jsonl", "--output", f"{tmp_path}/json", "--n-best", "2"]) == 0
    first = json.loads((tmp_path / "json").read_text().splitlines()[0])
    assert (first["source"], first["text"]) == (lines[0], found[0])
    assert parse_links(first["alignment"], (99, len(translated[0].split())), "")
    translator = MarkupTranslator.load(folder / "guided", device="cpu")
    assert translator.translate(lines[:9]) == found[:9]


def test_ill_formed_lines_are_refused_before_the_work(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "text").write_text("the <b>dog</b>\nthe <b>dog\n")
    given = ["translate", f"{folder}/missing", f"{tmp_path}/text", "--markup", "--output", f"{tmp_path}/out"]
    for more in ([], ["--resume"]):
        error = refuses(capsys, main([*given, *more]))
        assert error == f"dst: error: {tmp_path}/text, line 2, column 5: '<b>' is not closed on its line"
    (tmp_path / "text").write_text("the <b>dog</b>\n")
    assert "--markup is not available with --engine ct2" in refuses(capsys, main([*given, "--engine", "ct2"]))
    assert {path.name for path in tmp_path.iterdir()} == {"text"}


def test_a_server_aligns_and_keeps_tags(folder: Path, marked: list[tuple[str, str]]) -> None:
    lines = [source for source, _ in marked[:5]]
    translator = Translator.load(folder / "guided", device="cpu")
    keeping = MarkupTranslator.load(folder / "guided", device="cpu")
    plain = [parse_markup(line, "").text for line in lines]
    expected = translator.search(plain, alignments=True)
    with serving(folder / "guided") as server:
        assert server.ask("GET", "/healthz").json["guided_alignment"] is True
        found = server.post({"text": [*plain, ""], "alignments": True}).json["translations"]
        links = [[list(link) for link in outputs[0].alignment or ()] for outputs in expected]
        assert [one["alignment"] for one in found] == [*links, []]
        assert [one["text"] for one in found] == [*(outputs[0].text for outputs in expected), ""]
        tagged = server.post({"text": [*lines, "<b></b>"], "markup": True}).json["translations"]
        assert tagged == [{"text": text} for text in [*keeping.translate(lines), "<b></b>"]]
        both = server.post({"text": lines[0], "markup": True, "alignments": True, "n_best": 2}).json["translations"][0]
        assert both["text"] == both["n_best"][0]["text"] == tagged[0]["text"]
        assert both["alignment"] == both["n_best"][0]["alignment"] == links[0]
        pytest.importorskip("sentencex", reason="needs sentencex: pip install 'dstransformer[split]'")
        page = "<h1>{}</h1><p class='b'>{}<br>{}</p>".format(*lines)
        answer = server.post({"text": [page, " "], "markup": True, "split": True}).json["translations"]
        assert [one["text"] for one in answer] == keeping.translate([page, " "], split=True)
        assert answer[0]["text"] == "<h1>{}</h1> <p class='b'>{} <br>{}</p>".format(*keeping.translate(lines[:3]))
        refused = server.post({"text": ["a", "the <b>dog"], "markup": True})
        assert refused.status == 422
        assert refused.json["detail"] == "sentence 2, column 5: '<b>' is not closed on its line"
        assert server.post({"text": "a", "markup": 1}).json["detail"] == "markup must be true or false"
