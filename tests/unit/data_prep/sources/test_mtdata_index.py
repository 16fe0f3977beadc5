"""Data sets are read by the names of mtdata as mtdata reads them, and its pickle is not."""

from __future__ import annotations

import gzip
import io
import json
import lzma
import os
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from support.data.file_server import Server, file_server
from support.data.prep import ENGLISH, GERMAN, build, refuses, sentence
from support.processes.environments import side_python

from data_prep.recipe.options import FilesOptions
from data_prep.sources.files import open_files
from dstransformer.data import Corpus
from dstransformer.errors import DataError, UserError


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """A server of the folder ``www``."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    (tmp_path / "www").mkdir()
    with file_server(tmp_path / "www") as running:
        yield running


def read(**given: Any) -> list[tuple[str, str]]:
    tables = open_files(FilesOptions(**{"src_lang": "en", "tgt_lang": "de"} | given)).splits["train"]()
    return [pair for table in tables for pair in zip(table["src"].to_pylist(), table["tgt"].to_pylist(), strict=True)]


def tmx(*pairs: tuple[str, str]) -> str:
    units = "".join(
        f'<tu><tuv xml:lang="en"><seg>{en}</seg></tuv><tuv xml:lang="de"><seg>{de}</seg></tuv></tu>' for en, de in pairs
    )
    return f'<tmx version="1.4"><header/><body>{units}</body></tmx>'


def lines(*texts: str) -> str:
    return "".join(f"{text}\n" for text in texts)


def sgm(*lines: str) -> str:
    return "<srcset>\n" + "".join(f'<seg id="{n}">{line}</seg>\n' for n, line in enumerate(lines)) + "</srcset>\n"


def packed(members: dict[str, str], *, tar: bool) -> bytes:
    file = io.BytesIO()
    if not tar:
        with zipfile.ZipFile(file, "w") as archive:
            for name, text in members.items():
                archive.writestr(name, text)
        return file.getvalue()
    with tarfile.open(fileobj=file, mode="w:gz") as tarball:
        for name, text in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(text.encode())
            tarball.addfile(entry, io.BytesIO(text.encode()))
    return file.getvalue()


EN, DE = ("the dog", "a cat"), ("der Hund", "eine Katze")
TSV = "".join(f"{de}\t{en}\n" for de, en in zip(DE, EN, strict=True))
SCORED = "".join(f"1.05\t{de}\t{en}\tx\n" for de, en in zip(DE, EN, strict=True))
SIDES = {"a/x.de": "der Hund\neine Katze\n", "a/x.en": "the dog\na cat\n", "a/LICENSE": "\n"}
SGM = {"a/src.de.sgm": sgm(*DE), "a/ref.en.sgm": sgm(*EN), "a/b/ref.en.sgm": ""}
XML = (
    '<dataset id="t"><doc id="d" origlang="de"><src lang="de"><p><seg id="1">der Hund</seg><seg id="2">eine Katze</seg>'
    '</p></src><ref lang="en"><p><seg id="1">the dog</seg><seg id="2">a cat</seg></p></ref></doc></dataset>'
)

#: Entries as the index of mtdata has them, without their addresses, and what the server has, of the same two pairs.
MTDATA: dict[str, tuple[dict[str, Any], list[bytes]]] = {
    "G-gz-1-deu-eng": ({"ext": "tsv.gz", "filename": "a.tsv.gz"}, [gzip.compress(TSV.encode())]),
    "G-columns-1.1-deu-eng": ({"ext": "tsv.xz", "cols": [1, 2]}, [lzma.compress(SCORED.encode())]),
    "G-tsv-1-eng-deu": ({"ext": "zip", "in_ext": "tsv", "in_paths": ["a.tsv"], "cols": [2, 1], "is_archive": True},
                        [packed({"a.tsv": SCORED}, tar=False)]),
    "G-zip-1-deu-eng": ({"ext": "zip", "in_ext": "txt", "in_paths": ["*.de", "*.en"]}, [packed(SIDES, tar=False)]),
    "G-tar-1-eng-deu": ({"ext": "tgz", "in_ext": "txt", "in_paths": ["a/x.en", "a/x.de"]}, [packed(SIDES, tar=True)]),
    "G-sgm-1-deu-eng": ({"ext": "tar.gz", "in_ext": "sgm", "in_paths": ["*/src.de.sgm", "*/ref.en.sgm"]},
                        [packed(SGM, tar=True)]),
    "G-xml-1-deu-eng": ({"ext": "tgz", "in_ext": "wmt21xml", "in_paths": ["a.xml"]},
                        [packed({"a.xml": XML}, tar=True)]),
    "G-tmx-1-deu-eng": ({"ext": "zip", "in_ext": "tmx", "in_paths": ["1.tmx", "2.tmx"]},
                        [packed({f"{n + 1}.tmx": tmx((EN[n], DE[n])) for n in (0, 1)}, tar=False)]),
    "G-two-1-eng_GB-deu": ({"ext": "txt"}, [b"the dog\na cat\n", gzip.compress(b"der Hund\neine Katze\n")]),
    "ñ-several-1-deu-eng": ({"ext": "zip", "in_ext": "txt", "in_paths": ["a/*", "a/x.en"]}, [packed(SIDES, tar=False)]),
    "G-none-1-deu-eng": ({"ext": "tgz", "in_ext": "txt", "in_paths": ["*.de", "a/x.en"]}, [packed(SIDES, tar=True)]),
    "G-short-1-deu-eng": ({"ext": "tsv", "cols": [1, 2]}, [TSV.encode()]),
    "G-hf-1-deu-eng": ({"ext": "hfds", "in_ext": "hfds", "in_paths": ["x"], "meta": {"config": ["a"]}}, [b""]),
    "G-single-1-deu-eng": ({"ext": "txt", "in_ext": "tsv", "cols": [1]}, [b"", b""]),
    "Neulab-tedtalks_dev-1-eng-deu": ({"ext": "tgz", "in_ext": "tsv", "in_paths": ["x.tsv"], "cols": [1, 16]}, [b""]),
    "G-mono-1-deu": ({"ext": "gz"}, [b""]),
}  # fmt: skip


def install(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    """Let mtdata be installed in a version."""
    others = metadata.version
    monkeypatch.setattr(metadata, "version", lambda name: version if name == "mtdata" else others(name))


@pytest.fixture
def index(tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The index of an mtdata that would not run, in the cache, with its files on the server."""
    install(monkeypatch, "0.5.1")
    path = tmp_path / "cache" / "dstransformer" / "mtdata" / "index-0.5.1.jsonl.gz"
    path.parent.mkdir(parents=True)
    entries = []
    for number, (name, (entry, files)) in enumerate(MTDATA.items()):
        for part, content in enumerate(files):
            (tmp_path / "www" / f"{number}.{part}").write_bytes(content)
        urls = [f"{server.address}/{number}.{part}" for part in range(len(files))]
        entries.append(json.dumps({"did": name, "url": urls if len(urls) > 1 else urls[0], **entry}))
    path.write_bytes(gzip.compress(lines(*entries).encode()))
    return path


@pytest.mark.parametrize("name", list(MTDATA)[:9])
def test_a_data_set_of_mtdata_is_read_in_both_directions(index: Path, server: Server, name: str) -> None:
    assert read(train=f"mtdata:{name}") == list(zip(EN, DE, strict=True))
    assert read(train=f"mtdata:{name}", src_lang="de", tgt_lang="en", offline=True) == list(zip(DE, EN, strict=True))
    assert len(server.requests) == len(MTDATA[name][1]), "each is downloaded once"


def test_the_manifest_has_the_addresses_of_mtdata(
    tmp_path: Path, index: Path, server: Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["--source", "files", "--src-lang", "en", "--tgt-lang", "de", "--vocab-size", "290"]
    names = {"--train": "G-zip-1-deu-eng", "--valid": "G-columns-1.1-deu-eng", "--test": "G-sgm-1-deu-eng"}
    for flag, name in names.items():
        given += [flag, f"mtdata:{name}"]
    assert build(*given, "--out", tmp_path / "c") == 0
    manifest = Corpus.open(tmp_path / "c").manifest
    assert manifest.options["train"] == "mtdata:G-zip-1-deu-eng"
    inputs = {one.name.removeprefix(f"{server.address}/"): one.size for one in manifest.sources[0].inputs}
    sizes = {name: len(content[0]) for name, (_, content) in MTDATA.items()}
    archive, table, test = (sizes[name] for name in names.values())
    assert inputs == {
        "3.0::a/x.en": archive, "3.0::a/x.de": archive, "1.0": table,
        "5.0::a/ref.en.sgm": test, "5.0::a/src.de.sgm": test,
    }  # fmt: skip

    capsys.readouterr()
    for flags, message in (
        (["--train", "mtdata:G-gz-1-deu"], "'mtdata:G-gz-1-deu' is not a data set of mtdata in two languages, such as"),
        (["--train", "mtdata:G-gzip-1-eng-deu"], "mtdata has no data set 'G-gzip-1-eng-deu': did you mean mtdata:G-"),
        (["--train", "mtdata:no_such-1-x-y-z"], "no data set 'no_such-1-x-y-z': `mtdata list --id --langs"),
        (["--train", "mtdata:G-gz-1-deu-eng", "--src-lang", "fr"], "deu-eng has no text in fr; it has deu, eng"),
        (["--train", "mtdata:G-gz-1-deu-eng", "--src-lang", "de-DE"], "deu-eng has one text for de-DE and de"),
        (["--src", "mtdata:G-gz-1-deu-eng", "--tgt", "x.de"], "mtdata:G-gz-1-deu-eng holds both sides: give it as"),
        (["--train", "mtdata:ñ-several-1-deu-eng"], "/9.0 has several members such as a/*"),
        (["--train", "mtdata:G-none-1-deu-eng"], "/10.0 has no member such as *.de"),
        (["--train", "mtdata:G-short-1-deu-eng"], "/11.0, line 1: too few columns, wanted source, tab, target"),
        (["--train", "mtdata:G-hf-1-deu-eng"], "of the type hfds, which is not read here: give the folder that `mtdata "
         "get --langs deu-eng --train G-hf-1-deu-eng --out FOLDER` writes"),
        (["--train", "mtdata:G-single-1-deu-eng"], "is of the type tsv, which is not read here"),
        (["--train", "mtdata:Neulab-tedtalks_dev-1-eng-deu"], "of the type tsv, with pairs that mtdata leaves out"),
        (["--train", "mtdata:G-gz-1-deu-eng", "--offline"], "/0.0 is not in the cache"),
    ):  # fmt: skip
        assert message in refuses(capsys, build(*given[:6], "--valid-size", "1", *flags, "--out", tmp_path / "d"))
    content, entry = index.read_bytes(), b'{"did": "G-gz-1-deu-eng", "url": 1}'
    for damaged in (content[:20], content[1:], gzip.compress(entry), gzip.compress(b"\xff")):
        index.write_bytes(damaged)
        with pytest.raises(DataError, match=rf"{index} is damaged \(.*\): remove it"):
            read(train="mtdata:G-gz-1-deu-eng")
    index.unlink()
    monkeypatch.setattr(sys, "executable", "false")
    with pytest.raises(DataError, match=r"mtdata 0\.5\.1 cannot write its index"):
        read(train="mtdata:G-gz-1-deu-eng")
    assert not list(index.parent.iterdir())


def test_mtdata_is_asked_for_where_it_is_missing(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", missing)
    with pytest.raises(UserError, match=r"^mtdata is not installed: pip install '?(dstransformer\[)?mtdata"):
        read(train="mtdata:Statmt-news_commentary-18.1-deu-eng")


#: Data sets that the index has at addresses without TLS, which a proxy can answer: the address, and a file of pairs.
REAL: dict[str, tuple[str, Callable[[list[str], list[str]], bytes]]] = {
    "Statmt-news_commentary-18.1-deu-eng": (
        "data.statmt.org/news-commentary/v18.1/training/news-commentary-v18.de-en.tsv.gz",
        lambda en, de: gzip.compress("".join(f"{b}\t{a}\tx\n" for a, b in zip(en, de, strict=True)).encode()),
    ),
    "Statmt-europarl-7-deu-eng": (
        "www.statmt.org/europarl/v7/de-en.tgz",
        lambda en, de: packed({"europarl-v7.de-en.en": lines(*en), "europarl-v7.de-en.de": lines(*de)}, tar=True),
    ),
    "EU-ecdc-1-eng-deu": (
        "optima.jrc.it/Resources/ECDC-TM/ECDC-TM.zip",
        lambda en, de: packed({"ECDC-TM/ECDC.tmx": tmx(*zip(en, de, strict=True))}, tar=False),
    ),
    "Statmt-newstest_deen-2014-deu-eng": (
        "data.statmt.org/wmt20/translation-task/dev.tgz",
        lambda en, de: packed(
            {"dev/newstest2014-deen-src.de.sgm": sgm(*de), "dev/newstest2014-deen-ref.en.sgm": sgm(*en)}, tar=True
        ),
    ),
}


@pytest.mark.slow
def test_mtdata_itself_reads_the_same(tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    python, home = side_python("mtdata", "mtdata"), tmp_path / "home"
    program = "from importlib import metadata; print(metadata.version('mtdata'))"
    asked = subprocess.run([python, "-c", program], capture_output=True, text=True, check=True)
    install(monkeypatch, asked.stdout.strip())
    monkeypatch.setattr(sys, "executable", str(python))
    monkeypatch.setenv("http_proxy", server.address)
    monkeypatch.setenv("HOME", str(home))
    for number, (url, content) in enumerate(REAL.values()):
        served = tmp_path / "www" / "http:" / url  # asked for as of a proxy
        served.parent.mkdir(parents=True)
        numbers = range(100 * number, 100 * number + 3)
        served.write_bytes(content([sentence(n, ENGLISH) for n in numbers], [sentence(n, GERMAN) for n in numbers]))
    pairs = [read(train=f"mtdata:{name}") for name in REAL]
    assert pairs == [
        [(sentence(n, ENGLISH), sentence(n, GERMAN)) for n in range(start, start + 3)] for start in (0, 100, 200, 300)
    ]
    assert not home.exists(), "its pickle was neither written nor read there"
    assert [path.name for path in (tmp_path / "cache" / "dstransformer" / "mtdata").iterdir()] != []
    done = subprocess.run(
        [python, "-m", "mtdata", "get", "--langs", "eng-deu", "--out", tmp_path / "got", "--train", *REAL],
        cwd=tmp_path, env={**os.environ, "MTDATA": str(home)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert sorted(read(train=tmp_path / "got")) == sorted(pair for each in pairs for pair in each)
