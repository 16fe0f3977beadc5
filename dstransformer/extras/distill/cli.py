"""``dst distill``: run the workflow from a teacher to a student with Snakemake."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from dstransformer.cli.options import CommandResult, file
from dstransformer.io.command import Commands

_HERE = Path(__file__).parent


def add_parser(commands: Commands) -> None:
    """Add the parser of ``dst distill``."""
    parser = commands.add_parser(
        "distill",
        help="train a student on a teacher's translations, with Snakemake (needs dstransformer[distill])",
        examples=("dst distill student.yaml --dry-run", "dst distill student.yaml --profile slurm --jobs 8"),
        takes_rest=True,
        epilog="Further options are Snakemake's. `dst distill --print-config` prints all values of a configuration.",
    )
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("config", nargs="?", type=file, metavar="CONFIG", help="YAML with the values that differ")
    which.add_argument("--print-config", action="store_true", help="print all values of a configuration and stop")
    parser.add_argument(
        "--profile",
        default="local",
        metavar="local|slurm|DIR",
        help="where the steps run: here, as jobs of SLURM, or as a Snakemake profile of your own says (local)",
    )
    parser.add_argument("--dry-run", action="store_true", help="print the steps that would run, and run none")
    parser.set_defaults(handler=run)


def run(options: argparse.Namespace) -> CommandResult:
    """Replace this process by Snakemake's."""
    if options.print_config:
        return CommandResult((_HERE / "config.yaml").read_text(encoding="utf-8").rstrip())
    from dstransformer.io.requirements import check_installed

    check_installed("snakemake")
    packaged = _HERE / "profiles" / options.profile
    command = [
        *("-m", "snakemake", "--snakefile", str(_HERE / "Snakefile")),
        *("--profile", str(packaged if packaged.is_dir() else options.profile)),
        *("--configfile", str(options.config), *(["--dry-run"] if options.dry_run else []), *options.rest),
    ]
    return os.execv(sys.executable, [sys.executable, *command])
