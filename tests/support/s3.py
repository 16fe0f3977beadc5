"""A real S3 server of moto on this machine, with a bucket."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest


@contextmanager
def s3_server(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The file system of the server; processes find it by their environment. The cache is in ``folder``."""
    moto_server = pytest.importorskip("moto.server")
    s3fs = pytest.importorskip("s3fs")
    running = moto_server.ThreadedMotoServer(port=0, verbose=False)
    running.start()
    address = "http://{}:{}".format(*running.get_host_and_port())
    urlopen(Request(f"{address}/moto-api/reset", method="POST")).close()  # all servers of a process share their state
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setenv("AWS_ENDPOINT_URL", address)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "me")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hunter2")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    s3fs.S3FileSystem.clear_instance_cache()
    files = s3fs.S3FileSystem(use_listings_cache=False)
    files.mkdir("bucket")
    try:
        yield files
    finally:
        s3fs.S3FileSystem.clear_instance_cache()
        running.stop()
