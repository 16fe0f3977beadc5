"""Word alignments of a toy model with and without guided alignment, beside eflomal's, by the grammar's reference.

eflomal, if it is installed, aligns the training text and the test text at once, in lower case and without punctuation,
which favours it. A further model is guided by its alignments of the training text, as a user's would be.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from benchmarks.lib.processes import environment, run_command, run_prep
from benchmarks.lib.tables import format_table
from data_prep.sources.toy.grammar import AlignedPair, aligned_toy_splits
from dstransformer.corpus.alignment import Link, format_links, read_links
from dstransformer.evaluation.alignment import score_alignments

SEED = 1
HELD_OUT = 1000

#: Places beside a link, where growing looks for more.
NEIGHBOURS = ((-1, 0), (0, -1), (1, 0), (0, 1), (-1, -1), (-1, 1), (1, -1), (1, 1))

Figures = dict[str, float]


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--pairs", type=int, default=20_000, help="training pairs (20000)")
    parser.add_argument("--updates", type=int, default=500, help="updates of each model (500)")
    parser.add_argument("--weight", type=float, default=0.5, help="of guided alignment (0.5)")
    parser.add_argument("--eflomal", default=shutil.which("eflomal-align"), help="its program eflomal-align (on PATH)")


def main(options: argparse.Namespace) -> None:
    splits = aligned_toy_splits(options.pairs, SEED, HELD_OUT, HELD_OUT)
    rows: list[tuple[str, Figures, float]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        sizes = ["--pairs", str(options.pairs), "--seed", str(SEED)]
        sizes += ["--valid-size", str(HELD_OUT), "--test-size", str(HELD_OUT)]
        toy = ["--source", "toy", *sizes, "--vocab-size", "1000"]
        run_prep("build", *toy, "--aligned", "--out", str(folder / "grammar"))
        written = [f"--{side}={folder / side}" for side in ("src", "tgt", "alignments")]
        run_prep("text", str(folder / "grammar"), *written)
        if options.eflomal:
            found, seconds = align_with_eflomal(options.eflomal, splits["train"] + splits["test"], folder)
            for kind, links in found.items():
                rows.append((f"eflomal, {kind}", score(links[options.pairs :], splits["test"]), seconds))
            build_with(found["grow-diag-final-and"][: options.pairs], splits, folder)
        else:
            print("eflomal is not installed: name its program eflomal-align with --eflomal for its rows")
        guided = f"loss.guided_alignment={options.weight}"
        models = [("no guidance", "grammar", []), ("guided by the grammar", "grammar", [guided])]
        models += [("guided by eflomal", "eflomal", [guided])] if options.eflomal else []
        for system, corpus, values in models:
            rows.append(
                (f"{options.updates} updates, {system}", *train_and_align(folder, corpus, options.updates, values))
            )
    print(f"{options.pairs:,} training pairs, {HELD_OUT:,} test pairs, vocabulary 1,000")
    cells = (
        f"{system} | {figures['aer']:.4f} | {figures['precision']:.4f} | {figures['recall']:.4f} | {seconds:.0f} s"
        for system, figures, seconds in rows
    )
    print(format_table("links | AER: | precision: | recall: | training or alignment:", cells))


def train_and_align(folder: Path, corpus: str, updates: int, values: Sequence[str]) -> tuple[Figures, float]:
    """Train a model; the figures of its alignment of the test text, and the seconds of training."""
    run = folder / f"run-{corpus}-{len(values)}"
    dst = [sys.executable, "-m", "dstransformer"]
    changes = [f"training.max_updates={updates}", "tracking.enabled=false", *values]
    began = time.perf_counter()
    train = [*dst, "train", "toy", "--corpus", str(folder / corpus), "--run", str(run), "--set", *changes]
    run_command(train, environment(DS_ACCELERATOR="cpu"))
    seconds = time.perf_counter() - began
    files = ["--src", str(folder / "src"), "--tgt", str(folder / "tgt"), "--reference", str(folder / "alignments")]
    figures: Figures = json.loads(run_command([*dst, "align", str(run), *files]).stdout)
    return figures, seconds


def align_with_eflomal(
    program: str, pairs: Sequence[AlignedPair], folder: Path
) -> tuple[dict[str, list[set[Link]]], float]:
    """The links of pairs by each direction and by their combination, and the seconds of the program."""
    files = {name: folder / f"eflomal.{name}" for name in ("src", "tgt", "forward", "reverse")}
    for side, sentences in (("src", [pair.english for pair in pairs]), ("tgt", [pair.german for pair in pairs])):
        files[side].write_text("".join(f"{plain(sentence)}\n" for sentence in sentences))
    began = time.perf_counter()
    run_command(
        [
            program,
            "--overwrite",
            *(part for flag, path in zip("stfr", files.values(), strict=True) for part in (f"-{flag}", str(path))),
        ]
    )
    seconds = time.perf_counter() - began
    forward, reverse = (
        [set(read_links(line)) for line in files[name].read_text().splitlines()] for name in ("forward", "reverse")
    )
    both = [grow_diag_final_and(one, other) for one, other in zip(forward, reverse, strict=True)]
    return {"source to target": forward, "target to source": reverse, "grow-diag-final-and": both}, seconds


def plain(sentence: str) -> str:
    """A sentence with as many words, in lower case and without punctuation."""
    return " ".join(word.strip(".,?").lower() for word in sentence.split())


def grow_diag_final_and(forward: set[Link], reverse: set[Link]) -> set[Link]:
    """Combine both directions: what they share, its neighbours in either, then links of words that have none yet.

    Koehn, Och and Marcu (2003).
    """
    links, union = forward & reverse, forward | reverse
    grown = True
    while grown:
        near = {(a + i, b + j) for a, b in links for i, j in NEIGHBOURS} & union - links
        grown = False
        for link in sorted(near):
            if is_free(link, links, 0) or is_free(link, links, 1):
                links.add(link)
                grown = True
    for direction in (forward, reverse):
        for link in sorted(direction - links):
            if is_free(link, links, 0) and is_free(link, links, 1):
                links.add(link)
    return links


def is_free(link: Link, links: Iterable[Link], side: int) -> bool:
    """Whether no link has this word of a side."""
    return all(other[side] != link[side] for other in links)


def score(links: Sequence[Iterable[Link]], pairs: Sequence[AlignedPair]) -> Figures:
    found = score_alignments(map(sorted, links), [pair.alignment for pair in pairs])
    return {name: float(value or 0.0) for name, value in found.record().items()}


def build_with(links: Sequence[set[Link]], splits: dict[str, list[AlignedPair]], folder: Path) -> None:
    """Build the corpus ``eflomal``: the same pairs and pieces, with these alignments of the training text."""
    options = []
    for flag, pairs in (("", splits["train"]), ("valid-", splits["validation"])):
        for side, sentences in (("src", [pair.english for pair in pairs]), ("tgt", [pair.german for pair in pairs])):
            path = folder / f"text.{flag}{side}"
            path.write_text("".join(f"{sentence}\n" for sentence in sentences))
            options += [f"--{flag}{side}", str(path)]
    (folder / "text.links").write_text("".join(f"{format_links(one)}\n" for one in links))
    options += [
        "--alignments",
        str(folder / "text.links"),
        "--tokenizer-model",
        str(folder / "grammar/tokenizer.model"),
    ]
    run_prep(
        "build", "--source", "files", "--src-lang", "en", "--tgt-lang", "de", *options, "--out", str(folder / "eflomal")
    )
