from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from dstransformer.errors import DataError
from dstransformer.extras.parsing.trees import TOP, Tree, find_tree_files, iter_trees, normalise, read_trees

TWO = """*x*x*x* Copyright
( (S
    (NP-SBJ-1 (NNP Mr.) (NNP Vinken) )
    (VP (VBZ is)
      (S (NP-SBJ (-NONE- *-1) )
        (VP (TO to) (VP (VB pay) (NP (-LRB- -LRB-) (CD 3) (-RRB- -RRB-) )))))
    (. .) ))
(TOP (FRAG=2 (ADVP|PRT (RB up))))
"""


def write(folder: Path, text: str) -> Path:
    (folder / "a.mrg").write_text(text)
    return folder / "a.mrg"


def test_trees_over_several_lines_and_their_places(tmp_path: Path) -> None:
    one, two = iter_trees(write(tmp_path, TWO))
    assert one.place.endswith("a.mrg, line 2")
    assert two.place.endswith("a.mrg, line 8")
    assert one.tree.label == two.tree.label == TOP
    assert one.tree.words() == ["Mr.", "Vinken", "is", "*-1", "to", "pay", "-LRB-", "3", "-RRB-", "."]
    assert str(two.tree) == "(TOP (FRAG=2 (ADVP|PRT (RB up))))"


def test_what_is_printed_reads_as_the_same_tree(tmp_path: Path) -> None:
    trees = [located.tree for located in iter_trees(write(tmp_path, TWO))]
    again = iter_trees(write(tmp_path, " ".join(map(str, trees))))
    assert [located.tree for located in again] == trees


def test_normalising_removes_empty_elements_function_tags_and_indices(tmp_path: Path) -> None:
    one, two = (normalise(located.tree) for located in iter_trees(write(tmp_path, TWO)))
    assert str(one) == (
        "(TOP (S (NP (NNP Mr.) (NNP Vinken)) (VP (VBZ is) (S (VP (TO to) "
        "(VP (VB pay) (NP (-LRB- -LRB-) (CD 3) (-RRB- -RRB-)))))) (. .)))"
    )
    assert str(two) == "(TOP (FRAG (ADVP|PRT (RB up))))"
    assert normalise(Tree("S", (Tree("NP", (Tree("-NONE-", word="*"),)),))) is None
    invisible = Tree("NN", word="\N{ZERO WIDTH SPACE}\N{SOFT HYPHEN}")
    assert str(normalise(Tree("S", (Tree("NP", (invisible,)), Tree("NN", word="a"))))) == "(S (NN a))"


@pytest.mark.parametrize(("text", "message"), [
    ("( (S (NN a)\n", "a.mrg, line 1: this bracket is never closed: is the file complete?"),
    ("(S (NN a)))\n", "a.mrg, line 1: ')' is outside of any tree: a tree begins with `(`"),
    ("\nword\n", "a.mrg, line 2: 'word' is outside of any tree"),
    ("(S\n(NN a b))\n", "a.mrg, line 2: (NN a b) is neither a tag with one word nor a phrase with parts"),
    ("(S (NN))\n", "a.mrg, line 1: (NN) is neither a tag with one word"),
    ("(S x (NN a))\n", "a.mrg, line 1: a phrase has text beside its parts, 'x'"),
    ("(S ((NN a)))\n", "a.mrg, line 1: a phrase has no label"),
    ("(" * 500, "a.mrg, line 1: more than 200 brackets are open"),
])  # fmt: skip
def test_damaged_trees_are_refused_with_their_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(DataError) as caught:
        list(iter_trees(write(tmp_path, text)))
    assert message in str(caught.value)


def test_a_parser_without_a_result_writes_an_empty_tree(tmp_path: Path) -> None:
    (empty,) = iter_trees(write(tmp_path, "(())\n"))
    assert empty.tree.words() == []


def test_files_folders_and_patterns(tmp_path: Path) -> None:
    folder = tmp_path / "a[1]?"  # a folder that exists is no pattern
    folder.mkdir()
    (folder / "02").mkdir()
    for name in ("02/b.mrg", "02/a.mrg", "notes.txt"):
        (folder / name).write_text("(S (NN a))")
    with gzip.open(folder / "c.mrg.gz", "wt") as file:
        file.write("(S (NN zipped))")
    assert [path.name for path in find_tree_files(str(folder))] == ["a.mrg", "b.mrg", "c.mrg.gz"]
    assert [path.name for path in find_tree_files(str(folder / "0*" / "*.mrg"))] == ["a.mrg", "b.mrg"]
    assert [located.tree.words() for located in read_trees(str(folder))] == [["a"], ["a"], ["zipped"]]
    with pytest.raises(DataError, match="does not exist"):
        find_tree_files(str(folder / "none*"))
    (folder / "empty").mkdir()
    with pytest.raises(DataError, match=r"empty holds no \.mrg files"):
        find_tree_files(str(folder / "empty"))


def test_files_in_another_encoding_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.mrg").write_bytes("(S (NN Straße))".encode("latin-1"))
    with pytest.raises(DataError, match=r"a\.mrg"):
        read_trees(str(tmp_path / "a.mrg"))


def test_a_file_without_trees_is_named(tmp_path: Path) -> None:
    (tmp_path / "blank.mrg").write_text("\n\n")
    (tmp_path / "empty.mrg").touch()
    with pytest.raises(DataError, match=r"blank\.mrg"):
        read_trees(str(tmp_path / "blank.mrg"))
    with pytest.raises(DataError, match=r"empty\.mrg"):
        read_trees(str(tmp_path / "empty.mrg"))
