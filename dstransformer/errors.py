"""Errors for users. Each message states what is wrong, the value, where it was found, and how to fix it."""

import os
import re
import shlex

#: Replaces a password in messages and files.
MASK = "***"

#: Secrets in the address of a server: the password, a token in place of the user, and values of its query.
_SECRETS = (
    (re.compile(r"(://[^/\s:@]*):[^/\s]*@"), r"\1:***@"),
    (re.compile(r"(https?://)[^/\s:@]+@"), r"\1***@"),
    (
        re.compile(
            r"([?&](?:sig|key|[^=&?\s]{0,60}(?:pass|pwd|token|secret|signature|credential|api_?key)[^=&?\s]{0,60})=)"
            r"(?:(?!::)[^&\s])+",
            re.IGNORECASE,
        ),
        r"\1***",
    ),
)


#: The exit status of a training run that was stopped before its end. The same command resumes it. Launchers, such as
#: the files in ``launch/``, restart a run with this status and no other.
RUN_AGAIN = 143


class DstError(Exception):
    """A failure reported in one line, without a traceback.

    Attributes:
        exit_code: The exit status of the process.
        rank: The rank that raised it, if other ranks may not have raised it; None if all ranks raise the same error.
        shared: Whether every rank knows about the error.
    """

    exit_code = 1
    rank: int | None = None
    shared: bool = False


class UserError(DstError):
    """An error the user can fix: a bad argument, configuration value or file. The process exits with 2."""

    exit_code = 2


class ConfigError(UserError):
    """A preset, an override or a DeepSpeed fragment is invalid."""


class DataError(UserError):
    """A text file, a corpus, a bundle or a checkpoint is invalid."""


class NewerFormatError(DataError):
    """A file that a newer version of this package wrote. It is intact, so it is never skipped as damaged."""


class StorageError(DstError):
    """The file system failed: disk full, permission denied, folder gone. The process exits with 1."""


class PeerError(DstError):
    """Another process of the run has died or does not respond."""


class UnreadableError(DataError, StorageError):
    """A file could not be read. It may be intact: it is never skipped as damaged, and reading it again may work."""


#: Advice at the end of every message about divergence.
DIVERGED_ADVICE = (
    "lower schedule.scale or raise schedule.warmup_steps in a new run, or resume from an earlier checkpoint with "
    "--resume PATH"
)


class DivergedError(DstError):
    """Training diverged and the weights are unusable. Every rank raises it at the same update."""

    shared = True


def counted(number: int, noun: str) -> str:
    """A number and its noun: ``1 line``, ``2,000 lines``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def shown(value: object, *, quote: bool = True, limit: int = 80) -> str:
    r"""A value for an error message, on one line: its ``repr``, or its text. Long values lose their middle.

    Characters that cannot be printed, such as those of escape sequences, are written as ``\x1b``. Passwords in
    addresses are masked.
    """
    text = without_secrets(repr(value) if quote else " ".join(str(value).split()))
    if not text.isprintable():
        text = "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)
    if len(text) <= limit:
        return text
    kept = (limit - 1) // 2
    return f"{text[:kept]}…{text[-kept:]}"


def shell_word(value: object) -> str:
    r"""A value as one word of a command for the user's shell. White space that messages change is written ``\x0a``."""
    text = str(value)
    if text.isprintable() and "  " not in text:
        return shlex.quote(text)
    escaped = (chr(b) if 32 < b < 127 and b not in b"\\'" else f"\\x{b:02x}" for b in os.fsencode(text))
    return f"$'{''.join(escaped)}'"


def without_secrets(text: str) -> str:
    """A text in which the passwords of all addresses are masked: ``http://me:***@host``."""
    for pattern, masked in _SECRETS:
        text = pattern.sub(masked, text)
    return text


def check_format_version(version: object, newest: int, path: object) -> None:
    """Check that this package, which reads all format versions up to ``newest``, can read that of a file.

    Raises:
        NewerFormatError: The version is newer than ``newest``.
        DataError: It is not a version number.
    """
    if type(version) is not int or version < 1:
        raise DataError(f"{path} is damaged (its format version is {shown(version)}): restore it")
    if version > newest:
        raise NewerFormatError(
            f"{path} has format version {version}, but this dstransformer reads versions up to {newest}: "
            "update dstransformer"
        )
