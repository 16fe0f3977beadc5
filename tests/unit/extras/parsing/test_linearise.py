from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dstransformer.extras.parsing.linearise import Linearisation
from dstransformer.extras.parsing.trees import TOP, Tree

ALL = [Linearisation(tags, closing) for tags in ("keep", "xx", "numbered") for closing in ("label", "bare")]  # type: ignore[arg-type]

labels = st.sampled_from(["S", "NP", "VP", "WHNP"])
leaves = st.builds(
    lambda tag, word: Tree(tag, word=word), st.sampled_from(["NN", "-LRB-", ",", "PRP$"]), st.sampled_from("abc")
)
phrases = st.recursive(
    leaves,
    lambda parts: st.builds(lambda label, children: Tree(label, tuple(children)), labels, st.lists(parts, min_size=1)),
)
trees = st.builds(lambda *children: Tree(TOP, children), phrases) | st.builds(
    lambda children: Tree(TOP, tuple(children)), st.lists(phrases, min_size=2, max_size=3)
)


def with_any_tag(tree: Tree) -> Tree:
    if tree.word is not None:
        return Tree("XX", word=tree.word)
    return Tree(tree.label, tuple(map(with_any_tag, tree.children)))


def test_the_forms() -> None:
    tree = Tree(TOP, (Tree("S", (Tree("NP", (Tree("NN", word="cats"),)), Tree("VBP", word="sit"))),))
    forms = {(form.tags, form.closing): " ".join(form.write(tree)) for form in ALL}
    assert forms == {
        ("keep", "label"): "(S (NP (NN) )NP (VBP) )S",
        ("keep", "bare"): "(S (NP (NN) ) (VBP) )",
        ("xx", "label"): "(S (NP (XX) )NP (XX) )S",
        ("xx", "bare"): "(S (NP (XX) ) (XX) )",
        ("numbered", "label"): "(S (NP ▁#00 )NP ▁#01 )S",
        ("numbered", "bare"): "(S (NP ▁#00 ) ▁#01 )",
    }


@pytest.mark.parametrize("form", ALL)
@settings(max_examples=40)
@given(tree=trees)
def test_reading_inverts_writing(form: Linearisation, tree: Tree) -> None:
    expected = tree if form.tags == "keep" else with_any_tag(tree)
    assert form.read(form.write(tree), tree.words()) == expected


@pytest.mark.parametrize(("symbols", "message"), [
    ("(S (NN)", "a bracket is open, or words are left"),
    ("(S (NN) )S (NN)", "has no word: there are 1"),
    ("(S (NN) )NP", "closes no phrase"),
    ("(S (NP )NP (NN) )S", "symbol 2, '\\)NP', closes no phrase"),
    (")S", "closes no phrase"),
    ("", "a bracket is open, or words are left"),
])  # fmt: skip
def test_symbols_that_are_no_tree_are_refused(symbols: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Linearisation().read(symbols.split(), ["a"])


def test_numbered_words_are_numbered_on_both_sides() -> None:
    form = Linearisation("numbered")
    assert form.sentence(["the", "cat"]) == "#00 the #01 cat"
    assert form.sentence([str(place) for place in range(102)]).endswith("#99 99 #00 100 #01 101")
    assert Linearisation().sentence(["the", "cat"]) == "the cat"
