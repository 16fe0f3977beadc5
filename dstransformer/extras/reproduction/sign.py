"""``dst sign`` and ``dst verify``: signatures of bundles and exports."""

from __future__ import annotations

from dstransformer.cli.options import Command, CommandResult, Folder
from dstransformer.errors import DataError
from dstransformer.io.command import exit_on_sigterm
from dstransformer.io.flags import argument, option


class Sign(Command, examples=("dst sign runs/en-de/bundle --key private.pem",)):
    """Sign a bundle or an export (needs dstransformer[sign])."""

    folder: Folder = argument("FOLDER", "folder of a bundle, a run or an export")
    key: Folder = option("private key of an elliptic curve, in PEM format", "FILE", required=True)


class Verify(Command, examples=("dst verify runs/en-de/bundle --key public.pem",)):
    """Check the signature of a bundle or an export, and all its hashes."""

    folder: Folder = argument("FOLDER", "folder of a bundle, a run or an export")
    key: Folder | None = option("public key, in PEM format; without it only a bundle's own hashes", "FILE")


@Sign.handler
def run_sign(options: Sign) -> CommandResult:
    """Sign a folder, after its hashes have been checked.

    Raises:
        DataError: The folder is neither a bundle nor an export, or is damaged.
    """
    from dstransformer.io.products import SIGNATURE, kind_of
    from dstransformer.io.signatures import Signer

    exit_on_sigterm()
    signer = Signer(options.key)
    if kind_of(options.folder) == "export":
        place = options.folder
    else:
        from dstransformer.model import open_bundle

        bundle = open_bundle(options.folder)
        bundle.verify_weights()
        place = bundle.path
    signer.sign(place)
    return CommandResult(f"{place / SIGNATURE}: signed with {options.key}")


@Verify.handler
def run_verify(options: Verify) -> CommandResult:
    """Check a signature and hashes.

    Raises:
        DataError: The folder is not what was signed, or does not match its hashes; or it is an export without a key.
    """
    from dstransformer.io.products import kind_of
    from dstransformer.io.signatures import verify_signature

    place, checked = options.folder, []
    if kind_of(place) != "export":
        from dstransformer.model import open_bundle

        bundle = open_bundle(place)
        (bundle.verify_weights if options.key is not None else bundle.verify_files)()
        what = "files match" if options.key is None else "weights and tokenizer match"
        place, checked = bundle.path, [f"its {what} their hashes"]
    elif options.key is None:
        raise DataError(f"{place} is an export, which has no hashes of its own: give --key")
    if options.key is not None:
        verify_signature(place, options.key)
        checked.append(f"every file is as it was signed with the key of {options.key}")
    return CommandResult(f"{place}: {', and '.join(checked)}")
