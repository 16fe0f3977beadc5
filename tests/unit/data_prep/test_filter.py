"""``dst-prep filter``: pairs without the share that has the worst scores."""

from __future__ import annotations

import gzip
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_prep.cli import main
from data_prep.filter import filter_pairs


@pytest.fixture
def pairs(tmp_path: Path) -> list[str]:
    """Ten pairs. The perplexity in the third column is highest for 3 and 7; pair 5 has none, pair 9 is empty."""
    perplexities = [2.0, 3.0, 9.0, 2.5, math.nan, 1.5, 8.0, 4.0, 99.0, 2.0]
    (tmp_path / "src").write_text("".join(f"source {n}\n" for n in range(1, 11)))
    (tmp_path / "tgt").write_text("".join("\n" if n == 9 else f"target {n}\n" for n in range(1, 11)))
    (tmp_path / "scores").write_text("".join(f"-3.5\t4\t{value}\n" for value in perplexities))
    return [option for name in ("src", "tgt", "scores") for option in (f"--{name}", str(tmp_path / name))]


def run(pairs: list[str], folder: Path, *options: str) -> int:
    outputs = ["--out-src", str(folder / "out.src"), "--out-tgt", str(folder / "out.tgt.gz")]
    return main(["filter", *pairs, *outputs, *options])


def test_the_worst_share_of_the_scored_pairs_is_dropped(
    tmp_path: Path, pairs: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(pairs, tmp_path, "--column", "3", "--drop-highest", "0.25") == 0
    kept = [1, 2, 4, 6, 8, 10]
    assert (tmp_path / "out.src").read_text() == "".join(f"source {n}\n" for n in kept)
    assert gzip.decompress((tmp_path / "out.tgt.gz").read_bytes()).decode() == "".join(f"target {n}\n" for n in kept)
    assert capsys.readouterr().out == (
        "6 of 10 pairs kept; dropped: 2 with the worst scores, 1 without a score, 1 with an empty side\n"
    )


@given(
    scores=st.lists(st.one_of(st.integers(-3, 3).map(float), st.just(math.nan)), min_size=1, max_size=30),
    share=st.floats(0, 0.99),
    lowest=st.booleans(),
)
def test_nothing_that_is_kept_is_worse_than_what_is_dropped(
    tmp_path_factory: pytest.TempPathFactory, scores: list[float], share: float, lowest: bool
) -> None:
    folder = tmp_path_factory.mktemp("pairs")
    for name, lines in (("src", range(len(scores))), ("tgt", range(len(scores))), ("scores", scores)):
        (folder / name).write_text("".join(f"{line}\n" for line in lines))
    scored = [n for n, score in enumerate(scores) if not math.isnan(score)]
    out = (folder / "out.src", folder / "out.tgt")

    def run() -> int:
        done = filter_pairs(
            folder / "src", folder / "tgt", folder / "scores", out,
            share=share, worst="lowest" if lowest else "highest", column=1, overwrite=False,
        )  # fmt: skip
        return done.kept

    if not scored:
        with pytest.raises(Exception, match=r"no pair of .* is left"):
            run()
        assert not out[0].exists()
        return
    assert run() == len(scored) - math.floor(share * len(scored))
    kept = [int(line) for line in out[0].read_text().splitlines()]
    assert kept == sorted(kept)
    assert out[1].read_text() == out[0].read_text()
    sign = -1 if lowest else 1
    dropped = set(scored) - set(kept)
    assert all((sign * scores[k], k) < (sign * scores[d], d) for k in kept for d in dropped)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("scores", "-3.5\t4\tnan\n" * 10, "no pair of "),
        ("tgt", " \n" * 10, "no pair of "),
        ("tgt", "target\n" * 9, "tgt has 9 lines, "),
        ("scores", "1\t2\t3\n" * 11, "scores has 11 lines: line n of each must belong to pair n"),
        ("scores", "1\t2\t3\n" * 9 + "1\t2\n", "scores, line 10: 2 columns, and --column 3 is wanted"),
        ("scores", "1\t2\t3\n" * 9 + "1\t2\tgood\n", "scores, line 10: 'good' is not a number"),
    ],
)
def test_bad_input_is_refused_and_nothing_appears(
    tmp_path: Path, pairs: list[str], name: str, content: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / name).write_text(content)
    assert run(pairs, tmp_path, "--column", "3", "--drop-highest", "0.1") == 2
    errors = capsys.readouterr().err
    assert message in errors
    assert errors.count("\n") == 1
    assert not list(tmp_path.glob("*out.*"))


def test_files_are_replaced_only_with_overwrite_and_inputs_never(
    tmp_path: Path, pairs: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "out.src").write_text("mine\n")
    assert run(pairs, tmp_path, "--column", "3", "--drop-lowest", "0") == 2
    assert "already exists" in capsys.readouterr().err
    assert (tmp_path / "out.src").read_text() == "mine\n"
    assert run(pairs, tmp_path, "--column", "3", "--drop-lowest", "0", "--overwrite") == 0
    assert run(pairs, tmp_path, "--column", "3", "--drop-lowest", "0", "--overwrite", "--out-src", pairs[1]) == 2
    assert "is an input of this command" in capsys.readouterr().err


@pytest.mark.parametrize("share", ["1", "-0.1", "nan", "half"])
def test_a_share_is_less_than_one(
    tmp_path: Path, pairs: list[str], share: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(pairs, tmp_path, "--drop-lowest", share) == 2
    assert f"'{share}' is not a share: give a number of 0 or more, less than 1" in capsys.readouterr().err
