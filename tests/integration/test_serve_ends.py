"""How ``dst serve`` ends: while it finishes what it has accepted, when it cannot, and when its model is killed."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path

import psutil
import pytest
from support.processes.launching import finish, wait_until
from support.services.serving import Server, read_reply, save_small_bundle, serving

pytestmark = pytest.mark.slow

ENDED = "the process of the model was ended by SIGKILL (did memory run out?)"


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_small_bundle(tmp_path_factory.mktemp("served") / "small")


def model_of(server: Server) -> psutil.Process:
    """The process of its model; beside it multiprocessing has one that tracks its resources."""
    (model,) = (each for each in psutil.Process(server.process.pid).children() if "spawn_main" in str(each.cmdline()))
    return model


def ask(server: Server, connection: HTTPConnection) -> None:
    """Send a request, which is under way when this returns, as the model stands still."""
    model_of(server).suspend()
    connection.request("POST", "/translate", json.dumps({"text": "dog"}), {"Content-Type": "application/json"})
    wait_until(lambda: server.metric("dst_unfinished_requests") == 1)


@pytest.fixture
def asked(bundle: Path, request: pytest.FixtureRequest) -> Iterator[tuple[Server, HTTPConnection]]:
    """A server, and a connection on which a request is under way."""
    options = getattr(request, "param", ())
    with serving(bundle, *options) as server, closing(server.connect()) as connection:
        ask(server, connection)
        yield server, connection


def test_it_refuses_requests_while_it_finishes_those_it_has(asked: tuple[Server, HTTPConnection]) -> None:
    server, connection = asked
    server.process.send_signal(signal.SIGTERM)
    wait_until(lambda: "finishing 1 request" in server.errors)
    refused = server.post({"text": "fox"})
    assert (refused.status, refused.json) == (503, {"detail": "the server is stopping"})
    assert int(refused.headers["retry-after"]) >= 1
    health = server.ask("GET", "/healthz")
    assert (health.status, health.json["status"]) == (503, "stopping")
    model_of(server).resume()
    assert read_reply(connection).status == 200
    errors = finish(server.process)[1]
    assert errors.endswith("dst: stopped; every accepted request was answered\n")
    assert server.process.returncode == 0


@pytest.mark.parametrize("asked", [("--stop-timeout", "0.2")], indirect=True)
def test_it_does_not_wait_longer_than_it_may(asked: tuple[Server, HTTPConnection]) -> None:
    server, connection = asked
    server.process.send_signal(signal.SIGTERM)
    reply = read_reply(connection)
    assert reply.status == 503
    assert reply.json["detail"] == "the server was stopped before the translation was complete"
    errors = finish(server.process)[1]
    assert errors.endswith("dst: error: 1 request not answered within 0.2 s (--stop-timeout)\n")
    assert server.process.returncode == 1


def test_a_second_signal_ends_it_at_once(asked: tuple[Server, HTTPConnection]) -> None:
    server, connection = asked
    server.process.send_signal(signal.SIGINT)
    wait_until(lambda: "SIGINT: finishing 1 request" in server.errors)
    server.process.send_signal(signal.SIGINT)
    assert read_reply(connection).status == 503
    finish(server.process)
    assert server.process.returncode == 1


def test_a_model_that_is_killed_ends_it(asked: tuple[Server, HTTPConnection]) -> None:
    server, connection = asked
    model_of(server).kill()
    reply = read_reply(connection)
    assert (reply.status, reply.json) == (503, {"detail": ENDED})
    started, complaint = finish(server.process)[1].splitlines()
    assert started.startswith("dst: serving ")
    assert complaint == f"dst: error: {ENDED}; its requests got status 503: start the server again"
    assert server.process.returncode == 1


def test_a_model_that_is_killed_when_idle_ends_it_too(bundle: Path) -> None:
    with serving(bundle) as server:
        model = model_of(server)
        model.terminate()
        assert server.post({"text": "dog"}).status == 200, "only the server heeds signals to stop"
        model.kill()
        assert finish(server.process)[1].count("dst: error: ") == 1
        assert server.process.returncode == 1


def test_the_model_ends_with_a_server_that_is_killed(asked: tuple[Server, HTTPConnection]) -> None:
    server, _ = asked
    model = model_of(server)
    server.process.kill()
    model.resume()
    wait_until(lambda: not model.is_running() or model.status() == psutil.STATUS_ZOMBIE)
