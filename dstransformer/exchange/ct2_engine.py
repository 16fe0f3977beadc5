"""The search engine that runs on CTranslate2: ``--engine ct2``."""

from __future__ import annotations

import ctypes
import os
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import torch

from dstransformer.config import DecodingConfig, ModelConfig, complete_config
from dstransformer.data import EOS_ID, Direction, Tokenizer
from dstransformer.data.directions import build_tags
from dstransformer.data.plan import plan_batches
from dstransformer.data.tokenizer import SRC_TOKENIZER_NAME, TOKENIZER_NAME
from dstransformer.decoding import Translator
from dstransformer.decoding.beam import FIRST_PIECE, Hypothesis
from dstransformer.decoding.commands import override_settings
from dstransformer.decoding.engine import tokens_per_batch
from dstransformer.distributed.hardware import usable_cores
from dstransformer.errors import ConfigError, DataError
from dstransformer.exchange.ct2 import VOCABULARY_MAP, check_ct2, unused_rows, write_ct2
from dstransformer.exchange.weights import length_exponent
from dstransformer.io.files import file_sha256
from dstransformer.io.json_text import read_record
from dstransformer.io.products import MARKER, check_kind, export_tool
from dstransformer.io.progress import Advance
from dstransformer.io.requirements import check_installed
from dstransformer.model import Bundle, open_bundle
from dstransformer.model.bundle import read_directions

#: A search ends after this number times ``beam_size`` finished hypotheses. With CTranslate2's default of 1 the better
#: hypotheses, which end later, are lost: 0.3 BLEU on the toy grammar.
PATIENCE = 2.0

#: Maximum source tokens of a batch with 8-bit weights on a CPU, times ``beam_size``. The logits of more hypotheses
#: leave the caches; products in fp32 gain more from larger batches.
INT8_BATCH_TOKENS = 2048

#: The compute type of each ``--precision``.
COMPUTE_TYPES = {None: "default", "fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}

#: CTranslate2 gives log-probabilities below this to hypotheses that do not exist: right after a prefix there is only
#: one, and a shortlist may have fewer pieces than the beam.
IMPOSSIBLE = -1e8

#: Parameters of ``mallopt``, in glibc's ``malloc.h``: allocations of as many bytes have a mapping of their own, and as
#: many free bytes at the end of the heap go back to the kernel.
_MMAP_THRESHOLD, _TRIM_THRESHOLD = -3, -1


class Export(NamedTuple):
    """What an export says of its model, as a bundle does; ``positions`` limit the tokens of a sentence with its end."""

    path: Path
    model: ModelConfig
    decoding: DecodingConfig
    positions: int
    identity: tuple[str, ...]
    is_joint: bool
    src_lang: str | None
    tgt_lang: str | None
    directions: tuple[Direction, ...]


def open_exported(folder: Path) -> Bundle | Export:
    """Open an export, without its weights, or a bundle; errors as of :func:`open_ct2`."""
    return _read_export(folder) if export_tool(folder) == "ct2" else open_bundle(folder)


def open_ct2(
    source: str | Path | Bundle | Export,
    *,
    device: str | None = None,
    precision: str | None = None,
    threads: int | None = None,
    to: str | None = None,
    shortlist: bool = True,
    **settings: float | str | None,
) -> Translator:
    """Translate with CTranslate2: open an export, or a bundle, which is converted in a temporary folder.

    Args:
        source: The folder, or what :func:`open_exported` opened.
        device: ``cpu``, ``cuda`` or ``cuda:N``; None is the CPU, on which freed memory stays with the process.
        precision: ``fp32``, ``bf16`` or ``fp16``; None is the type that the weights are stored in.
        threads: CPU threads; None takes one for each core.
        to: See :func:`dstransformer.decoding.commands.load_translator`. An export that has no record of its directions
            takes sentences as they are.
        shortlist: Whether to use the shortlist of an export that has one.
        settings: Settings of the search, see :class:`DecodingConfig`. None keeps those of the export.

    Raises:
        UserError: CTranslate2 is not installed, or the model does not translate into that language.
        DataError: The folder is neither an export nor a bundle, or damaged.
        ConfigError: A setting is out of bounds, or the device cannot be used or not in that precision.
    """
    check_installed("ctranslate2")
    if settings.get("pruning_threshold"):
        raise ConfigError("--prune is not available with CTranslate2: leave it out")
    export = source if isinstance(source, Bundle | Export) else open_exported(Path(source))
    with ExitStack() as stack:
        if isinstance(export, Bundle):
            check_ct2(export)
            longer = override_settings(export.decoding, settings)  # longer inputs need more positions
            folder = Path(stack.enter_context(TemporaryDirectory(prefix="dst-ct2-"))) / "model"
            write_ct2(replace(export, decoding=longer), folder, "float32")
            export = _read_export(folder)
        folder = export.path
        search = override_settings(export.decoding, {**settings, "pruning_threshold": 0.0})
        src = None if export.is_joint else Tokenizer.load(folder / SRC_TOKENIZER_NAME)
        tokenizer = Tokenizer.load(folder / TOKENIZER_NAME, src)
        tags = build_tags(export.directions, export.src_lang, export.tgt_lang, to)
        loaded = _load(folder, device or "cpu", COMPUTE_TYPES[precision], threads or len(usable_cores()))
        identity = export.identity
        shortlist = shortlist and (folder / VOCABULARY_MAP).is_file()
        if shortlist:
            identity = (*identity, file_sha256(folder / VOCABULARY_MAP))
    unused = unused_rows(export.model, tokenizer.vocab_size)
    engine = CT2Engine(loaded, tokenizer, export.positions, unused, identity, shortlist=shortlist)
    translator = Translator(engine, tokenizer, search)
    translator.tags = tags
    translator.src_lang = export.src_lang
    return translator


class CT2Engine:
    """Translates with CTranslate2, whose search and scores are its own; docs/guide/export.md says how they differ.

    It is a :class:`dstransformer.decoding.engine.SearchEngine`. The score of a hypothesis is its log-probability over
    ``length^p``, end included, with :func:`length_exponent` as p. The log-probability is that of the pieces that
    CTranslate2 chose: not of a prefix, nor of an end at the maximum length, and without the share of the pieces that
    are never an output.

    Args:
        translator: A ``ctranslate2.Translator`` with a model that :mod:`dstransformer.exchange.ct2` wrote.
        tokenizer: The tokenizer beside it.
        max_tokens: Maximum tokens of a sentence, with its end: the positions of the model.
        unused: The names of the rows of the embedding that are no pieces.
        identity: What identifies the weights, and the shortlist.
        shortlist: Whether outputs consist of the pieces that the model's vocabulary map has for the sources of a batch.
    """

    def __init__(
        self,
        translator: Any,
        tokenizer: Tokenizer,
        max_tokens: int,
        unused: Sequence[str],
        identity: tuple[str, ...],
        *,
        shortlist: bool,
    ) -> None:
        self.translator = translator
        self.shortlist = shortlist
        self.max_tokens = max_tokens
        self.identity = identity
        self.names = tokenizer.pieces(range(tokenizer.vocab_size))
        self.src_names = tokenizer.src.pieces(range(tokenizer.src.vocab_size))
        self.ids = {name: token for token, name in enumerate(self.names)}
        self.unused = list(unused)

    def describe(self) -> dict[str, Any]:
        """The engine, its device and its compute type, as plain data."""
        translator = self.translator
        return {"engine": "ctranslate2", "device": translator.device, "precision": translator.compute_type}

    def max_input_tokens(self, settings: DecodingConfig) -> int:
        """See :meth:`SearchEngine.max_input_tokens`: the setting, but no more than the model has positions."""
        return min(settings.max_input_tokens or self.max_tokens, self.max_tokens - 1)

    def search(
        self,
        src: Sequence[Sequence[int]],
        settings: DecodingConfig,
        *,
        numbers: Sequence[int],
        n_best: int = 1,
        prefixes: Sequence[Sequence[int]] = (),
        progress: Advance | None = None,
    ) -> list[list[Hypothesis]]:
        """See :meth:`SearchEngine.search`. There is no pruning."""
        for number, ids in zip(numbers, prefixes, strict=False):
            if len(ids) + 1 > self.max_tokens:
                raise DataError(
                    f"the prefix of sentence {number} has {len(ids) + 1} tokens with its end, the model has positions "
                    f"for {self.max_tokens}: shorten it"
                )
        batch_tokens = tokens_per_batch(settings.batch_tokens, settings.beam_size)
        if self.translator.device == "cpu" and self.translator.compute_type.startswith("int8"):
            batch_tokens = min(batch_tokens, max(1, INT8_BATCH_TOKENS // settings.beam_size))
        batches = plan_batches([len(ids) for ids in src], batch_tokens)

        def submit(batch: Sequence[int]) -> Any:
            begun = [prefixes[index] for index in batch] if prefixes else []
            return self._submit([src[index] for index in batch], begun, settings, n_best)

        hypotheses = [[Hypothesis([], 0.0, 0.0)] for _ in src]
        for batch, answers in self.submit_ahead(batches, submit):
            for index, answer in zip(batch, answers, strict=True):
                hypotheses[index] = self._read(answer.result(), length_exponent(settings)) or hypotheses[index]
            if progress is not None:
                progress(len(batch))
        if progress is not None and (empty := sum(not ids for ids in src)):
            progress(empty)
        return hypotheses

    def _submit(
        self, src: Sequence[Sequence[int]], prefixes: Sequence[Sequence[int]], settings: DecodingConfig, n_best: int
    ) -> Any:
        """Start to translate a batch. The maximum length is one for all of it: that of its longest sentence."""
        longest = max(
            max(map(len, src)) + settings.max_extra_tokens, settings.min_tokens, max(map(len, prefixes), default=0)
        )
        longest = min(longest, self.max_tokens - 1)  # the end has a position too
        begun = any(prefixes)
        return self.translator.translate_batch(
            [[self.src_names[token] for token in ids] for ids in src],
            [[self.names[token] for token in ids] for ids in prefixes] if begun else None,
            asynchronous=True,
            beam_size=settings.beam_size,
            num_hypotheses=n_best,
            patience=PATIENCE,
            length_penalty=length_exponent(settings),
            max_input_length=0,
            max_decoding_length=longest,
            min_decoding_length=min(settings.min_tokens, longest),
            suppress_sequences=[[name] for name in (*self.names[:FIRST_PIECE], *self.unused)],
            return_scores=True,
            return_end_token=True,  # otherwise the length would not count the end
            use_vmap=self.shortlist and not begun,  # it would replace pieces of a prefix that it lacks
        )

    def _read(self, result: Any, exponent: float) -> list[Hypothesis]:
        """The hypotheses of a sentence, best first."""
        hypotheses = []
        for names, score in zip(result.hypotheses, result.scores, strict=True):
            log_probability = score * len(names) ** exponent
            if log_probability > IMPOSSIBLE:
                tokens = [self.ids[name] for name in names]
                hypotheses.append(Hypothesis(tokens[:-1] if tokens[-1] == EOS_ID else tokens, score, log_probability))
        return hypotheses

    def submit_ahead(
        self, batches: Iterable[Sequence[int]], submit: Callable[[Sequence[int]], Any]
    ) -> Iterator[tuple[Sequence[int], Any]]:
        """Each batch with its pending answers. Some are submitted ahead, so that no worker is idle.

        Not all are submitted together, because CTranslate2 finishes them even when the program is interrupted.
        """
        rest, pending = iter(batches), deque[tuple[Sequence[int], Any]]()
        ahead = 2 * self.translator.num_translators
        while True:
            pending.extend((batch, submit(batch)) for batch in islice(rest, ahead - len(pending)))
            if not pending:
                return
            yield pending.popleft()


def _read_export(folder: Path) -> Export:
    path = folder / MARKER
    advice = "export the bundle again"
    check_kind(folder, "export", advice)

    def build(record: dict[str, Any]) -> Export:
        config = complete_config({name: record[name] for name in ("model", "decoding")}, str(path))
        return Export(
            path=folder,
            model=config.model,
            decoding=config.decoding,
            positions=int(record["positions"]),
            identity=(str(record["weights_sha256"]), str(record["quantization"])),
            is_joint=record["joint_vocabulary"],
            src_lang=record.get("src_lang"),
            tgt_lang=record.get("tgt_lang"),
            directions=read_directions(record.get("directions"), path),
        )

    return read_record(path, build, advice=advice)


def _keep_freed_memory() -> None:
    """Have glibc keep what is freed for the rest of the process, unless the environment sets its thresholds.

    CTranslate2 allocates the results of each step. By default glibc returns the larger ones to the kernel, and their
    new pages are a third of the time of a small model.
    """
    variables = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "MALLOC_TOP_PAD_", "GLIBC_TUNABLES")
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None or any(name in os.environ for name in variables):
        return
    # Before 2.35 glibc takes at most 32 MB. A trim threshold without the other would fix that at 128 KB.
    if mallopt(_MMAP_THRESHOLD, 1 << 30) or mallopt(_MMAP_THRESHOLD, 32 << 20):
        mallopt(_TRIM_THRESHOLD, (1 << 31) - 1)


def _load(folder: Path, device: str, compute_type: str, threads: int) -> Any:
    """Workers of one thread each: faster than one worker of all threads."""
    import ctranslate2

    named = re.fullmatch(r"(cpu|cuda)(?::(\d+))?", device)
    if named is None:
        raise ConfigError(f"cannot use the device {device!r} with CTranslate2: give cpu, cuda or cuda:N")
    if named[1] == "cpu":
        _keep_freed_memory()
    torch_threads = torch.get_num_threads()
    try:
        return ctranslate2.Translator(
            str(folder),
            device=named[1],
            device_index=int(named[2] or 0),
            compute_type=compute_type,
            inter_threads=threads if named[1] == "cpu" else 1,
            intra_threads=1,
            max_queued_batches=-1,
        )
    except ValueError as error:
        raise ConfigError(f"CTranslate2 cannot use the precision {compute_type} on {device}: {error}") from None
    except RuntimeError as error:
        raise DataError(f"CTranslate2 cannot load {folder} on {device}: {error}") from None
    finally:
        torch.set_num_threads(torch_threads)  # CTranslate2 sets OpenMP's number for the whole process
