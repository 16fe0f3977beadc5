"""Files on servers are downloaded whole or not at all, once for each version; no record has their passwords."""

from __future__ import annotations

import functools
import gzip
import http.server
import io
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import fsspec
import pytest
from support.data.prep import ENGLISH, GERMAN, build, contents, refuses, sentence
from support.s3 import s3_server

from data_prep.recipe.options import FilesOptions
from data_prep.sources.files import open_files
from data_prep.sources.remote import split_member
from dstransformer.data import Corpus
from dstransformer.errors import DataError, UserError


class Handler(http.server.SimpleHTTPRequestHandler):
    """Serves a folder; what a path begins with decides how it misbehaves."""

    requests: list[str]

    def do_GET(self) -> None:
        self.path = self.path.removeprefix("http://corpora.invalid")  # asked for as of a proxy
        self.server.requests.append(self.path)  # type: ignore[attr-defined]
        path = self.path.partition("?")[0]
        if path.startswith("/cut/"):
            self._send(self._content(path), stated=True, most=100)
        elif path.startswith("/unstated/"):
            self._send(self._content(path), stated=False)
        elif path.startswith("/refused/"):
            self.send_error(403)
        else:
            super().do_GET()

    def do_HEAD(self) -> None:
        self.path = self.path.removeprefix("http://corpora.invalid")
        if self.path.startswith(("/cut/", "/unstated/", "/refused/")):
            self.send_error(405)
        else:
            super().do_HEAD()

    def _content(self, path: str) -> bytes:
        return (Path(self.directory) / Path(path).name).read_bytes()

    def _send(self, content: bytes, *, stated: bool, most: int | None = None) -> None:
        self.send_response(200)
        if stated:
            self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content[:most])

    def log_message(self, format: str, *args: Any) -> None:
        pass


class Server(http.server.ThreadingHTTPServer):
    requests: list[str]

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


@contextmanager
def file_server(folder: Path) -> Iterator[Server]:
    """Serve a folder. What was asked for is in ``requests``."""
    with Server(("127.0.0.1", 0), functools.partial(Handler, directory=str(folder))) as running:
        running.requests = []
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        yield running
        running.shutdown()
        thread.join()


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """A server of the folder ``www``, which holds 200 pairs."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    folder = tmp_path / "www"
    folder.mkdir()
    for side, words in (("en", ENGLISH), ("de", GERMAN)):
        (folder / f"x.{side}").write_text("".join(sentence(n, words) + "\n" for n in range(200)))
    with file_server(folder) as running:
        yield running


def options(**given: Any) -> FilesOptions:
    return FilesOptions(**{"src_lang": "en", "tgt_lang": "de", "valid_size": 1} | given)


def read(**given: Any) -> list[tuple[str, str]]:
    tables = open_files(options(**given)).splits["train"]()
    return [pair for table in tables for pair in zip(table["src"].to_pylist(), table["tgt"].to_pylist(), strict=True)]


GIVEN = ["--source", "files", "--src-lang", "en", "--tgt-lang", "de", "--valid-size", "9", "--vocab-size", "330"]


def test_a_corpus_from_a_server_is_that_from_its_files(tmp_path: Path, server: Server) -> None:
    www = tmp_path / "www"
    assert build(*GIVEN, "--src", www / "x.en", "--tgt", www / "x.de", "--out", tmp_path / "local") == 0
    host = server.address.replace("http://", "http://me:hunter2@")
    sides = ["--src", f"{host}/x.en?X-Amz-Signature=hunter3&part=1", "--tgt", f"{host}/x.de"]
    assert build(*GIVEN, *sides, "--out", tmp_path / "remote") == 0
    manifest = Corpus.open(tmp_path / "remote").manifest
    masked = server.address.replace("http://", "http://me:***@")
    assert [(one.name, one.sha256) for one in manifest.sources[0].inputs] == [
        (f"{masked}/{name}", one.sha256)
        for name, one in zip(
            ("x.en?X-Amz-Signature=***&part=1", "x.de"),
            Corpus.open(tmp_path / "local").manifest.sources[0].inputs,
            strict=True,
        )
    ]
    assert f"--src '{masked}/x.en?X-Amz-Signature=***&part=1'" in manifest.command
    written = contents(tmp_path / "remote") | contents(tmp_path / "cache")
    assert not [name for name, content in written.items() if b"hunter" in content or "hunter" in name]
    mine, theirs = contents(tmp_path / "local"), contents(tmp_path / "remote")
    assert {name for name in mine if mine[name] != theirs[name]} == {"manifest.json"}

    server.requests.clear()
    assert build(*GIVEN, *sides, "--out", tmp_path / "remote") == 0, "already built"
    assert server.requests == [], "the cache has what the server has"


def test_a_file_that_changed_is_downloaded_again(tmp_path: Path, server: Server) -> None:
    address = f"{server.address}/x.tsv"
    (tmp_path / "www" / "x.tsv").write_text("a\tb\n")
    assert read(train=address) == [("a", "b")]
    (tmp_path / "www" / "x.tsv").write_text("a\tchanged\n")
    assert read(train=address) == [("a", "changed")]
    server.requests.clear()
    assert read(train=address, offline=True) == [("a", "changed")]
    assert server.requests == []
    with pytest.raises(DataError, match=r"y\.tsv .*--offline"):
        read(train=f"{server.address}/y.tsv", offline=True)


def test_a_proxy_of_the_environment_is_used(tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "www" / "x.tsv").write_text("a\tb\n")
    monkeypatch.setenv("http_proxy", server.address)
    assert read(train="http://corpora.invalid/x.tsv") == [("a", "b")]


def test_a_member_of_an_archive_on_a_server(tmp_path: Path, server: Server) -> None:
    with tarfile.open(tmp_path / "www" / "x.tgz", "w:gz") as tar:
        for name, content in (("a/x.en", b"dog\n"), ("a/x.de", b"Hund\n")):
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    archive = f"{server.address}/x.tgz"
    assert read(src=f"{archive}::a/x.en", tgt=f"{archive}::a/x.de") == [("dog", "Hund")]
    assert server.requests.count("/x.tgz") == 1
    with pytest.raises(DataError, match=rf"{archive} .*'a/x\.fr'"):
        read(src=f"{archive}::a/x.fr", tgt=f"{archive}::a/x.de")
    assert split_member("http://[::1]:80/x.tgz::a::b") == ("http://[::1]:80/x.tgz", "a::b")


def test_a_corpus_of_opus_is_downloaded_by_name(
    tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DST_OPUS", server.address)
    sides = [(tmp_path / "www" / f"x.{side}").read_text() for side in ("en", "de")]
    for name, (src, tgt) in (("Books", ("en", "de")), ("GNOME", ("pt_BR", "en"))):
        pair = "-".join(sorted((src, tgt)))
        archive = tmp_path / "www" / f"OPUS-{name}" / "v1" / "moses" / f"{pair}.txt.zip"
        archive.parent.mkdir(parents=True)
        with zipfile.ZipFile(archive, "w") as file:
            for side, text in zip((src, tgt), sides, strict=True):
                file.writestr(f"{name}.{pair}.{side}", text)
    english, german = (text.splitlines() for text in sides)
    pairs = list(zip(english, german, strict=True))
    assert read(train="opus:Books/v1") == read(train="opus:Books/v1", src_lang="eng", tgt_lang="deu") == pairs
    assert read(train="opus:GNOME/v1", src_lang="pt-BR", tgt_lang="en") == pairs
    assert server.requests.count("/OPUS-Books/v1/moses/de-en.txt.zip") == 1
    server.requests.clear()
    assert build(*GIVEN, "--train", "opus:Books/v1", "--offline", "--out", tmp_path / "c") == 0
    assert server.requests == []
    manifest = Corpus.open(tmp_path / "c").manifest
    assert manifest.options["train"] == "opus:Books/v1"
    assert manifest.sources[0].inputs[0].name == f"{server.address}/OPUS-Books/v1/moses/de-en.txt.zip::Books.de-en.en"

    capsys.readouterr()
    for given, message in (
        (["--train", "opus:Bks/v1"], "OPUS-Bks/v1/moses/de-en.txt.zip (404 File not found): check the network, and"),
        (["--train", "opus:Books"], "'opus:Books' is not a corpus of OPUS with its version, such as opus:Books/v1"),
        (["--train", "opus:../v1"], "'opus:../v1' is not a corpus of OPUS"),
        (["--src", "opus:Books/v1", "--tgt", "x.de"], "opus:Books/v1 holds both sides: give it as --train"),
    ):
        assert message in refuses(capsys, build(*GIVEN, *given, "--out", tmp_path / "d"))
    monkeypatch.setenv("DST_OPUS", "mirror")
    with pytest.raises(UserError, match="DST_OPUS=mirror"):
        read(train="opus:Books/v1")
    monkeypatch.delenv("DST_OPUS")
    archive_of_opus = r"https://object\.pouta\.csc\.fi/OPUS-TED2020/v1/moses/de-en\.txt\.zip"
    with pytest.raises(DataError, match=archive_of_opus):
        read(train="opus:TED2020/v1", offline=True)


@pytest.mark.parametrize(("path", "message"), [
    ("none.tsv", r"cannot download http://me:\*\*\*@.*/none\.tsv \(404 File not found\): check the address"),
    ("refused/x.en", r"\(403 Forbidden\): check the address"),
    ("cut/x.en", r"cannot download .*/cut/x\.en \(.*not completed.*then give the same command again"),
    ("unstated/x.en", r"the server of .*/unstated/x\.en does not state the size of the file.*by other means"),
    ("*.tsv", r"is a pattern \(an HTTP server lists no files\): name each file"),
])  # fmt: skip
def test_what_a_server_refuses_is_one_line(tmp_path: Path, server: Server, path: str, message: str) -> None:
    host = server.address.replace("http://", "http://me:hunter2@")
    with pytest.raises(UserError, match=message) as caught:
        read(train=f"{host}/{path}")
    assert "\n" not in str(caught.value)
    assert "hunter2" not in str(caught.value)
    assert not [file for file in (tmp_path / "cache").rglob("*") if file.is_file()]


def test_other_protocols(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    files = fsspec.filesystem("memory")
    for number in (2, 1):
        files.pipe_file(f"/bucket/part-{number}.tsv", f"{number}\tb\n".encode())
    assert read(train="memory://bucket/part-*.tsv") == [("1", "b"), ("2", "b")]
    for address, message in (
        ("memory://bucket/none-*.tsv", r"no file fits memory://bucket/none-\*\.tsv"),
        ("memory://bucket/none.tsv", r"cannot download memory://bucket/none\.tsv \(not found\)"),
        ("memory://bucket", "is a folder: name a file"),
        ("gs://bucket/x.tsv", r"needs a package that is not installed: `pip install"),
        ("nosuch://bucket/x.tsv", "give an http, https or s3 address"),
    ):
        with pytest.raises(UserError, match=message):
            read(train=address)
    with pytest.raises(ValueError, match="leave out file://"):
        options(train="file:///x.tsv")


@pytest.fixture
def s3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    with s3_server(tmp_path, monkeypatch) as files:
        yield files


@pytest.mark.slow
def test_objects_of_s3(s3: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in (2, 1):
        for side, words in (("en", ENGLISH), ("de", GERMAN)):
            lines = [sentence(100 * number + n, words) + "\n" for n in range(100)]
            s3.pipe_file(f"bucket/part-{number}.{side}.gz", gzip.compress("".join(lines).encode()))
    sides = ["--src", "s3://bucket/part-*.en.gz", "--tgt", "s3://bucket/part-1.de.gz", "s3://bucket/part-2.de.gz"]
    assert build(*GIVEN, *sides, "--out", tmp_path / "c") == 0
    manifest = Corpus.open(tmp_path / "c").manifest
    assert manifest.splits["train"].pairs == 191
    assert manifest.sources[0].inputs[0].name == "s3://bucket/part-1.en.gz"
    assert manifest.options["tgt"] == "s3://bucket/part-1.de.gz s3://bucket/part-2.de.gz"
    recipe = tmp_path / "mine.yaml"
    recipe.write_text(
        "src_lang: en\ntgt_lang: de\nroot: s3://bucket\nvocab: {vocab_size: 330}\n"
        "sources: {a: {source: files, src: 'part-*.en.gz', tgt: [part-1.de.gz, part-2.de.gz], valid_size: 9}}\n"
    )
    assert build(recipe, "--out", tmp_path / "d") == 0
    assert Corpus.open(tmp_path / "d").manifest.splits["train"].pairs == 191
    for address, message in (
        ("s3://bucket/none.tsv", r"cannot download s3://bucket/none\.tsv \(not found\)"),
        ("s3://none/x.tsv", r"cannot download s3://none/x\.tsv \(.*The specified bucket does not exist\)"),
        ("s3://bucket/none-*.tsv", "no file fits"),
    ):
        with pytest.raises(DataError, match=message):
            read(train=address)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    type(s3).clear_instance_cache()
    with pytest.raises(DataError, match="FSSPEC_S3_ANON"):
        read(train="s3://bucket/x.tsv")
