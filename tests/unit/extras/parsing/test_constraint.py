"""Constrained search: what it can write is a tree over the words, and every such tree can be written."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.models.packed import pack, tiny_config

from dstransformer.config import DecodingConfig, load_config
from dstransformer.data import EOS_ID
from dstransformer.decoding import beam_search
from dstransformer.decoding.beam import Hypothesis
from dstransformer.extras.parsing.constraint import MAX_DEPTH, SymbolTable, TreeConstraint
from dstransformer.extras.parsing.linearise import Linearisation
from dstransformer.extras.parsing.trees import TOP, Tree
from dstransformer.model import Ensemble, Transformer

LABELS = ("NP", "S", "VP")
TAGS = ("DT", ",", "-LRB-")
CPU = torch.device("cpu")


def symbol_ids(form: Linearisation, labels: Sequence[str] = LABELS, tags: Sequence[str] = TAGS) -> dict[str, int]:
    """Ids of the symbols of these labels and tags, from 4 on."""
    closing = [f"){label}" for label in labels] if form.closing == "label" else [")"]
    words = {"keep": [f"({tag})" for tag in tags], "xx": ["(XX)"], "numbered": sorted(form.symbols([]))}[form.tags]
    return {name: number for number, name in enumerate([*(f"({label}" for label in labels), *closing, *words], 4)}


forms = st.builds(Linearisation, st.sampled_from(["keep", "xx", "numbered"]), st.sampled_from(["label", "bare"]))


@given(form=forms, words=st.integers(1, 9), spare=st.integers(0, 40), seed=st.integers(0, 2**32))
def test_whatever_is_allowed_becomes_a_tree_over_the_words(
    form: Linearisation, words: int, spare: int, seed: int
) -> None:
    ids = symbol_ids(form)
    names = {number: name for name, number in ids.items()}
    draw = random.Random(seed)
    constraint = TreeConstraint(SymbolTable(ids, CPU), [words], 1)
    limit = constraint.min_lengths[0] + spare
    written: list[str] = []
    while True:
        allowed = constraint.allowed(torch.tensor([limit - len(written)]))[0, 0]
        tokens = constraint.pieces[allowed].tolist()
        assert tokens, "a hypothesis has no way on"
        # Openings are drawn more often, to try the limits of length and depth.
        token = draw.choice(tokens + [number for number in tokens if names.get(number, "").startswith("(N")] * 3)
        if token == EOS_ID:
            break
        written.append(names[token])
        constraint.advance(torch.zeros(1, 1, dtype=torch.int64), torch.tensor([[token]]))
    assert len(written) + 1 <= limit
    tree = form.read(written, [f"w{number}" for number in range(words)])
    assert tree.words() == [f"w{number}" for number in range(words)]
    assert form.write(tree) == written


def test_no_more_brackets_are_open_than_the_limit() -> None:
    form = Linearisation()
    ids = symbol_ids(form)
    constraint = TreeConstraint(SymbolTable(ids, CPU), [1], 1)
    opening = torch.tensor([[ids["(S"]]])
    for _ in range(MAX_DEPTH):
        assert bool(constraint.allowed(torch.tensor([10_000]))[0, 0, constraint.pieces == ids["(S"]])
        constraint.advance(torch.zeros(1, 1, dtype=torch.int64), opening)
    assert constraint.pieces[constraint.allowed(torch.tensor([10_000]))[0, 0]].tolist() == [
        ids[f"({tag})"] for tag in TAGS
    ]


leaves = st.builds(lambda tag: Tree(tag, word="w"), st.sampled_from(TAGS))
phrases = st.recursive(
    st.builds(
        lambda label, children: Tree(label, tuple(children)), st.sampled_from(LABELS), st.lists(leaves, min_size=1)
    ),
    lambda parts: st.builds(
        lambda label, children: Tree(label, tuple(children)),
        st.sampled_from(LABELS),
        st.lists(parts | leaves, min_size=1),
    ),
    max_leaves=12,
)


@given(form=forms, tree=st.builds(lambda part: Tree(TOP, (part,)), phrases | leaves))
def test_every_tree_can_be_written(form: Linearisation, tree: Tree) -> None:
    ids = symbol_ids(form)
    symbols = form.write(tree)
    constraint = TreeConstraint(SymbolTable(ids, CPU), [len(tree.words())], 1)
    limit = max(len(symbols) + 1, constraint.min_lengths[0])
    for place, token in enumerate([*(ids[symbol] for symbol in symbols), EOS_ID]):
        allowed = constraint.allowed(torch.tensor([limit - place]))[0, 0]
        assert token in constraint.pieces[allowed].tolist()
        constraint.advance(torch.zeros(1, 1, dtype=torch.int64), torch.tensor([[token]]))


def test_hypotheses_keep_their_own_state_and_sentences_can_leave() -> None:
    ids = symbol_ids(Linearisation())
    constraint = TreeConstraint(SymbolTable(ids, CPU), [5, 2], 2)
    constraint.advance(torch.tensor([[0, 0], [0, 0]]), torch.tensor([[ids["(S"], ids["(NP"]], [ids["(VP"], ids["(S"]]]))
    constraint.advance(torch.tensor([[1, 1], [0, 1]]), torch.full((2, 2), ids["(DT)"]))
    constraint.advance(torch.tensor([[0, 1], [0, 1]]), torch.full((2, 2), ids["(DT)"]))
    constraint.keep(torch.tensor([1]))
    allowed = constraint.allowed(torch.tensor([30]))
    assert [constraint.pieces[row].tolist() for row in allowed[0]] == [[ids[")VP"]], [ids[")S"]]]


SMALL = symbol_ids(Linearisation(), labels=("A", "B"), tags=("t",))


def decoding(**values: float) -> DecodingConfig:
    return load_config("base").decoding.model_copy(update={"max_input_tokens": 0, "batch_tokens": 100} | values)


def draw_model(seed: int) -> Transformer:
    """A random model that seldom gives two trees the same score."""
    torch.manual_seed(seed)
    model = Transformer(tiny_config(tie_embeddings="none"), 12).eval()
    with torch.no_grad():
        model.softmax.weight.mul_(6.0)  # type: ignore[union-attr]
    return model


@pytest.mark.parametrize("beam_size", [1, 3])
def test_a_batch_equals_one_sentence_at_a_time(beam_size: int) -> None:
    model, table = draw_model(2), SymbolTable(SMALL, CPU)
    settings = decoding(beam_size=beam_size, length_penalty=0.3, max_extra_tokens=20)
    words = [1, 7, 2, 12, 1, 4, 3, 9]  # they end at different steps, so that sentences leave the batch
    sources = [torch.tensor([*(5 + number % 6 for number in range(count)), EOS_ID]) for count in words]

    def parse(numbers: Sequence[int]) -> list[list[Hypothesis]]:
        constraint = TreeConstraint(table, [words[number] for number in numbers], beam_size)
        packed = pack([sources[number] for number in numbers])
        return beam_search(Ensemble([model]), *packed, settings, vocab_size=12, constraint=constraint)

    together = parse(range(len(words)))
    for number, (found,) in enumerate(together):
        (alone,) = parse([number])[0]
        assert found.tokens == alone.tokens
        assert found.score == pytest.approx(alone.score, abs=1e-4)
        names = {token: name for name, token in SMALL.items()}
        Linearisation().read([names[token] for token in found.tokens], ["w"] * words[number])
