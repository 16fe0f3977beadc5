"""What ``dst translate`` does, and the translator that ``dst evaluate`` uses too."""

from __future__ import annotations

import sys
from io import BufferedReader
from typing import cast

import torch

from dstransformer.config import Config, DecodingConfig, parse_config
from dstransformer.corpus.lines import iter_lines, iter_text, writing_lines
from dstransformer.decoding.translator import BUFFER_LINES, Translator
from dstransformer.errors import ConfigError
from dstransformer.model import open_bundle

PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def load_translator(
    bundle: str,
    *,
    beam_size: int | None = None,
    length_penalty: float | None = None,
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
    opened = open_bundle(bundle)
    settings = _override(
        opened.config,
        beam_size=beam_size,
        length_penalty=length_penalty,
        max_extra_tokens=max_extra_tokens,
        batch_tokens=batch_tokens,
    )
    return Translator.load(opened, device=device, dtype=dtype, settings=settings)


def translate_files(file: str | None, output: str | None, translator: Translator) -> int:
    """Translate text, one sentence a line, plain or gzipped; returns the number of lines.

    Args:
        file: None or ``-`` is standard input; each line is answered at once where a person types it.
        output: The file appears once it is complete; None is standard output.
        translator: See :func:`load_translator`.

    Raises:
        DataError: Input that cannot be read, is empty or not UTF-8, or a sentence that the model has no positions for.
        StorageError: The output cannot be written.
    """
    buffer_lines = BUFFER_LINES
    if file is None or file == "-":
        lines = iter_text(cast(BufferedReader, sys.stdin.buffer), "standard input")
        if sys.stdin.isatty():
            buffer_lines = 1
    else:
        lines = iter_lines(file)
    count = 0
    with writing_lines(output) as write:
        for count, translation in enumerate(translator.iter_translate(lines, buffer_lines), 1):  # noqa: B007
            write(translation)
    return count


def _override(config: Config, **given: float | None) -> DecodingConfig:
    tree = config.model_dump()
    tree["decoding"] |= {name: value for name, value in given.items() if value is not None}
    return parse_config(tree, "command line").decoding
