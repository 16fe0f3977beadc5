"""Files on servers, through fsspec. They are downloaded first, because a build reads its files several times.

A copy is in ``CACHE/downloads/ADDRESS/VERSION/NAME``: ADDRESS is a hash of the address without its secrets, VERSION one
of what the server states about the content, such as its entity tag. A copy is written atomically.
"""

from __future__ import annotations

import errno
import glob
import hashlib
import logging
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from data_prep.recipe.names import Address
from data_prep.sources.texts import SEPARATOR, Text
from dstransformer.errors import DataError, DstError, UserError, shown, without_secrets
from dstransformer.io.files import is_plain_name, replacing, storage_errors, sync
from dstransformer.io.languages import short_tag
from dstransformer.io.progress import Advance, Progress

#: Keys of fsspec's file information that tell versions of a file apart.
_VALIDATORS = ("ETag", "Content-MD5", "Last-Modified", "LastModified", "VersionId", "created", "mtime")

#: Seconds without data after which a server counts as lost.
_SILENCE = 60

#: Errors of the disk, not of the network.
_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)

_HTTP = ("http://", "https://")

#: The server of OPUS, unless ``DST_OPUS`` names a mirror.
_OPUS = "https://object.pouta.csc.fi"


def default_cache() -> Path:
    """The folder of copies, unless the user names one."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "dstransformer")


def named_file(name: Address, languages: tuple[str, str] | None) -> Address:
    """The address of the Moses archive that ``opus:CORPUS/VERSION`` stands for. Other addresses stay what they are.

    Raises:
        UserError: One language is wanted, and an archive of OPUS has two; or ``DST_OPUS`` is not an address.
    """
    if not name.url.startswith("opus:"):
        return name
    if languages is None:
        raise UserError(f"{name} holds both sides: give it as --train, --valid or --test of --source files")
    server = os.environ.get("DST_OPUS") or _OPUS
    if "://" not in server:
        raise UserError(f"DST_OPUS={shown(server, quote=False)} is not an address such as {_OPUS}")
    pair = "-".join(sorted(map(_opus_code, languages)))
    return Address(f"{server.rstrip('/')}/OPUS-{name.url.removeprefix('opus:')}/moses/{pair}.txt.zip")


def _opus_code(code: str) -> str:
    """A language as OPUS writes it: ``de`` for ``deu``, ``pt_BR`` for ``pt-BR``."""
    short = code if len(re.split("[-_]", code)[0]) == 2 else short_tag(code) or code
    return short.replace("-", "_")


def fetch_texts(address: Address, cache: Path, progress: Progress, *, offline: bool = False) -> list[Text]:
    """Download the files that an address stands for, unless the cache has the server's present versions.

    Args:
        address: A file; a pattern with ``*``, where the server lists files; or ``ADDRESS::MEMBER`` of an archive.
        cache: Where copies are kept.
        progress: Shows what is downloaded.
        offline: Whether to take the newest copy of the cache without asking the server.

    Raises:
        UserError: The protocol is unknown, or its package is not installed.
        DataError: The server cannot be reached or refuses the request, the transfer breaks off, or no file fits.
        StorageError: The cache cannot be written.
    """
    url, member = split_member(address.url)
    texts = []
    for file in _matches(url, offline):
        name = without_secrets(file) + (f"{SEPARATOR}{member}" if member else "")
        path = _cached(file, cache) if offline else _download(file, cache, progress)
        texts.append(Text(path, member, name, name))
    return texts


def split_member(url: str) -> tuple[str, str]:
    """The address of a file, and the name of a member of it. The name of a host may hold ``::`` too (IPv6)."""
    scheme, _, rest = url.partition("://")
    host, slash, path = rest.partition("/")
    path, _, member = path.partition(SEPARATOR)
    return f"{scheme}://{host}{slash}{path}", member


def _matches(url: str, offline: bool) -> list[str]:
    if "*" not in url:
        return [url]
    if offline or url.startswith(_HTTP):
        why = "--offline" if offline else "an HTTP server lists no files"
        raise UserError(f"{without_secrets(url)} is a pattern ({why}): name each file")
    files, path = _connect(url)
    with _transfer(url):
        names = sorted(files.glob(path))
    if not names:
        raise DataError(f"no file fits {without_secrets(url)}")
    return [files.unstrip_protocol(name) for name in names]


def _connect(url: str) -> tuple[Any, str]:
    """The file system of an address, and the file's name there."""
    import fsspec

    logging.getLogger("asyncio").setLevel(logging.CRITICAL)  # it reports transfers that an interrupt ended
    options: dict[str, Any] = {}
    try:
        if url.startswith(_HTTP):
            import aiohttp

            timeout = aiohttp.ClientTimeout(total=None, sock_connect=_SILENCE, sock_read=_SILENCE)
            options = {
                "client_kwargs": {"timeout": timeout, "auto_decompress": False, "trust_env": True},
                "headers": {"Accept-Encoding": "identity"},
                "encoded": "%" in url,  # the signature of an address holds for its spelling
            }
        files, path = fsspec.core.url_to_fs(url, **options)
    except ImportError:
        raise UserError(
            f"{without_secrets(url)} needs a package that is not installed: `pip install 'dstransformer[remote]'` for "
            "http, https and s3, or the package of fsspec for its protocol"
        ) from None
    except ValueError as error:
        raise UserError(
            f"{without_secrets(url)} cannot be read ({_reason(error)}): give an http, https or s3 address"
        ) from None
    return files, path


def _place(url: str, cache: Path) -> tuple[Path, str]:
    """The folder of all copies of an address, and their name."""
    path = urlsplit(url).path if url.startswith(_HTTP) else url
    name = unquote(path.rpartition("/")[2])
    return cache / "downloads" / _short_hash(without_secrets(url)), name if is_plain_name(name) else "download"


def _short_hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:16]


def _cached(url: str, cache: Path) -> Path:
    folder, name = _place(url, cache)
    copies = sorted(folder.glob(f"*/{glob.escape(name)}"), key=lambda path: path.stat().st_mtime_ns)
    if not copies:
        raise DataError(f"{without_secrets(url)} is not in the cache {cache}: give the command once without --offline")
    return copies[-1]


def _download(url: str, cache: Path, progress: Progress) -> Path:
    files, path = _connect(url)
    with _transfer(url):
        info = files.info(path)
    if info.get("type") == "directory":
        raise DataError(f"{without_secrets(url)} is a folder: name a file, or a pattern")
    stated = [f"{key}={info[key]}" for key in _VALIDATORS if info.get(key)]
    folder, name = _place(url, cache)
    copy = folder / _short_hash("\n".join([*stated, str(info.get("size"))])) / name
    if stated and copy.is_file() and info.get("size") in (None, copy.stat().st_size):
        return copy
    with storage_errors(copy.parent, full="make room, or name another folder with --cache-dir"):
        copy.parent.mkdir(parents=True, exist_ok=True)
        with (
            replacing(copy) as aside,
            progress.task(f"download {without_secrets(url)}", info.get("size"), "bytes") as advance,
            _transfer(url),
        ):
            size, written = _copy(files, path, aside, advance) or info.get("size"), aside.stat().st_size
            if size is None:
                raise DataError(
                    f"the server of {without_secrets(url)} does not state the size of the file, so that a transfer "
                    "that breaks off could not be told from a whole one: download it by other means"
                )
            if written != size:
                raise DataError(
                    f"{without_secrets(url)} broke off after {written:,} of {size:,} bytes: give the same command again"
                )
            sync(aside)
    return copy


def _copy(files: Any, path: str, target: Path, advance: Advance) -> int | None:
    """Copy a file. Returns the size that the server states; None if it states none."""
    from fsspec.callbacks import Callback

    class Meter(Callback):  # type: ignore[misc]
        def relative_update(self, inc: int = 1) -> None:
            advance(inc)

    meter = Meter()
    files.get_file(path, str(target), callback=meter)
    return meter.size  # type: ignore[no-any-return]


@contextmanager
def _transfer(url: str) -> Iterator[None]:
    """Turn the errors of a transfer into a ``DataError`` of one line."""
    try:
        yield
    except DstError:
        raise
    except Exception as error:  # each library has its own
        if isinstance(error, OSError) and (error.errno in _DISK or error.filename is not None):
            raise
        advice = "check the address and the network, then give the same command again"
        if url.startswith("s3:"):
            advice = "check the address and AWS_ACCESS_KEY_ID, or set FSSPEC_S3_ANON=true for a public bucket"
        if "/OPUS-" in url:
            advice = "check the network, and the corpus, its version and languages at https://opus.nlpl.eu"
        raise DataError(f"cannot download {without_secrets(url)} ({_reason(error)}): {advice}") from None


def _reason(error: BaseException) -> str:
    while isinstance(error, FileNotFoundError) and error.__cause__ is not None:  # as fsspec wraps errors
        error = error.__cause__
    if status := getattr(error, "status", None):  # of aiohttp
        return f"{status} {getattr(error, 'message', '')}".strip()
    if isinstance(error, FileNotFoundError):
        return "not found"
    return shown(without_secrets(str(error)) or type(error).__name__, quote=False, limit=200)
