"""Word alignments of a toy model with and without guided alignment, beside eflomal's, by the grammar's reference.

eflomal, if it is installed, aligns the training text and the test text at once, in lower case and without punctuation,
which favours it. A further model is guided by its alignments of the training text, as a user's would be.
"""

from __future__ import annotations

import argparse
import json
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from benchmarks.lib.machine import child_seconds
from benchmarks.lib.processes import environment, run_command, run_prep
from benchmarks.lib.tables import format_table
from data_prep.grammar.phrases import Pair
from data_prep.sources.toy import toy_splits
from dstransformer.data.alignment import Link, ReferenceAlignment, format_links, read_links, score_alignments

SMOKE_OPTIONS = "--pairs 2000 --updates 2"
SEED = 1
VALIDATION = 100
TEST = 1000

#: Places beside a link, where growing looks for more.
NEIGHBOURS = ((-1, 0), (0, -1), (1, 0), (0, 1), (-1, -1), (-1, 1), (1, -1), (1, 1))

Links = list[set[Link]]
Figures = dict[str, float]


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--pairs", type=int, default=20_000, help="training pairs that are drawn (20000)")
    parser.add_argument("--max-words", type=int, default=100, help="leave out longer pairs, everywhere (100)")
    parser.add_argument("--updates", type=int, default=500, help="updates of each model (500)")
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="changes of the preset toy")
    parser.add_argument("--weight", type=float, default=0.5, help="of guided alignment (0.5)")
    parser.add_argument("--eflomal", default=shutil.which("eflomal-align"), help="its program eflomal-align (on PATH)")


def main(options: argparse.Namespace) -> None:
    drawn = toy_splits(options.pairs, SEED, VALIDATION, TEST)
    splits = {name: [pair for pair in pairs if is_short(pair, options.max_words)] for name, pairs in drawn.items()}
    sizes = ", ".join(f"{len(pairs):,} {name}" for name, pairs in splits.items())
    print(f"pairs: {sizes}; {options.updates} updates of toy {shlex.join(options.set)}", flush=True)
    guided = [f"loss.guided_alignment={options.weight}"]
    rows: list[tuple[str, Figures, float]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_reference(splits["test"], folder)
        corpora = {"grammar": [set(pair.links) for pair in splits["train"]]}
        if options.eflomal:
            found, seconds = align_with_eflomal(options.eflomal, splits["train"] + splits["test"], folder)
            train = len(splits["train"])
            rows += [
                (f"eflomal, {kind}", score(links[train:], splits["test"]), seconds) for kind, links in found.items()
            ]
            corpora["eflomal"] = found["grow-diag-final-and"][:train]
        else:
            print("eflomal is not installed: name its program eflomal-align with --eflomal for its rows")
        for corpus, links in corpora.items():
            build_with(corpus, links, splits, folder)
            rows.append((f"model guided by {corpus}", *train_and_align(folder, corpus, options, guided)))
        rows.append(("model without guidance", *train_and_align(folder, "grammar", options, [])))
    cells = (
        f"{system} | {figures['aer']:.4f} | {figures['precision']:.4f} | {figures['recall']:.4f} | {seconds:.0f} s"
        for system, figures, seconds in rows
    )
    print(format_table("links | AER: | precision: | recall: | CPU time of training or aligning:", cells))


def is_short(pair: Pair, words: int) -> bool:
    return max(len(pair.english.split()), len(pair.german.split())) <= words


def write_reference(pairs: Sequence[Pair], folder: Path) -> None:
    lines = {
        "test.src": [pair.english for pair in pairs],
        "test.tgt": [pair.german for pair in pairs],
        "test.gold": [format_links(pair.links) for pair in pairs],
    }
    for name, texts in lines.items():
        (folder / name).write_text("".join(f"{text}\n" for text in texts))


def train_and_align(
    folder: Path, corpus: str, options: argparse.Namespace, values: Sequence[str]
) -> tuple[Figures, float]:
    """Train a model; the figures of its alignment of the test text, and the CPU time of training."""
    run = folder / f"run-{corpus}-{len(values)}"
    dst = [sys.executable, "-m", "dstransformer"]
    changes = [f"training.max_updates={options.updates}", "tracking.enabled=false", *options.set, *values]
    before = child_seconds()
    train = [*dst, "train", "toy", "--corpus", str(folder / corpus), "--run", str(run), "--set", *changes]
    run_command(train, environment(DS_ACCELERATOR="cpu"))
    seconds = child_seconds() - before
    files = [f"--{flag}={folder / name}" for flag, name in (("src", "test.src"), ("tgt", "test.tgt"))]
    done = run_command([*dst, "align", str(run), *files, f"--reference={folder / 'test.gold'}"])
    figures: Figures = json.loads(done.stdout)
    return figures, seconds


def align_with_eflomal(program: str, pairs: Sequence[Pair], folder: Path) -> tuple[dict[str, Links], float]:
    """The links of pairs by each direction and by their combination, and its CPU time."""
    files = {name: folder / f"eflomal.{name}" for name in ("src", "tgt", "forward", "reverse")}
    for side, sentences in (("src", [pair.english for pair in pairs]), ("tgt", [pair.german for pair in pairs])):
        files[side].write_text("".join(f"{plain(sentence)}\n" for sentence in sentences))
    before = child_seconds()
    run_command(
        [
            program,
            "--overwrite",
            *(part for flag, path in zip("stfr", files.values(), strict=True) for part in (f"-{flag}", str(path))),
        ]
    )
    seconds = child_seconds() - before
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


def score(links: Sequence[Iterable[Link]], pairs: Sequence[Pair]) -> Figures:
    found = score_alignments(map(sorted, links), [ReferenceAlignment(pair.links, ()) for pair in pairs])
    return {name: float(value or 0.0) for name, value in found.record().items()}


def build_with(name: str, links: Links, splits: dict[str, list[Pair]], folder: Path) -> None:
    """Build a corpus with these alignments of the training text."""
    options = []
    for flag, pairs in (("", splits["train"]), ("valid-", splits["validation"])):
        for side, sentences in (("src", [pair.english for pair in pairs]), ("tgt", [pair.german for pair in pairs])):
            path = folder / f"{name}.{flag}{side}"
            path.write_text("".join(f"{sentence}\n" for sentence in sentences))
            options += [f"--{flag}{side}", str(path)]
    path = folder / f"{name}.links"
    path.write_text("".join(f"{format_links(one)}\n" for one in links))
    options += ["--alignments", str(path), "--vocab-size", "1500", "--out", str(folder / name)]
    run_prep("build", "--source", "files", "--src-lang", "en", "--tgt-lang", "de", *options)
