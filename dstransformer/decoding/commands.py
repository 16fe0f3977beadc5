"""What ``dst translate`` does, and the translator that ``dst evaluate`` uses too."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from itertools import chain

from dstransformer.config import Config, DecodingConfig, parse_config
from dstransformer.corpus.lines import iter_arriving, iter_lines, writing_lines
from dstransformer.decoding.translator import PRECISIONS, Progress, Translator
from dstransformer.errors import ConfigError, DataError
from dstransformer.model import Bundle, open_bundle


def load_translator(
    bundle: str | Bundle,
    *,
    beam_size: int | None = None,
    length_penalty: float | None = None,
    max_input_tokens: int | None = None,
    max_extra_tokens: int | None = None,
    batch_tokens: int | None = None,
    device: str | None = None,
    precision: str | None = None,
) -> Translator:
    """A bundle's translator. None stands for the bundle's own setting; for device and precision, for what suits.

    Raises:
        DataError: The folder is not a sound bundle.
        ConfigError: A setting out of its bounds, an unknown precision, or a device that is not there.
    """
    if precision is not None and precision not in PRECISIONS:
        raise ConfigError(f"unknown precision {precision!r}: choose one of {', '.join(PRECISIONS)}")
    dtype = None if precision is None else PRECISIONS[precision]
    opened = bundle if isinstance(bundle, Bundle) else open_bundle(bundle)
    settings = _override(
        opened.config,
        beam_size=beam_size,
        length_penalty=length_penalty,
        max_input_tokens=max_input_tokens,
        max_extra_tokens=max_extra_tokens,
        batch_tokens=batch_tokens,
    )
    return Translator.load(opened, device=device, dtype=dtype, settings=settings)


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
        file: None or ``-`` is standard input, which is answered whenever it pauses.
        output: The file appears once it is complete; None or ``-`` is standard output.
        load: Makes the translator, see :func:`load_translator`. It is called once files have proven usable.
        overwrite: Whether ``output`` may be there already, and is replaced.
        progress: Is called with a number of lines whenever so many more are translated.

    Raises:
        DataError: Input that cannot be read, is empty or not UTF-8, or a sentence that the model has no positions for.
        UserError: The output is there already, or is the input.
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
    except (AttributeError, OSError, ValueError):  # closed, or no file
        return []


def _iter_input(file: str | None) -> Iterator[str | None]:
    if file is not None and file != "-":
        lines = iter_lines(file)
        return chain([next(lines)], lines)  # a file that cannot be read is found before a model is loaded
    if sys.stdin is None:
        raise DataError("standard input is closed: name a FILE to translate")
    if sys.stdin.isatty():
        print("dst: type one sentence per line; Ctrl-D ends", file=sys.stderr, flush=True)
    return iter_arriving(sys.stdin.fileno(), "standard input")


#: The options of the settings that a command line can replace.
OPTIONS = {
    "beam_size": "--beam",
    "length_penalty": "--length-penalty",
    "max_input_tokens": "--max-input-tokens",
    "max_extra_tokens": "--max-extra-tokens",
    "batch_tokens": "--batch-tokens",
}


def _override(config: Config, **given: float | None) -> DecodingConfig:
    tree = config.model_dump()
    tree["decoding"] |= {name: value for name, value in given.items() if value is not None}
    try:
        return parse_config(tree, "").decoding
    except ConfigError as error:
        text = str(error).removeprefix(": ")
        for name, option in OPTIONS.items():
            text = text.replace(f"decoding.{name} =", option)
        raise ConfigError(text) from None
