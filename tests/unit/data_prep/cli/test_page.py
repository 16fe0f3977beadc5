"""The page of ``dst-prep report``."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.data.prep import build, refuses

from data_prep.cli import main

RECIPE = """
src_lang: en
tgt_lang: de
sources:
  text: {source: files, train: text.tsv, valid: valid.tsv, tag: <en>}
  toy: {source: toy, pairs: 50, held_out: false, weight: 2}
clean: {drop_identical: true}
vocab: {vocab_size: 400}
"""


def test_a_page_shows_what_cleaning_dropped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [f"the dog {n}\tder Hund {n}\n" for n in range(50)]
    long = f"{'ha ' * 300}\tha\n"
    (tmp_path / "text.tsv").write_text("".join([*lines, long, "<script>x</script>\t<script>x</script>\n"]))
    (tmp_path / "valid.tsv").write_text("<b>bold</b> dog\tfetter Hund\n")
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    assert build(tmp_path / "recipe.yaml", "--out", tmp_path / "corpus") == 0
    page = tmp_path / "page.html"
    assert main(["report", str(tmp_path / "corpus"), "--out", str(page)]) == 0
    html = page.read_text()
    assert "102 training pairs read, 100 kept" in html
    assert "identical: 1 (0.98%)" in html
    assert f">{'ha ' * 99}ha…</td>" in html, "a text that goes on does not look as if it ended"
    lost = re.findall(r"<tr><td>(\w+)</td><td class=\"n\">1</td><td class=\"n\">0</td></tr>", html)
    assert lost == ["too_long", "identical"], "by source"
    assert "&lt;script&gt;x&lt;/script&gt;" in html
    assert "<script" not in html
    assert "&lt;b&gt;bold" in html
    assert re.search(r"<td>toy</td>.*<td class=\"n\">100</td>", html), "pairs an epoch"
    assert sum(int(count) for count in re.findall(r"tokens: (\d+) sentences", html)) == 200
    words = re.findall(r"words: (\d+) sentences before cleaning, (\d+) after", html)
    assert [sum(int(pair[when]) for pair in words) for when in (0, 1)] == [2 * 102, 2 * 100]
    assert "and more words: 1 sentences before cleaning, 0 after" in html
    assert html.startswith("<!doctype html>")
    assert "http" not in html, "it needs no network"
    assert "already exists" in refuses(capsys, main(["report", str(tmp_path / "corpus"), "--out", str(page)]))
    wrong = main(["report", str(tmp_path / "corpus"), "--out", str(tmp_path / "page")])
    assert "does not end in .html" in refuses(capsys, wrong)


FILES = """
src_lang: en
tgt_lang: de
sources:
  one: {source: files, train: [a.tsv, b.tsv], valid: [a.tsv, b.tsv, a.tsv]}
  two: {source: files, train: a.tsv, held_out: false}
  three: {source: files, src: [c.en, d.en], tgt: [c.de, d.de], held_out: false}
vocab: {vocab_size: 310}
encode: {max_tokens: 40}
"""


def test_each_file_is_listed_with_what_it_gave_and_lost(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def lines(letter: str, *sides: str) -> str:
        return "".join("\t".join(f"{side} {letter} {n}" for side in sides) + "\n" for n in range(30))

    (tmp_path / "a.tsv").write_text(lines("a", "dog", "Hund"))
    (tmp_path / "b.tsv").write_text(lines("b", "dog", "Hund") + "\tnichts\n" + "dog a 1\tHund a 1\n")
    for letter in "cd":
        for side in ("en", "de"):
            longest = "ha " * 100 if letter == "d" else "short"
            (tmp_path / f"{letter}.{side}").write_text(f"{lines(letter, side)}{longest}\n")
    (tmp_path / "recipe.yaml").write_text(FILES)
    assert build(tmp_path / "recipe.yaml", "--out", tmp_path / "corpus") == 0
    counts = {"a.tsv": (30, 30), "b.tsv": (32, 30), "c.en, c.de": (31, 31), "d.en, d.de": (31, 30)}
    shown = capsys.readouterr().out
    for name, (read, kept) in counts.items():
        assert re.search(rf"^  {name}: {read} pairs read, {kept} kept, {read - kept} lost$", shown, re.MULTILINE), name
    assert main(["report", str(tmp_path / "corpus"), "--out", str(tmp_path / "page.html")]) == 0
    rows = re.findall(
        r"<tr><td>([^<]*)</td><td class=\"n\">(\d+)</td><td class=\"n\">(\d+)</td>",
        (tmp_path / "page.html").read_text(),
    )
    assert {name: (int(read), int(kept)) for name, read, kept in rows if "." in name} == counts
    assert main(["verify", str(tmp_path / "corpus")]) == 0
