"""Aligns the words of the pairs that a corpus is built from."""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from dstransformer.data.alignment import parse_links
from dstransformer.errors import DataError, shell_word
from dstransformer.io.command import exit_on_sigterm, run_guarded
from dstransformer.io.text import iter_lines, writing_files, writing_lines

#: Where the pairs stand that the aligner reads, and the links that it writes, beside the alignments.
FILES = {"src": "to_align.src", "tgt": "to_align.tgt", "out": "to_align.links"}


def main() -> int:
    """Align pairs with a model or with another program."""
    parser = argparse.ArgumentParser(description="Align the words of pairs.")
    parser.add_argument("--src", nargs="+", required=True, help="source text")
    parser.add_argument("--tgt", nargs="+", required=True, help="its translation, file by file")
    parser.add_argument("--to", type=Path, required=True, help="file for the links, a line for each pair")
    aligner = parser.add_mutually_exclusive_group(required=True)
    aligner.add_argument("--bundle", help="model that aligns")
    aligner.add_argument("--command", help="shell command of a program that does, with {src}, {tgt} and {out}")
    options = parser.parse_args()
    exit_on_sigterm()
    files = {name: options.to.with_name(file) for name, file in FILES.items()}
    pairs = write_pairs(options.src, options.tgt, files["src"], files["tgt"])
    files["out"].unlink(missing_ok=True)
    if options.bundle is not None:
        sides = ["--src", str(files["src"]), "--tgt", str(files["tgt"]), "--output", str(files["out"])]
        run(["dst", "align", options.bundle, *sides], "dst align")
    else:
        command = options.command
        for name, path in files.items():
            command = command.replace(f"{{{name}}}", shell_word(path))
        # With pipefail a pipeline fails with any of its programs.
        run(["bash", "-o", "pipefail", "-c", command], "alignments.command")
    with writing_lines(options.to, overwrite=True) as write:
        for line in links_of(options.src, options.tgt, files, pairs):
            write(line)
    for path in files.values():
        path.unlink()
    return 0


def write_pairs(src: Sequence[str], tgt: Sequence[str], src_to: Path, tgt_to: Path) -> int:
    """Write the pairs that have words on both sides, their words divided by single spaces; return their number."""
    pairs = 0
    with writing_files([src_to, tgt_to], overwrite=True) as (write_src, write_tgt):
        for one, other in iter_words(src, tgt):
            if one and other:
                write_src(" ".join(one))
                write_tgt(" ".join(other))
                pairs += 1
    if not pairs:
        raise DataError(f"{', '.join(tgt)}: no pair has words on both sides, there is nothing to align")
    return pairs


def iter_words(src: Sequence[str], tgt: Sequence[str]) -> Iterator[tuple[list[str], list[str]]]:
    """The words of each pair.

    Raises:
        DataError: A file and its translation have different numbers of lines.
    """
    for one, other in zip(src, tgt, strict=True):
        try:
            for src_line, tgt_line in zip(iter_lines(one), iter_lines(other), strict=True):
                yield src_line.split(), tgt_line.split()
        except ValueError:
            raise DataError(f"{one} and {other} have different numbers of lines: line n must be a pair") from None


def run(command: Sequence[str], name: str) -> None:
    """Run an aligner; its output goes to the log.

    Raises:
        DataError: It failed; the message ends with the last line that it printed.
    """
    last = "it printed nothing"
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, errors="replace"
    ) as process:
        try:
            assert process.stdout is not None
            for line in process.stdout:
                sys.stderr.write(line)
                last = line.strip() or last
        except BaseException:
            process.terminate()
            raise
    if process.returncode:
        raise DataError(f"{name} ended with status {process.returncode}: {last}")


def links_of(src: Sequence[str], tgt: Sequence[str], files: dict[str, Path], pairs: int) -> Iterator[str]:
    """A line of links for each pair: those of the aligner, or none for a pair that it did not get.

    Raises:
        DataError: The aligner wrote nothing, too few or too many lines, or links that do not fit the words of a pair.
    """
    out = files["out"]
    if not out.exists():
        raise DataError(f"the aligner did not write {out}: it must write {{out}}, a line of links for each pair")
    lines = enumerate(iter_lines(out) if out.stat().st_size else (), 1)
    number = 0
    for one, other in iter_words(src, tgt):
        if not (one and other):
            yield ""
            continue
        number, line = next(lines, (0, ""))
        if not number:
            raise DataError(f"the aligner wrote fewer lines than the {pairs:,} pairs of {files['src']} to {out}")
        parse_links(line, (len(one), len(other)), f"{out}, line {number}")
        yield line
    if next(lines, None) is not None:
        raise DataError(f"the aligner wrote more lines than the {pairs:,} pairs of {files['src']} to {out}")


if __name__ == "__main__":
    sys.exit(run_guarded("distill", main))
