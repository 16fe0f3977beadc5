"""``dst align``: word alignments of given translations."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from dstransformer.cli.options import Command, CommandResult, File
from dstransformer.cli.score import Pairs
from dstransformer.errors import UserError, counted
from dstransformer.io.command import exit_on_sigterm
from dstransformer.io.flags import option

if TYPE_CHECKING:
    from dstransformer.decoding.aligner import Aligner


class Align(Pairs, Command, examples=("dst align runs/en-de --src test.en --tgt test.de --output links.txt",)):
    """Word alignments of given translations, pair by pair."""

    output: File | None = option(
        "file for the links, such as 0-0 1-2, gzipped if it ends in .gz; - is stdout (stdout)", "FILE"
    )
    reference: File | None = option(
        "right links, line by line, such as 0-0 1p2 with p for possible ones: print the alignment error rate, "
        "precision and recall as JSON, and write links only to an --output",
        "FILE",
    )


@Align.handler
def run(options: Align) -> CommandResult:
    """Align the pairs of two files."""
    from dstransformer.data.alignment import read_references, score_alignments
    from dstransformer.io.progress import reporting
    from dstransformer.io.text import is_stdout
    from dstransformer.model import open_bundle

    exit_on_sigterm()
    files = options.src, options.tgt
    if options.reference is not None and options.output is not None and is_stdout(options.output):
        raise UserError("--reference prints figures, so links cannot go to standard output: name a file as --output")
    references = None if options.reference is None else read_references(options.reference, *files)
    bundle = open_bundle(options.bundle)
    from dstransformer.decoding.aligner import Aligner, align_files

    def load() -> Aligner:
        return Aligner.load(
            bundle,
            device=options.device,
            precision=options.precision,
            batch_tokens=options.batch_tokens,
            max_tokens=options.max_tokens,
        )

    printed = references is None and is_stdout(options.output)
    with reporting("pairs", bar=not printed) as progress:
        output = "-" if references is None and options.output is None else options.output
        alignments = align_files(*files, output, load, overwrite=options.overwrite, progress=progress)
        if references is not None:
            return CommandResult(json.dumps(score_alignments(alignments, references).record()))
        pairs = sum(1 for _ in alignments)
    return CommandResult("" if printed else f"{options.output}: {counted(pairs, 'pair')}")
