"""``dst launch-files``: write the files that start a run on a cluster."""

from __future__ import annotations

from pathlib import Path

from dstransformer.cli.options import Command, CommandResult, Folder
from dstransformer.errors import UserError
from dstransformer.io.flags import argument

FILES = ("env.sh", "hostfile", "slurm.sbatch", "slurm-prep.sbatch", "kubernetes.yaml", "kubernetes-prep.yaml")


class LaunchFiles(Command, examples=("dst launch-files launch",)):
    """Write the files for SLURM, Kubernetes and the deepspeed launcher, to edit them."""

    folder: Folder = argument("DIR", "folder to write them to; files there stay")


@LaunchFiles.handler
def run(options: LaunchFiles) -> CommandResult:
    """Write the files, none of which may exist."""
    from dstransformer.io.files import replace_file, storage_errors

    packaged = Path(__file__).with_name("launch")
    source = packaged if packaged.is_dir() else Path(__file__).parents[2] / "launch"  # in a checkout
    target: Path = options.folder
    for name in FILES:
        if (target / name).exists():
            raise UserError(f"{target / name} exists: name another folder, or remove it")
    with storage_errors(target):
        target.mkdir(parents=True, exist_ok=True)
        for name in FILES:
            replace_file(target / name, (source / name).read_text(encoding="utf-8"))
    return CommandResult("\n".join(str(target / name) for name in FILES))
