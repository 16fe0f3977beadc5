from __future__ import annotations

from pathlib import Path

import pytest

from dstransformer.errors import UserError
from dstransformer.extras.figures import (
    SUFFIXES,
    check_picture,
    line_colours,
    new_figure,
    picture,
    save_figure,
    short_names,
)
from dstransformer.io.products import write_marker


@pytest.mark.parametrize(("paths", "names"), [
    (["/runs/a"], ["a"]),
    (["/runs/a", "/runs/b"], ["a", "b"]),
    (["/x/1/run", "/x/2/run", "/x/other"], ["1/run", "2/run", "other"]),
    (["/x/1/run", "/y/1/run", "/y/2/run"], ["x/1/run", "y/1/run", "2/run"]),
    (["/run", "/x/run"], ["/run", "x/run"]),
    (["/", "/x"], ["/", "x"]),
    (["/same", "/same"], ["/same", "/same"]),
])  # fmt: skip
def test_names_are_as_short_as_possible(paths: list[str], names: list[str]) -> None:
    assert short_names([Path(path) for path in paths]) == names


@pytest.mark.parametrize("count", [1, 10, 11, 60])
def test_colours_differ(count: int) -> None:
    assert len(set(line_colours(count))) == count


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_the_same_figure_gives_the_same_bytes(suffix: str, tmp_path: Path) -> None:
    def draw() -> bytes:
        figure = new_figure(3, 2)
        figure.subplots().plot([1, 2], [3, 4], label="\u6f22")
        figure.suptitle("\u6f22\u5b57")  # not in the font
        return picture(figure, suffix)

    assert draw() == draw()
    assert draw()[:5] in (b"\x89PNG\r", b"<?xml", b"%PDF-")


def test_a_figure_is_saved_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "link.svg").symlink_to(tmp_path / "plot.svg")
    save_figure(new_figure(3, 2), tmp_path / "link.svg")
    assert (tmp_path / "link.svg").is_symlink()
    assert b"<svg" in (tmp_path / "plot.svg").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link.svg", "plot.svg"]


def test_unsuitable_picture_paths_are_refused(tmp_path: Path) -> None:
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    write_marker(corpus, "corpus")
    (tmp_path / "old.png").touch()
    (tmp_path / "folder.png").mkdir()
    for name, message in {
        "plot.jpeg": r"must end in \.png, \.svg or \.pdf",
        "plot": r"must end in \.png, \.svg or \.pdf",
        "folder.png": "is a folder: name a file in it",
        "corpus/plot.png": "lies inside the corpus",
        "nowhere/plot.png": "nowhere is not a folder; make it first",
        "old.png": "already exists: replace it with --overwrite",
    }.items():
        with pytest.raises(UserError, match=message):
            check_picture(tmp_path / name, overwrite=False)
    check_picture(tmp_path / "old.png", overwrite=True)
    check_picture(tmp_path / "NEW.PNG", overwrite=False)
