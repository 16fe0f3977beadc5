"""Translation of files, and the translator that the command line describes."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar, get_args

from dstransformer import decoding, model
from dstransformer.config import DecodingConfig, Precision, complete_config
from dstransformer.data.alignment import format_links
from dstransformer.data.directions import build_tags
from dstransformer.decoding.formats import Request, warn_of_prefixes_left
from dstransformer.errors import ConfigError, DataError, counted
from dstransformer.io.progress import Advance, note
from dstransformer.io.text import iter_arriving, iter_lines, writing_files
from dstransformer.model import Bundle, open_bundle

if TYPE_CHECKING:
    from dstransformer.decoding.translator import TextDecoder

Decoder = TypeVar("Decoder", bound="TextDecoder")


def load_translator(
    bundle: str | Path | Bundle,
    kind: Callable[[], type[Decoder]] = lambda: decoding.Translator,  # type: ignore[assignment,return-value]
    *,
    others: Sequence[str | Path | Bundle] = (),
    device: str | None = None,
    precision: str | None = None,
    keep_nan: bool = False,
    to: str | None = None,
    **settings: float | str | None,
) -> Decoder:
    """The translator of a bundle, or its parser if that is the ``kind``.

    Args:
        bundle: See :meth:`TextDecoder.load`.
        kind: Imports the class, which takes seconds: called once the bundles and the settings have been checked.
        others: See :meth:`TextDecoder.load`.
        device: See :meth:`TextDecoder.load`.
        precision: ``fp32``, ``bf16`` or ``fp16``; None as in :meth:`TextDecoder.load`.
        keep_nan: See :class:`TorchEngine`.
        to: The target language of a translator, or its tag; None if the model has one, or the sentences begin with
            their tags.
        settings: Settings of the search, see :class:`DecodingConfig`. None keeps the bundle's own.

    Raises:
        UserError: The model does not translate into that language.
        DataError: The folder is not a valid bundle, or one of the other kind.
        ConfigError: A setting is out of bounds, or the precision or the device does not exist.
    """
    if precision is not None and precision not in get_args(Precision):
        raise ConfigError(f"unknown precision {precision!r}: choose one of {', '.join(get_args(Precision))}")
    opened, others = open_bundle(bundle), list(map(open_bundle, others))
    tags = build_tags(opened.directions, opened.src_lang, opened.tgt_lang, to)
    search = override_settings(opened.decoding, settings)
    loading = kind()
    dtype = None if precision is None else model.DTYPES[precision]
    loaded = loading.load(opened, others=others, device=device, dtype=dtype, settings=search, keep_nan=keep_nan)
    if isinstance(loaded, decoding.Translator):
        loaded.tags = tags
    return loaded


def translate_files(
    file: str | None,
    output: str | None,
    load: Callable[[], TextDecoder],
    request: Request | None = None,
    *,
    alignments: str | None = None,
    overwrite: bool = False,
    progress: Advance | None = None,
) -> Translated:
    """Translate text, one sentence per line, plain or gzipped.

    Args:
        file: None or ``-`` is standard input, which is translated whenever it pauses.
        output: The file appears once it is complete; None or ``-`` is standard output.
        load: Builds the translator, see :func:`load_translator`. It is called after the files have been checked.
        request: What is written for each line; None: its best translation.
        alignments: A file for the word alignments of the outputs, a line for each in the Pharaoh format; it appears
            together with ``output``.
        overwrite: Replace ``output`` if it exists.
        progress: Called with the number of lines just translated.

    Raises:
        DataError: The input cannot be read, is empty or not UTF-8, or a sentence exceeds the learned positions.
        UserError: The output exists, or is an input.
        StorageError: The output cannot be written.
    """
    request = request or Request()
    count = tokens = 0
    file = None if file == "-" else file
    inputs: list[str | int] = [path for path in (file, request.prefix_file) if path is not None]
    if file is None:
        with suppress(AttributeError, OSError, ValueError):  # closed, or without a file descriptor
            inputs.append(sys.stdin.fileno())
    outputs_to = [output, *([] if alignments is None else [alignments])]
    with writing_files(outputs_to, overwrite=overwrite, inputs=inputs) as (write, *write_links):
        lines = _iter_input(file, ends=request.keeps_ends)
        translator = load()
        began = time.perf_counter()
        prefixes = request.iter_prefixes()
        asked = request.arguments() | ({} if alignments is None else {"alignments": True})
        stream = translator.iter_search(lines, prefixes=prefixes, progress=progress, **asked)
        for count, (line, outputs) in enumerate(stream, 1):
            tokens += sum(len(one.tokens) for one in outputs)
            chosen = request.choose(outputs)
            for text in request.render(count, line, chosen):
                write(text, "" if request.keeps_ends else "\n")
            for write_line in write_links:
                for one in chosen:
                    write_line(format_links(one.alignment or ()))
    if prefixes is not None and request.prefix_file is not None:
        warn_of_prefixes_left(prefixes, count)
    return Translated(count, tokens, time.perf_counter() - began)


class Translated(NamedTuple):
    """What was translated: lines, tokens of their outputs, and seconds after the model was loaded."""

    lines: int
    tokens: int
    seconds: float

    def __str__(self) -> str:
        """``1,000 lines and 12,345 tokens in 12.3 s, 81.3 lines and 1,003.7 tokens a second``."""
        seconds = max(self.seconds, 1e-9)
        return (
            f"{counted(self.lines, 'line')} and {counted(self.tokens, 'token')} in {self.seconds:.1f} s: "
            f"{self.lines / seconds:,.1f} lines and {self.tokens / seconds:,.1f} tokens a second"
        )


def _iter_input(file: str | None, *, ends: bool) -> Iterator[str | None]:
    if file is not None:
        lines = iter_lines(file, ends=ends)
        return chain([next(lines)], lines)  # a file that cannot be read fails before the model is loaded
    if sys.stdin is None:
        raise DataError("standard input is closed: name a FILE to translate")
    if sys.stdin.isatty():
        note("dst: type one sentence per line; Ctrl-D ends")
    return iter_arriving(sys.stdin.fileno(), "standard input", ends=ends)


#: The command-line option of each setting that has one.
OPTIONS = {
    "beam_size": "--beam",
    "length_penalty": "--length-penalty",
    "max_input_tokens": "--max-input-tokens",
    "long_inputs": "--long",
    "min_tokens": "--min-tokens",
    "max_extra_tokens": "--max-extra-tokens",
    "batch_tokens": "--batch-tokens",
    "pruning_threshold": "--prune",
}


def override_settings(decoding: DecodingConfig, given: Mapping[str, float | str | None]) -> DecodingConfig:
    """Replace settings of the search; None keeps one.

    Raises:
        ConfigError: A setting is out of bounds.
    """
    changed = decoding.model_dump() | {name: value for name, value in given.items() if value is not None}
    try:
        return complete_config({"decoding": changed}, "").decoding
    except ConfigError as error:
        text = str(error).removeprefix(": ")
        for name, option in OPTIONS.items():
            text = text.replace(f"decoding.{name} =", option)
        raise ConfigError(text) from None
