"""Prints tables about a corpus."""

import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

from data_prep.mono import MonoRecord
from data_prep.stages.encode import unknown_shares
from dstransformer.data import CleaningReport, Manifest, TokenizerInfo

#: Maximum files that are listed on the terminal.
_MAX_FILES = 20


def _describe(name: str, tokenizer: TokenizerInfo) -> str:
    return f"{name}: {tokenizer.kind}, {tokenizer.vocab_size:,} pieces, sha256 {tokenizer.sha256[:12]}"


def show_manifest(path: Path, manifest: Manifest) -> None:
    """Print languages, tokenizer, splits and cleaning to stdout."""
    console = build_console()
    several = len(manifest.parts) > 1
    sources = ", ".join(part.name for part in manifest.parts) if several else manifest.sources[0].name
    console.print(f"{path}: {manifest.languages} from {sources}", soft_wrap=True)
    if manifest.src_tokenizer is not None:
        console.print(_describe("source tokenizer", manifest.src_tokenizer))
    console.print(_describe("tokenizer" if manifest.src_tokenizer is None else "target tokenizer", manifest.tokenizer))
    splits = _table("split", "pairs", "src tokens", "tgt tokens", "src len (mean)", "tgt len (mean)", "shards")
    for name, info in manifest.splits.items():
        lengths = [f"{stats.min}-{stats.max} ({stats.mean:.1f})" for stats in (info.src_lengths, info.tgt_lengths)]
        counts = [f"{count:,}" for count in (info.pairs, info.src_tokens, info.tgt_tokens)]
        splits.add_row(name, *counts, *lengths, str(len(info.shards)))
    console.print(splits)
    if several:
        parts = _table("source", "pairs read", "kept", "weight", "pairs an epoch", "tag")
        for part in manifest.parts:
            epoch = f"{int(part.weight * part.pairs):,}"
            parts.add_row(part.name, f"{part.read:,}", f"{part.pairs:,}", f"{part.weight:g}", epoch, part.tag or "")
        console.print(parts)
    files = [file for part in manifest.parts for file in part.files]
    for name, read, kept in files[:_MAX_FILES]:
        console.print(f"  {name}: {read:,} pairs read, {kept:,} kept, {read - kept:,} lost", soft_wrap=True)
    if len(files) > _MAX_FILES:
        console.print(f"  and {len(files) - _MAX_FILES:,} more files, which `dst-prep report` lists")
    if shares := unknown_shares(manifest):
        unknown = [f"{split} {language} {share:.2%}" for (split, language), share in shares.items() if share]
        console.print(f"unknown pieces (<unk>): {', '.join(unknown) or 'none'}", soft_wrap=True)
    for name, overlap in (manifest.overlap or {}).items():
        if overlap.sentences:
            size = manifest.splits[name].pairs
            console.print(
                f"{overlap.sentences:,} of {size:,} {name} sentences ({overlap.sentences / size:.1%}) are in the "
                f"training text, {overlap.pairs:,} of them with the same translation",
                soft_wrap=True,
            )
    if manifest.overlap and not any(overlap.sentences for overlap in manifest.overlap.values()):
        console.print(f"no sentence of {' or '.join(manifest.overlap)} is in the training text")
    show_cleaning(manifest.cleaning)


def _table(name: str, *headings: str) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column(name, no_wrap=True)
    for heading in headings:
        table.add_column(heading, justify="right")  # wraps, where it would be cut
    return table


def show_cleaning(report: CleaningReport | MonoRecord, unit: str = "pairs") -> None:
    """Print how many training pairs, or lines, as ``unit`` says, were read, dropped by each rule, and kept."""
    table = _table("cleaning", unit, "share")
    dropped = {f"dropped: {rule}": count for rule, count in report.dropped.items()}
    for name, count in {"read": report.read, **dropped, "kept": report.kept}.items():
        table.add_row(name, f"{count:,}", f"{count / report.read:.2%}")
    build_console().print(table)


def show_counts(manifest: Manifest) -> None:
    """Print the training pairs of each source that were read, dropped and kept; loading the manifest added them up."""
    cleaning = manifest.cleaning
    dropped = sum(cleaning.dropped.values())
    print(f"training pairs: {cleaning.read:,} read = {cleaning.kept:,} kept + {dropped:,} dropped")
    for part in manifest.parts if len(manifest.parts) > 1 else ():
        if part.dropped is not None:
            held_out = f"; {part.held_out:,} held out before" if part.held_out else ""
            lost = sum(part.dropped.values())
            print(f"  {part.name}: {part.read:,} read = {part.pairs:,} kept + {lost:,} dropped{held_out}")


class _PlainConsole(Console):
    def on_broken_pipe(self) -> None:
        """Raise, as any other write would; rich would end the process."""
        raise BrokenPipeError


def build_console() -> Console:
    """Build a console for plain text on stdout, 100 columns wide unless it is a terminal."""
    width = None if sys.stdout.isatty() else 100
    return _PlainConsole(highlight=False, markup=False, width=width)
