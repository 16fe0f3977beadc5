"""Scores by hand, by the definition of EVALB."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from dstransformer.cli.program import run
from dstransformer.errors import DataError
from dstransformer.extras.parsing.brackets import Counts, Tags, score_files, score_tree
from dstransformer.extras.parsing.trees import Located, Tree, iter_trees

GOLD = "(TOP (S (NP (DT the) (NN cat)) (VP (VBD sat) (PP (IN on) (NP (DT a) (NN mat)))) (. .)))"


@pytest.fixture
def read(tmp_path: Path) -> Reader:
    return Reader(tmp_path / "a.mrg")


class Reader:
    def __init__(self, path: Path) -> None:
        self._path = path

    def __call__(self, text: str) -> Tree:
        self._path.write_text(text)
        (found,) = iter_trees(self._path)
        return found.tree


def test_a_tree_equals_itself(read: Reader) -> None:
    counts = score_tree(read(GOLD), read(GOLD))
    # S, NP, VP, PP, NP: the outermost bracket and the full stop do not count.
    assert counts == Counts(sentences=1, gold=5, parsed=5, matched=5, complete=1, uncrossed=1, words=6, tagged=6)
    assert (counts.precision, counts.recall, counts.f1) == (100, 100, 100)


def test_missing_wrong_and_crossing_brackets(read: Reader) -> None:
    parsed = "(TOP (S (NP (DT the) (NN cat)) (VP (VP (VBD sat) (IN on)) (NP (DT a) (VB mat))) (. .)))"
    counts = score_tree(read(GOLD), read(parsed))
    # Right: S, NP, VP, NP. The inner VP is wrong, and crosses PP. PP is missing.
    assert (counts.matched, counts.gold, counts.parsed, counts.crossing) == (4, 5, 5, 1)
    assert (counts.complete, counts.uncrossed, counts.tagged) == (0, 0, 5)
    assert counts.f1 == pytest.approx(80)


def test_each_gold_bracket_matches_once(read: Reader) -> None:
    gold, parsed = read("(S (NP (NN a)) (VP (VB b)))"), read("(S (NP (NP (NN a))) (VP (VB b)))")
    counts = score_tree(gold, parsed)
    assert (counts.matched, counts.gold, counts.parsed) == (3, 3, 4)
    assert counts.precision == pytest.approx(75)


def test_punctuation_does_not_move_brackets_and_adverbs_are_particles(read: Reader) -> None:
    gold = read("(S (NP (NN a) (, ,)) (VP (VB b) (PRT (RP up)) (: -)) (`` ``))")
    parsed = read("(S (NP (NN a)) (, ,) (VP (VB b) (ADVP (RB up))) (: -) (`` ``))")
    counts = score_tree(gold, parsed)
    assert (counts.matched, counts.gold, counts.parsed, counts.words, counts.tagged) == (4, 4, 4, 3, 2)


def test_brackets_around_nothing_that_counts_are_passed_over(read: Reader) -> None:
    counts = score_tree(read("(S (NP (-NONE- *)) (VP (VB go)) (X (. .)))"), read("(S (VP (VB go)) (. .))"))
    assert (counts.matched, counts.gold, counts.parsed) == (2, 2, 2)


def test_other_words_fail_and_add_nothing(read: Reader) -> None:
    assert score_tree(read(GOLD), read(GOLD.replace("cat", "dog"))) == Counts(failed=1)
    assert score_tree(read(GOLD), read("(())")) == Counts(skipped=1)
    # A full stop tagged as a word is a word more.
    assert score_tree(read(GOLD), read(GOLD.replace("(. .)", "(NN .)"))) == Counts(failed=1)
    fixed = score_tree(read(GOLD), read(GOLD.replace("(. .)", "(NN .)")), "gold")
    assert (fixed.f1, fixed.tagged) == (100, 6)


def test_the_gold_tree_can_decide_what_is_punctuation(read: Reader) -> None:
    gold = read(GOLD)
    for parsed in (GOLD.replace("(. .)", "(NN .)"), GOLD):
        counts = score_tree(gold, read(parsed), "punctuation")
        assert (counts.f1, counts.words, counts.tagged, counts.failed) == (100, 6, 6, 0)
    # No tree at all is no right bracket.
    assert score_tree(gold, read("(())"), "punctuation") == Counts(sentences=1, gold=5, words=6)
    # A word that only the parser takes for punctuation is a word with a wrong tag.
    counts = score_tree(gold, read(GOLD.replace("(VBD sat)", "(, sat)")), "punctuation")
    assert (counts.f1, counts.words, counts.tagged, counts.failed) == (100, 6, 5, 0)


@pytest.mark.parametrize("tags", ["parsed", "punctuation", "gold"])
def test_a_sentence_of_punctuation_only_is_skipped(read: Reader, tags: Tags) -> None:
    for parsed in ("(S (X (. .) (: -)))", "(S (. .) (: -))"):
        assert score_tree(read("(S (. .) (: -))"), read(parsed), tags) == Counts(skipped=1)


def test_empty_elements_of_the_parser_do_not_keep_the_gold_tags_away(read: Reader) -> None:
    parsed = GOLD.replace("(. .)", "(NN .)").replace("(VP", "(NP (-NONE- *)) (VP")
    for tags in ("punctuation", "gold"):
        counts = score_tree(read(GOLD), read(parsed), tags)
        assert (counts.f1, counts.words, counts.tagged, counts.failed) == (100, 6, 6, 0)
    # Of the same words, an empty element is a wrong tag.
    counts = score_tree(read(GOLD), read(GOLD.replace("(VBD sat)", "(-NONE- sat)")), "punctuation")
    assert (counts.words, counts.tagged, counts.failed) == (6, 5, 0)


def test_forty_words_are_counted_with_punctuation_and_without_empty_elements(read: Reader) -> None:
    def tree(words: int, rest: str) -> Tree:
        return read(f"(S {' '.join(f'(NN w{number})' for number in range(words))} {rest})")

    trees = [tree(40, "(-NONE- *)"), tree(39, "(. .)"), tree(40, "(. .)"), tree(41, "")]
    scores = score_files(locate(*trees), locate(*trees))
    assert (scores.all.sentences, scores.short.sentences, scores.short.words) == (4, 2, 79)


def locate(*trees: Tree) -> list[Located]:
    return [Located(tree, f"x.mrg, line {number}") for number, tree in enumerate(trees, 1)]


def test_files_are_scored_by_their_sums(read: Reader) -> None:
    good, bad = read(GOLD), read("(S (NP (DT the) (NN cat) (VBD sat) (IN on) (DT a) (NN mat)) (. .))")
    long = Tree("S", tuple(Tree("NN", word=str(number)) for number in range(41)))
    scores = score_files(locate(good, good, long, good), locate(good, bad, long, read("(())")))
    assert (scores.all.sentences, scores.all.failed, scores.short.sentences) == (3, 0, 2)
    assert (scores.short.matched, scores.short.gold, scores.short.parsed) == (6, 10, 7)
    assert scores.short.f1 == pytest.approx(200 * 6 / 17)
    assert scores.all.f1 == pytest.approx(200 * 7 / 19)
    found = scores.to_json()
    assert found["metrics"]["complete_match"] == pytest.approx(100 * 2 / 3)
    assert "COLLINS.prm" in found["signature"]
    assert "tags:parsed" in found["signature"]
    assert "1 more skipped: their parsed trees have no word that counts" in str(scores)
    other = read(GOLD.replace("cat", "dog"))
    assert "1 more failed: their words differ" in str(score_files(locate(good, good), locate(good, other)))


def test_sides_that_do_not_belong_together_are_refused(read: Reader) -> None:
    good, other = read(GOLD), read(GOLD.replace("cat", "dog"))
    with pytest.raises(DataError, match=r"x.mrg, line 2: this gold tree"):
        score_files(locate(good, good), locate(good))
    with pytest.raises(DataError, match=r"x.mrg, line 1: this parsed tree"):
        score_files([], locate(good))
    with pytest.raises(DataError, match="x"):
        score_files(locate(good), locate(other))


def test_scores_of_nothing_are_nan() -> None:
    assert all(math.isnan(value) for value in Counts().metrics().values())


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "gold.mrg").write_text(GOLD)
    (tmp_path / "parsed.mrg").write_text(GOLD.replace("(PP", "(NP"))
    files = ["--gold", str(tmp_path / "gold.mrg"), "--trees", str(tmp_path / "parsed.mrg")]
    assert run(["evaluate", "--task", "parsing", *files, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["metrics"]["f1"] == pytest.approx(80)
    assert run(["evaluate", "--task", "parsing", *files]) == 0
    assert "all 1 sentences" in capsys.readouterr().out


@pytest.mark.parametrize(("arguments", "message"), [
    ("--task parsing --gold a", "--task parsing needs BUNDLE or --trees; see `dst evaluate --help`"),
    ("--src a --ref b", "--task translation needs BUNDLE"),
    ("model --src a --ref b --gold c", "--task translation does not take --gold, which is for --task parsing"),
    ("model --task parsing --gold a --trees b", "--trees and BUNDLE do not go together"),
    ("--task parsing --gold nowhere --trees b", "nowhere does not exist"),
])  # fmt: skip
def test_options_of_the_other_task_are_refused(
    capsys: pytest.CaptureFixture[str], arguments: str, message: str
) -> None:
    assert run(["evaluate", *arguments.split()]) == 2
    assert message in capsys.readouterr().err
