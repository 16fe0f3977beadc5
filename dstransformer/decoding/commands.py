"""Translation of files, and the translator that the command line describes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import TypeVar

from dstransformer.config import DecodingConfig, complete_config
from dstransformer.decoding.translator import Progress, Translator
from dstransformer.errors import ConfigError, DataError
from dstransformer.model import DTYPES, Bundle, open_bundle
from dstransformer.textfiles import iter_arriving, iter_lines, writing_lines

Decoder = TypeVar("Decoder", bound=Translator)


def load_translator(
    bundle: str | Path | Bundle,
    kind: type[Decoder] = Translator,  # type: ignore[assignment]
    *,
    beam_size: int | None = None,
    length_penalty: float | None = None,
    max_input_tokens: int | None = None,
    max_extra_tokens: int | None = None,
    batch_tokens: int | None = None,
    device: str | None = None,
    precision: str | None = None,
) -> Decoder:
    """The translator of a bundle, or its parser if that is the ``kind``.

    None keeps the bundle's own setting; for device and precision see :meth:`Translator.load`.

    Raises:
        DataError: The folder is not a valid bundle, or one of the other kind.
        ConfigError: A setting is out of bounds, or the precision or the device does not exist.
    """
    if precision is not None and precision not in DTYPES:
        raise ConfigError(f"unknown precision {precision!r}: choose one of {', '.join(DTYPES)}")
    dtype = None if precision is None else DTYPES[precision]
    opened = bundle if isinstance(bundle, Bundle) else open_bundle(bundle)
    settings = _override(
        opened.decoding,
        beam_size=beam_size,
        length_penalty=length_penalty,
        max_input_tokens=max_input_tokens,
        max_extra_tokens=max_extra_tokens,
        batch_tokens=batch_tokens,
    )
    return kind.load(opened, device=device, dtype=dtype, settings=settings)


def translate_files(
    file: str | None,
    output: str | None,
    load: Callable[[], Translator],
    *,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> int:
    """Translate text, one sentence per line, plain or gzipped; returns the number of lines.

    Args:
        file: None or ``-`` is standard input, which is translated whenever it pauses.
        output: The file appears once it is complete; None or ``-`` is standard output.
        load: Builds the translator, see :func:`load_translator`. It is called after the files have been checked.
        overwrite: Replace ``output`` if it exists.
        progress: Called with the number of lines just translated.

    Raises:
        DataError: The input cannot be read, is empty or not UTF-8, or a sentence exceeds the learned positions.
        UserError: The output exists, or is the input.
        StorageError: The output cannot be written.
    """
    count = 0
    with writing_lines(output, overwrite=overwrite, inputs=_inputs(file)) as write:
        lines = _iter_input(file)
        translator = load()
        for count, translation in enumerate(translator.iter_translate(lines, progress=progress), 1):  # noqa: B007
            write(translation)
    return count


def _inputs(file: str | None) -> list[str | int]:
    if file is not None and file != "-":
        return [file]
    try:
        return [sys.stdin.fileno()]
    except (AttributeError, OSError, ValueError):  # closed, or without a file descriptor
        return []


def _iter_input(file: str | None) -> Iterator[str | None]:
    if file is not None and file != "-":
        lines = iter_lines(file)
        return chain([next(lines)], lines)  # a file that cannot be read fails before the model is loaded
    if sys.stdin is None:
        raise DataError("standard input is closed: name a FILE to translate")
    if sys.stdin.isatty():
        print("dst: type one sentence per line; Ctrl-D ends", file=sys.stderr, flush=True)
    return iter_arriving(sys.stdin.fileno(), "standard input")


#: The command-line option of each setting that has one.
OPTIONS = {
    "beam_size": "--beam",
    "length_penalty": "--length-penalty",
    "max_input_tokens": "--max-input-tokens",
    "max_extra_tokens": "--max-extra-tokens",
    "batch_tokens": "--batch-tokens",
}


def _override(decoding: DecodingConfig, **given: float | None) -> DecodingConfig:
    changed = decoding.model_dump() | {name: value for name, value in given.items() if value is not None}
    try:
        return complete_config({"decoding": changed}, "").decoding
    except ConfigError as error:
        text = str(error).removeprefix(": ")
        for name, option in OPTIONS.items():
            text = text.replace(f"decoding.{name} =", option)
        raise ConfigError(text) from None
