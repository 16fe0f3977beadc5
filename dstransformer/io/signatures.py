"""Signatures of folders in the format of OpenSSF Model Signing, with keys of elliptic curves.

The signature is the file ``model.sig`` in the folder: an in-toto statement with the SHA-256 of every other file, signed
with ECDSA. The tools of ``model_signing`` check it too.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dstransformer.errors import DataError, UserError, shown
from dstransformer.io.products import SIGNATURE
from dstransformer.io.requirements import check_installed

#: The environment variable with the password of a private key.
PASSWORD = "DST_KEY_PASSWORD"

_MAKE_KEY = "make one: openssl ecparam -name prime256v1 -genkey -noout -out KEY.pem"


class Signer:
    """Signs folders with a private key, from a file in PEM format.

    Raises:
        UserError: ``model-signing`` is not installed, or the file is not such a key, or needs a password.
    """

    def __init__(self, key: Path) -> None:
        check_installed("model_signing")
        from model_signing import signing

        with _key_errors(key, "private", _MAKE_KEY):
            password: Any = os.environb.get(os.fsencode(PASSWORD))  # bytes, which cryptography wants
            config: Any = signing.Config()  # type: ignore[no-untyped-call]
            self._config = config.use_elliptic_key_signer(private_key=key, password=password)

    def sign(self, folder: Path) -> None:
        """Write the signature of a folder into it, in place of an older one."""
        folder = folder.absolute()  # the library takes a relative path for one inside the folder
        self._config.set_hashing_config(_hashing(folder)).sign(folder, folder / SIGNATURE)


def verify_signature(folder: Path, key: Path) -> None:
    """Check the signature of a folder: every file is as it was signed, none was added, and none is missing.

    The public key is in a file in PEM format.

    Raises:
        UserError: ``model-signing`` is not installed, or the file is not such a key.
        DataError: The folder has no signature, or it is damaged or of another key, or does not match the files.
    """
    check_installed("model_signing")
    from cryptography.exceptions import InvalidSignature
    from model_signing import verifying

    if not (folder / SIGNATURE).is_file():
        raise DataError(f"{folder} is not signed: it has no {SIGNATURE}")
    with _key_errors(key, "public", "take it from the private one: openssl ec -in KEY.pem -pubout -out KEY.pub"):
        config: Any = verifying.Config()  # type: ignore[no-untyped-call]
        config.use_elliptic_key_verifier(public_key=key)
    try:
        root = folder.absolute()
        config.set_hashing_config(_hashing(root)).verify(root, root / SIGNATURE)
    except InvalidSignature:
        raise DataError(f"{folder / SIGNATURE} was changed, or made with another key than {key}") from None
    except (ValueError, KeyError, IndexError) as error:
        if "Key mismatch" in str(error):
            raise DataError(f"{folder / SIGNATURE} was made with another key than {key}") from None
        if "Cannot use" in str(error) and (links := sorted(path for path in folder.rglob("*") if path.is_symlink())):
            link = links[0].relative_to(folder)
            raise DataError(f"{folder} is not what was signed: {link} is a link, not a file") from None
        if "Signature mismatch" not in str(error):
            raise DataError(f"{folder / SIGNATURE} is damaged ({shown(error, quote=False)}): copy it again") from None
        raise DataError(f"{folder} is not what was signed: {_differences(str(error))}") from None


def _differences(said: str) -> str:
    """The files that differ, from the library's message."""
    kinds = {
        # A quote in a hash makes the library escape all others.
        "changed": r"Hash mismatch for \\?'([^'\\]*)\\?'",
        "added": r"Extra files found in model \\?'[^'\\]*\\?': ([^\"\]]*)",
        "missing": r"Missing files in model \\?'[^'\\]*\\?': ([^\"\]]*)",
    }
    files = {kind: ", ".join(re.findall(pattern, said)) for kind, pattern in kinds.items()}
    return "; ".join(f"{kind}: {names}" for kind, names in files.items() if names) or shown(said, quote=False)


def _hashing(folder: Path) -> Any:
    from model_signing import hashing

    config: Any = hashing.Config()  # type: ignore[no-untyped-call]
    return config.set_ignored_paths(paths=[folder / SIGNATURE], ignore_git_paths=False)


@contextmanager
def _key_errors(key: Path, kind: str, advice: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UserError(f"cannot read the key {key}: {error.strerror}") from None
    except TypeError:
        raise UserError(f"the key {key} has a password, or {PASSWORD} is set and it has none") from None
    except (ValueError, AttributeError) as error:  # the latter for keys of other kinds
        raise UserError(
            f"{key} is not a {kind} key of an elliptic curve in PEM format ({shown(error, quote=False)}): {advice}"
        ) from None
