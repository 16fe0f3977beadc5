"""A small model to serve, and a real ``dst serve`` with a client."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch

from dstransformer.config import Config
from dstransformer.model import Transformer, save_bundle
from support.data.corpora import small_tokenizer
from support.models.packed import load_tiny
from support.processes.forks import Fork, environment
from support.processes.launching import LIMIT, forked, free_port, wait_until


def small_experiment() -> Config:
    """A configuration of a small model whose batches have at most 40 source tokens."""
    return load_tiny("decoding.max_extra_tokens=6", "decoding.batch_tokens=40", "model.tie_embeddings=none")


def small_model() -> Transformer:
    """A model with random weights whose output depends on the source."""
    torch.manual_seed(11)
    model = Transformer(small_experiment().model, small_tokenizer().vocab_size).eval()
    with torch.no_grad():
        model.softmax_weight.mul_(4.0)
    return model


def save_small_bundle(folder: Path, **provenance: Any) -> Path:
    """Save the bundle of :func:`small_model`."""
    record = {"step": 0, "src_lang": "en", "tgt_lang": "de", **provenance}
    save_bundle(folder, small_model().state_dict(), small_experiment(), small_tokenizer(), record)
    return folder


class Reply(NamedTuple):
    """An answer: status, headers in lower case, and the body."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Server:
    """A running ``dst serve``."""

    def __init__(self, process: Fork, port: int) -> None:
        self.process = process
        self.port = port
        self.address = f"http://127.0.0.1:{port}"

    @property
    def errors(self) -> str:
        """What it has written to stderr so far."""
        return self.process.outputs[1].read_text()

    def connect(self) -> http.client.HTTPConnection:
        """A new connection."""
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=LIMIT)

    def ask(self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None) -> Reply:
        """Send a request on a connection of its own."""
        with closing(self.connect()) as connection:
            connection.request(method, path, body, dict(headers or {}))
            return read_reply(connection)

    def post(self, content: Any, path: str = "/translate", **headers: str) -> Reply:
        """Send JSON."""
        return self.ask("POST", path, json.dumps(content).encode(), {"Content-Type": "application/json", **headers})

    def metric(self, name: str) -> float:
        """A value of ``/metrics``, by its name with its labels; 0 if it is not there."""
        lines = self.ask("GET", "/metrics").body.decode().splitlines()
        return next((float(line.rpartition(" ")[2]) for line in lines if line.rpartition(" ")[0] == name), 0.0)


def read_reply(connection: http.client.HTTPConnection) -> Reply:
    """The answer to the request that was sent on a connection."""
    answer = connection.getresponse()
    return Reply(answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read())


@contextmanager
def serving(bundle: Path, *options: str) -> Iterator[Server]:
    """Start ``dst serve``, wait until it is ready, and kill it in the end."""
    port = free_port()
    command = ["-m", "dstransformer", "serve", str(bundle), "--port", str(port), "--device", "cpu", *options]
    with forked(command, environment()) as process:
        server = Server(process, port)

        def ready() -> bool:
            assert process.poll() is None, server.errors
            return "dst: serving" in server.errors

        wait_until(ready, lambda: server.errors)
        yield server
