"""The errors a user may meet, each one an advice: what was wrong, its value, where, and what to do about it."""


class DstError(Exception):
    """A failure that is reported in one line, without a traceback. ``exit_code`` is the status of the process.

    ``rank`` is the process that met it, where the others of a run may not have; None where all meet the same.
    ``shared`` says that the processes have told each other of it.
    """

    exit_code = 1
    rank: int | None = None
    shared: bool = False


class UserError(DstError):
    """The user can fix it: an argument, a configuration value, a file. The process exits with 2."""

    exit_code = 2


class ConfigError(UserError):
    """A preset, an override or a DeepSpeed fragment that cannot be used as it stands."""


class DataError(UserError):
    """Text, a corpus, a bundle or a checkpoint that cannot be used as it stands."""


class StorageError(DstError):
    """The file system refused: no room, no permission, a vanished folder. The process exits with 1."""


def counted(number: int, noun: str) -> str:
    """``1 line``, ``2 lines``."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def shown(value: object, *, quote: bool = True, limit: int = 80) -> str:
    """A value as errors show it, in one line: its ``repr``, or its text; the middle of a long one is left out."""
    text = repr(value) if quote else " ".join(str(value).split())
    if len(text) <= limit:
        return text
    kept = (limit - 1) // 2
    return f"{text[:kept]}…{text[-kept:]}"
