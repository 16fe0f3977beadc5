"""``dst serve``: translate over HTTP."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Annotated, Literal

from dstransformer.cli.options import Command, CommandResult, EngineOptions, load_ct2, load_translator, uses_ct2
from dstransformer.errors import UserError
from dstransformer.io.command import exit_on_sigterm
from dstransformer.io.flags import option

if TYPE_CHECKING:
    from dstransformer.extras.serving.model import Model


_ADVICE = "only translation models can be served; use `dst parse`"


def _port(text: str) -> int:
    if not text.isdigit() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text[:20]!r} is not a port: give 0 to 65535")
    return int(text)


def _host_name(name: str) -> str:
    if name != "*" and not re.fullmatch(r"[\w.-]+", name):
        raise argparse.ArgumentTypeError(f"{name[:60]!r} is not a name: leave out scheme, port and path, or give *")
    return name


class Serve(
    EngineOptions,
    Command,
    epilog="POST /translate, /docs, /healthz and /metrics are described in the guide on serving.",
    examples=("dst serve runs/en-de --port 5000 --api libretranslate", "dst serve out/ct2 --engine ct2"),
):
    """Translate over HTTP, with a page to type into."""

    max_input_tokens: int | None = 0  # nothing is cut: the server refuses longer inputs
    long: Literal["cut", "split", "refuse"] | None = "cut"
    host: str = option("address to listen on; 0.0.0.0: all (127.0.0.1)", default="127.0.0.1")
    port: Annotated[int, _port] = option("0: any free one (8000)", "N", default=8000)
    allow_host: Sequence[Annotated[str, _host_name]] = option(
        "a name by which the server is called, besides addresses and localhost; *: any",
        "NAME",
        action="append",
        default=(),
    )
    max_batch_delay: float | None = option(
        "milliseconds a sentence waits for others while nothing is decoded (5)", "MS"
    )
    queue: int | None = option("maximum waiting sentences; more get 503 (1024)", "N")
    max_sentences: int | None = option("maximum sentences of a request (256)", "N")
    max_sentence_tokens: int | None = option("maximum tokens of a sentence (the bundle's input limit)", "N")
    max_request_bytes: int | None = option("maximum bytes of a request (1048576)", "N")
    timeout: float | None = option("seconds for a request, then 504 (60)", "S")
    stop_timeout: float | None = option("seconds to finish accepted requests after SIGTERM (25)", "S")
    api: Literal["dstransformer", "libretranslate"] = option(
        "the interface: its own, or that of LibreTranslate, for its clients (dstransformer)", default="dstransformer"
    )
    access_log: bool = option("log every request")


@Serve.handler
def run(options: Serve) -> CommandResult:
    """Serve until a signal ends it.

    Raises:
        UserError: A package is missing, an option is out of bounds or for another engine, or the port cannot be used.
        DstError: The model cannot be loaded, or its process has ended.
    """
    from dstransformer.extras.serving.model import check_limits
    from dstransformer.extras.serving.model_process import ModelProcess
    from dstransformer.model import open_bundle

    exit_on_sigterm()
    if not uses_ct2(options):  # refuses what is wrong before a process starts
        open_bundle(options.bundle).check_translates(_ADVICE)
    limits = check_limits(
        batch_delay=None if options.max_batch_delay is None else options.max_batch_delay / 1000,
        queue=options.queue,
        sentences=options.max_sentences,
        sentence_tokens=options.max_sentence_tokens,
        request_bytes=options.max_request_bytes,
        timeout=options.timeout,
        stop=options.stop_timeout,
    )
    with closing(ModelProcess(partial(_load, options))) as model:  # it loads while the server is imported
        try:
            from dstransformer.extras.serving.server import serve
        except ModuleNotFoundError as error:
            if error.name in ("fastapi", "uvicorn", "prometheus_client"):
                raise UserError(f"{error.name} is not installed: pip install 'dstransformer[serve]'") from None
            raise
        serve(
            model,
            limits,
            host=options.host,
            port=options.port,
            hosts=options.allow_host,
            access_log=options.access_log,
            api=options.api,
        )
    return CommandResult()


def _load(options: Serve) -> Model:
    """Load the model, in its process."""
    from dstransformer.decoding.devices import memory_errors
    from dstransformer.exchange.ct2_engine import open_exported
    from dstransformer.extras.serving.loaded_model import LoadedModel
    from dstransformer.model import Bundle

    served = open_exported(options.bundle)
    if isinstance(served, Bundle):
        served.check_translates(_ADVICE)
    with memory_errors("load the model", "free some, or choose another --device"):
        if isinstance(served, Bundle) and not uses_ct2(options):
            translator = load_translator(options, served, keep_nan=True)
        else:
            translator = load_ct2(options, served)
    model = LoadedModel(served, translator)
    model.warm_up()
    return model
