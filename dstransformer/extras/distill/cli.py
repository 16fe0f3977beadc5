"""``dst distill``: run the workflow from a teacher to a student with Snakemake."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from dstransformer.cli.options import Command, CommandResult, File
from dstransformer.io.flags import argument, option

_HERE = Path(__file__).parent


class Distill(
    Command,
    examples=("dst distill student.yaml --dry-run", "dst distill student.yaml --profile slurm --jobs 8"),
    takes_rest=True,
    epilog="Further options are Snakemake's. `dst distill --print-config` prints all values of a configuration.",
):
    """Train a student on a teacher's translations, with Snakemake (needs dstransformer[distill])."""

    config: File | None = argument(
        "CONFIG", "YAML with the values that differ", default=None, one_of="which", required=True
    )
    print_config: bool = option("print all values of a configuration and stop", one_of="which")
    profile: str = option(
        "where the steps run: here, as jobs of SLURM, or as a Snakemake profile of your own says (local)",
        "local|slurm|DIR",
        default="local",
    )
    dry_run: bool = option("print the steps that would run, and run none")
    rest: Sequence[str] = ()


@Distill.handler
def run(options: Distill) -> CommandResult:
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
