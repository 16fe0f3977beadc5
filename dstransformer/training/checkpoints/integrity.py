"""Whether checkpoints are complete and intact, without PyTorch."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dstransformer.errors import DataError, shown
from dstransformer.io.files import file_sha256, is_plain_name, read_error

MANIFEST = "manifest.json"

#: The key of the manifest for the hash of its other keys.
OWN_HASH = "sha256"


def hash_manifest(manifest: Mapping[str, Any]) -> str:
    """The SHA-256 of a manifest without its own hash, as compact JSON with sorted keys."""
    content = {name: value for name, value in manifest.items() if name != OWN_HASH}
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def check_manifest(path: Path, content: Mapping[str, Any]) -> None:
    """Compare a manifest with its own hash.

    Raises:
        DataError: They differ.
    """
    if content.get(OWN_HASH) != hash_manifest(content):
        raise DataError(f"{path} is damaged: its content does not match its hash")


def verify_files(folder: Path, files: Mapping[str, str]) -> None:
    """Compare the files of a checkpoint with their hashes.

    Args:
        folder: The checkpoint.
        files: The SHA-256 of every file, by its path in the folder.

    Raises:
        DataError: A file is missing or damaged.
        UnreadableError: A file cannot be read now.
    """
    for name, digest in files.items():
        if not all(map(is_plain_name, name.split("/"))):
            raise DataError(f"{folder / MANIFEST} names {shown(name)}, which is no file of the checkpoint")
        path = folder / name
        try:
            is_damaged = not path.is_file() or file_sha256(path) != digest
        except OSError as error:
            raise read_error(path, error) from None
        if is_damaged:
            raise DataError(f"{path} is missing or damaged")
