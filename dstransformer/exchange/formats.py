"""What exports and imports share: tables of the settings that a format holds, and the folder of an export.

What a table does not say is refused by name. So a part of the model that is new is refused by every export until its
table says how it is held.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path

from dstransformer.errors import DataError, shown
from dstransformer.io.files import replace_folder
from dstransformer.io.products import write_marker
from dstransformer.model import Bundle

#: For each setting the values that a format holds; None (:data:`ANY`) if it holds all, or they do not concern it.
Holds = Mapping[str, Collection[object] | None]

ANY = None

#: The settings of ``model`` that every format holds: sizes, and what only training reads.
SIZES: Holds = dict.fromkeys((
    "num_layers", "encoder_layers", "decoder_layers", "d_model", "d_ff", "dropout", "attention_dropout",
    "activation_dropout", "norm_epsilon", "max_positions", "vocab_multiple",
), ANY)  # fmt: skip

#: What to do if an export fills the disk.
FULL_ADVICE = "make room, then give the same command"

#: Writes the files of an export into a folder, and returns what ``dst.json`` states besides.
WriteFiles = Callable[[Path], Mapping[str, object]]


def check_bundle(bundle: Bundle, holds: Holds, what: str, advice: str) -> None:
    """Refuse a bundle that a format does not hold.

    Args:
        bundle: The bundle.
        holds: What the format holds, by the settings of ``model``.
        what: The format, for the message: ``a MarianMTModel``.
        advice: What to do instead, for the message.

    Raises:
        DataError: A setting has another value, or the bundle is a parser: other tools lack its constraint.
    """
    bundle.check_translates(
        "its outputs are trees only under the constraint of `dst parse`, which other tools lack; export a translation "
        "model"
    )
    check_settings(bundle.model, holds, f"{bundle.path}: model.", what, f"; {advice}")


def check_settings(
    settings: Iterable[tuple[str, object]], holds: Holds, begin: str, what: str, advice: str = ""
) -> None:
    """Refuse settings that a format, or a bundle, does not hold.

    Args:
        settings: Each setting and its value.
        holds: What it holds.
        begin: What stands before the name of the setting in the message.
        what: What does not hold it, for the message.
        advice: The end of the message.

    Raises:
        DataError: A setting has another value, or is not in the table.
    """
    for name, value in settings:
        values = holds.get(name, ())
        if values is not None and value not in values:
            raise DataError(f"{begin}{name} is {shown(value)}, and {what} {_describe(values)}{advice}")


def _describe(values: Collection[object]) -> str:
    if isinstance(values, range):
        return f"has {values.start} to {values.stop - 1}"
    return f"has {' or '.join(map(shown, values))}" if values else "does not know it"


def fill_export(folder: Path, tool: str, bundle: Bundle, write: WriteFiles) -> None:
    """Write an export of a bundle, with its ``dst.json``, into a new folder.

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
