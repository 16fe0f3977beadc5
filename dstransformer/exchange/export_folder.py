"""How the folder of an export is written: whole or not at all, with ``dst.json`` and perhaps a signature."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from dstransformer.io.files import replace_folder
from dstransformer.io.products import write_marker
from dstransformer.model import Bundle

#: What to do if an export fills the disk.
FULL_ADVICE = "make room, then give the same command"

#: Writes the files of an export into a folder, and returns what ``dst.json`` states besides.
WriteFiles = Callable[[Path], Mapping[str, object]]


def fill_export(folder: Path, tool: str, bundle: Bundle, write: WriteFiles) -> None:
    """Write an export of a bundle into a new folder.

    Raises:
        OSError: It cannot be written.
    """
    folder.mkdir(parents=True)
    record = write(folder)
    write_marker(
        folder,
        "export",
        tool=tool,
        dstransformer=bundle.provenance.get("dstransformer"),
        src_lang=bundle.src_lang,
        tgt_lang=bundle.tgt_lang,
        **record,
    )


def replace_export(
    out: Path,
    tool: str,
    bundle: Bundle,
    write: WriteFiles,
    *,
    overwrite: bool,
    finish: Callable[[Path], None] | None,
) -> None:
    """Write an export of a bundle; the folder appears once it is complete.

    Args:
        out: The folder.
        tool: The tool that it is for.
        bundle: The bundle.
        write: Writes the files.
        overwrite: Whether to replace an earlier export.
        finish: Called with the complete folder before it appears, as to sign it.

    Raises:
        StorageError: The folder cannot be written.
    """

    def complete(folder: Path) -> None:
        fill_export(folder, tool, bundle, write)
        if finish is not None:
            finish(folder)

    replace_folder(out, complete, overwrite=overwrite, full=FULL_ADVICE)
