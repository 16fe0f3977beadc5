"""``dst serve --api libretranslate``, asked by a client of LibreTranslate and by hand."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from libretranslatepy import LibreTranslateAPI
from support.data.corpora import TEXT
from support.services.serving import Server, save_small_bundle, serving

from dstransformer.cli import main
from dstransformer.decoding import Translator

pytest.importorskip("sentencex", reason="needs sentencex: pip install 'dstransformer[serve]'")

FORM = {"content-type": "application/x-www-form-urlencoded"}


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_small_bundle(tmp_path_factory.mktemp("served") / "small", src_lang="eng", tgt_lang="deu_Latn")


@pytest.fixture(scope="module")
def server(bundle: Path) -> Iterator[Server]:
    with serving(bundle, "--api", "libretranslate", "--max-sentences", "5") as server:
        yield server


@pytest.fixture(scope="module")
def translator(bundle: Path) -> Translator:
    return Translator.load(bundle, device="cpu")


def asked(server: Server, **keys: Any) -> Any:
    reply = server.post({"source": "en", "target": "de", **keys})
    assert reply.status == 200, reply.json
    return reply.json


def test_a_client_translates_detects_and_lists_languages(server: Server, translator: Translator) -> None:
    client = LibreTranslateAPI(server.address, api_key="any")
    text = f" {TEXT[0]}  {TEXT[2]}\n\n{TEXT[0]}"
    (wanted,) = translator.translate([text], split=True)
    assert client.translate(text, "en", "de") == wanted
    assert client.languages() == [
        {"code": "en", "name": "English", "targets": ["de"]}, {"code": "de", "name": "German", "targets": []},
    ]  # fmt: skip
    first, second = client.detect("Der Hund rennt durch den Wald.\nEr ist müde.")
    assert (first["language"], second["language"]) == ("de", "en")
    assert 100 >= first["confidence"] > 50 > second["confidence"] >= 0


def test_json_with_several_texts_a_detected_language_and_markup(server: Server, translator: Translator) -> None:
    sentences = [TEXT[0], TEXT[2], ""]
    wanted = translator.translate(sentences)
    assert asked(server, q=sentences, source="eng", target="de-DE") == {"translatedText": wanted}
    german = "Der Hund rennt durch den Wald."
    found = asked(server, q=["The dog runs through the forest.", german], source="auto", format="text")
    assert [one["language"] for one in found["detectedLanguage"]] == ["en", "de"]
    assert found["translatedText"][1] == german
    page = f"<p>{german}</p><!-- {'The dog runs through the forest and the cat is tired. ' * 9}-->"
    assert asked(server, q=page, source="auto", format="html")["detectedLanguage"] == found["detectedLanguage"][1]
    one = asked(server, q="The dog runs through the forest.", source="auto")
    assert (one["translatedText"], one["detectedLanguage"]["language"]) == (found["translatedText"][0], "en")
    page = asked(server, q=f'<p class="a">{TEXT[0]}</p><p>{TEXT[2]}</p>', format="html")
    assert page == {"translatedText": f'<p class="a">{wanted[0]}</p> <p>{wanted[1]}</p>'}
    n_best = [output.text for output in translator.search([TEXT[0]], n_best=3)[0]]
    assert asked(server, q=TEXT[0], alternatives=2) == {"translatedText": wanted[0], "alternatives": n_best[1:]}
    assert asked(server, q=f" {TEXT[0]}\n", alternatives=1)["translatedText"] == f" {wanted[0]}\n"
    assert asked(server, q=f"{TEXT[0]}\n{TEXT[0]}", alternatives=2)["alternatives"] == []
    long = "\n".join([TEXT[0]] * 12)  # in requests of at most 5 sentences
    assert asked(server, q=long) == {"translatedText": "\n".join([wanted[0]] * 12)}


def test_what_a_page_asks_for(server: Server) -> None:
    settings = server.ask("GET", "/frontend/settings").json
    assert settings["language"] == {
        "source": {"code": "en", "name": "English"}, "target": {"code": "de", "name": "German"},
    }  # fmt: skip
    assert (settings["keyRequired"], settings["charLimit"], settings["supportedFilesFormat"]) == (False, -1, [])
    assert server.ask("GET", "/healthz").json["status"] == "ready"
    assert b'path="/languages"' in server.ask("GET", "/metrics").body


def test_extensions_of_browsers_may_ask_and_other_pages_may_not(server: Server) -> None:
    body = json.dumps({"q": "a", "source": "en", "target": "de"}).encode()
    kind = {"content-type": "application/json"}
    for origin, status in (("moz-extension://0a", 200), ("chrome-extension://b", 200), ("https://evil.example", 403)):
        reply = server.ask("POST", "/translate", body, kind | {"origin": origin})
        assert (reply.status, "error" in reply.json) == (status, status != 200)


@pytest.mark.parametrize(("body", "status", "error"), [
    ({"q": "a", "source": "en"}, 400, "the parameter target is missing"),
    ({"q": 1, "source": "en", "target": "de"}, 400, "the parameter q must be a text, or a list of texts"),
    ({"q": "a", "source": "en", "target": "de", "format": "pdf"}, 400, "the parameter format must be text or html"),
    ({"q": "a", "source": "fr", "target": "de"}, 400, "'fr' is not supported: this server has de, en"),
    ({"q": "a", "source": "de", "target": "en"}, 400, "de to en is not supported: GET /languages lists what is"),
    ({"q": "<b>a", "source": "en", "target": "de", "format": "html"}, 400,
     "sentence 1, column 1: '<b>' is not closed on its line"),
    ({"q": "a\ud800", "source": "en", "target": "de"}, 400, "the body is neither a JSON object nor a form in UTF-8"),
    ({"q": ["a"] * 6, "source": "auto", "target": "de"}, 400, "q has more than 5 texts (--max-sentences)"),
    ([1], 400, "the body is neither a JSON object nor a form in UTF-8"),
])  # fmt: skip
def test_refusals_have_one_line_each(server: Server, body: Any, status: int, error: str) -> None:
    reply = server.post(body)
    assert (reply.status, reply.json) == (status, {"error": error})


def test_forms_are_checked_too(server: Server) -> None:
    form = urlencode({"q": "", "source": "en", "target": "de", "alternatives": "x"}).encode()
    reply = server.ask("POST", "/translate", form, FORM)
    assert (reply.status, reply.json) == (
        400,
        {"error": "the parameter alternatives must be a whole number, 0 or more"},
    )
    assert server.ask("POST", "/translate", b"a", {"content-type": "text/plain"}).status == 415
    reply = server.ask("POST", "/translate", b"q=%ED%A0%80&source=en&target=de", FORM)
    assert (reply.status, reply.json) == (400, {"error": "the body is neither a JSON object nor a form in UTF-8"})
    assert server.post({"q": ["a"]}, "/detect").json == {"error": "the parameter q must be a text"}
    assert server.ask("GET", "/translate").json["error"].startswith("GET is not allowed here; this server has ")
    missing = server.ask("GET", "/suggest")
    assert (missing.status, missing.json["error"][:23]) == (404, "there is no such page; ")


def test_a_model_that_does_not_say_its_languages_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nameless = save_small_bundle(tmp_path / "nameless", src_lang=None)
    assert main(["serve", str(nameless), "--port", "0", "--device", "cpu", "--api", "libretranslate"]) == 2
    assert "nameless does not say its languages" in capsys.readouterr().err
