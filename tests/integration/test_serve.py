"""``dst serve`` as a process, over HTTP."""

from __future__ import annotations

import json
import signal
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
from support.data.corpora import TEXT
from support.data.prep import refuses
from support.processes.launching import LIMIT, finish, run_dst, wait_until
from support.services.browser import browsing
from support.services.serving import Server, read_reply, save_small_bundle, serving

from dstransformer.cli import main

SENTENCES = [*TEXT, "dog", "", "The lazy dog jumps.", "fox fox fox", "  ", "Two men, one house."]

#: So long that a sentence waits for company until the server is told to stop.
ALONE = ("--max-batch-delay", "1e12")


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_small_bundle(tmp_path_factory.mktemp("served") / "small")


@pytest.fixture(scope="module")
def server(bundle: Path) -> Iterator[Server]:
    options = ("--max-sentences", "50", "--allow-host", "translate.example", "--timeout", str(LIMIT))
    with serving(bundle, *options) as server:
        yield server


@pytest.fixture(scope="module")
def expected(bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What ``dst translate`` prints for each sentence."""
    text = tmp_path_factory.mktemp("text") / "input"
    text.write_text("".join(f"{sentence}\n" for sentence in SENTENCES))
    done = run_dst("translate", str(bundle), str(text), "--device", "cpu")
    assert done.returncode == 0, done.stderr
    return dict(zip(SENTENCES, done.stdout.split("\n")[:-1], strict=True))


class TestTranslations:
    def test_they_are_those_of_dst_translate(self, server: Server, expected: dict[str, str]) -> None:
        reply = server.post({"text": SENTENCES})
        assert reply.status == 200
        assert reply.json == {"translations": [{"text": expected[sentence]} for sentence in SENTENCES]}
        assert server.post({"text": TEXT[0]}).json == {"translations": [{"text": expected[TEXT[0]]}]}
        assert server.post({"text": []}).json == {"translations": []}

    def test_many_clients_each_get_their_own(self, server: Server, expected: dict[str, str]) -> None:
        def ask(number: int) -> bool:
            sentence = SENTENCES[number % len(SENTENCES)]
            reply = server.post({"text": sentence})
            return reply.status == 200 and reply.json["translations"] == [{"text": expected[sentence]}]

        with ThreadPoolExecutor(30) as pool:
            assert all(pool.map(ask, range(90)))

    def test_n_best_and_scores(self, server: Server, expected: dict[str, str]) -> None:
        both, empty = server.post({"text": [TEXT[0], ""], "n_best": 3}).json["translations"]
        assert both["text"] == both["n_best"][0]["text"] == expected[TEXT[0]]
        scores = [hypothesis["score"] for hypothesis in both["n_best"]]
        assert len(scores) == 3
        assert both["score"] == scores[0]
        assert scores == sorted(scores, reverse=True)
        assert all(hypothesis["log_probability"] < hypothesis["score"] < 0 for hypothesis in both["n_best"])
        assert empty == {"text": "", "n_best": []}

    def test_prefixes(self, server: Server, expected: dict[str, str]) -> None:
        one = server.post({"text": [TEXT[0], TEXT[2]], "prefix": "Zwei"}).json["translations"]
        assert all(translation["text"].startswith("Zwei") for translation in one)
        some = server.post({"text": [TEXT[0], TEXT[2]], "prefix": ["", "Zwei"]}).json["translations"]
        assert some == [{"text": expected[TEXT[0]]}, one[1]]
        assert server.post({"text": TEXT[0], "prefix": ""}).json == {"translations": [{"text": expected[TEXT[0]]}]}

    def test_texts_of_several_sentences(self, server: Server, expected: dict[str, str]) -> None:
        pytest.importorskip("sentencex", reason="needs sentencex: pip install 'dstransformer[split]'")
        frame = " {0}  {1}\r\n\n{0}\t"
        texts = [frame.format(TEXT[0], TEXT[2]), " \n", ""]
        found = server.post({"text": texts, "split": True}).json["translations"]
        translated = frame.format(expected[TEXT[0]], expected[TEXT[2]])
        assert found == [{"text": text} for text in (translated, " \n", "")]
        refused = server.post({"text": texts, "split": True, "n_best": 2})
        assert (refused.status, refused.json) == (
            422, {"detail": "split goes without n_best, prefix and alignments"}
        )  # fmt: skip

    def test_control_characters_count_as_spaces(self, server: Server) -> None:
        strange = server.post({"text": ["dog\u0000fox", "dog\nfox", "dog fox", "\u0007"]}).json["translations"]
        assert strange[0] == strange[1] == strange[2]
        assert strange[3] == {"text": ""}

    def test_attention_between_words(self, server: Server) -> None:
        found = server.post({"source": TEXT[0], "target": TEXT[3]}, "/attention").json
        assert (found["source"], found["target"]) == (TEXT[0].split(), TEXT[3].split())
        assert [len(row) for row in found["weights"]] == [len(found["source"])] * len(found["target"])
        assert server.post({"source": "", "target": "dog"}, "/attention").status == 422


class TestRefusals:
    @pytest.mark.parametrize(("body", "status", "reason"), [
        (b"{", 400, "the body is not JSON: "),
        (b"", 422, "the body must be a JSON object"),
        (b'{"text": "\xff\xfe"}', 400, "the body is not JSON in UTF-8"),
        (b"[" * 100_000, 400, "the body is not JSON"),
        (b'["dog"]', 422, "the body must be a JSON object with the key text"),
        (b"{}", 422, "the key text is missing"),
        (b'{"text": 7}', 422, "text must be a string or a list of strings"),
        (b'{"text": ["dog", null]}', 422, "text must be a string or a list of strings"),
        (b'{"text": "dog", "beam": 3}', 422, "there is no key 'beam'"),
        (b'{"text": "dog", "n_best": 0}', 422, "n_best must be a whole number, 1 or more"),
        (b'{"text": "dog", "n_best": "2"}', 422, "n_best must be a whole number"),
        (b'{"text": "dog", "n_best": 5}', 422, "n_best is 5, but the beam has 4 hypotheses"),
        (b'{"text": "dog", "prefix": ["a", "b"]}', 422, "prefix has 2 texts for 1 sentences"),
        (b'{"text": ["dog", "\\ud800"]}', 422, "sentence 2 has half a surrogate pair"),
        (b'{"text": ["dog", "' + b"fox " * 25_000 + b'"]}', 422, "sentence 2 has "),
        (json.dumps({"text": ["dog"] * 51}).encode(), 422, "there are 51 texts; this server takes at most 50"),
        (b'{"text": "' + b"dog " * 2_500_000 + b'"}', 413, "the request is larger than 1,048,576 bytes"),
    ])  # fmt: skip
    def test_bad_requests_have_a_reason(self, server: Server, body: bytes, status: int, reason: str) -> None:
        reply = server.ask("POST", "/translate", body, {"Content-Type": "application/json"})
        assert (reply.status, reply.json["detail"][: len(reason)]) == (status, reason)
        assert "Traceback" not in reply.body.decode()
        assert len(reply.body) < 300
        assert server.post({"text": "dog"}).status == 200, "the server goes on"

    def test_a_body_without_a_length_is_limited_too(self, server: Server) -> None:
        with closing(server.connect()) as connection:
            parts = (b"dog " * 10_000 for _ in range(250))
            connection.request("POST", "/translate", parts, {"Content-Type": "application/json"}, encode_chunked=True)
            assert read_reply(connection).status == 413

    @pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", ""])
    def test_other_content_types(self, server: Server, kind: str) -> None:
        reply = server.ask("POST", "/translate", b'{"text": "dog"}', {"Content-Type": kind})
        assert reply.status == 415
        assert "send application/json" in reply.json["detail"]

    def test_pages_of_other_sites(self, server: Server) -> None:
        own = f"127.0.0.1:{server.port}"
        assert server.post({"text": "dog"}, Origin=f"http://{own}").status == 200
        for origin in ("http://evil.example", "null", f"http://127.0.0.1:{server.port + 1}"):
            assert server.post({"text": "dog"}, Origin=origin).status == 403
        preflight = server.ask("OPTIONS", "/translate", headers={"Origin": "http://evil.example"})
        assert preflight.status == 405
        assert not any(name.startswith("access-control") for name in preflight.headers)

    def test_other_names(self, server: Server) -> None:
        refused = server.post({"text": "dog"}, Host=f"evil.example:{server.port}")
        assert refused.status == 403
        assert "--allow-host" in refused.json["detail"]
        assert server.ask("GET", "/", headers={"Host": "evil.example"}).status == 403
        assert server.post({"text": "dog"}, Host="translate.example").status == 200

    def test_other_addresses_and_methods(self, server: Server) -> None:
        assert server.ask("GET", "/translate").status == 405
        missing = server.ask("GET", "/../../etc/passwd")
        assert missing.status == 404
        assert "no such page" in missing.json["detail"]

    def test_what_is_not_http(self, server: Server) -> None:
        with socket.create_connection(("127.0.0.1", server.port)) as raw:
            raw.sendall(b"\x16\x03\x01 no HTTP\r\n\r\n")
            assert raw.recv(100).startswith(b"HTTP/1.1 400")
        assert server.errors.count("\n") <= 1, "nothing is logged"

    def test_answers_carry_security_headers(self, server: Server) -> None:
        for path in ("/", "/docs", "/healthz", "/nothing"):
            headers = server.ask("GET", path).headers
            assert headers["x-content-type-options"] == "nosniff"
            assert headers["x-frame-options"] == "DENY"
            assert "frame-ancestors 'none'" in headers["content-security-policy"]
            assert "server" not in headers


class TestReports:
    def test_health(self, server: Server, bundle: Path) -> None:
        reply = server.ask("GET", "/healthz")
        assert reply.status == 200
        assert (reply.json["status"], reply.json["model"]) == ("ready", "small")
        provenance = json.loads((bundle / "provenance.json").read_text())
        assert reply.json["weights_sha256"] == provenance["files"]["model.safetensors"]
        assert reply.json["decoding"]["beam_size"] == 4
        assert reply.json["limits"]["sentences"] == 50

    def test_metrics_count(self, bundle: Path) -> None:
        with serving(bundle) as server:
            server.post({"text": ["dog", "", "fox"]})
            server.post({"text": "dog", "n_best": 2})
            server.post({"txt": "dog"})
            server.ask("GET", "/no/such/page")
            assert server.metric('dst_requests_total{path="/translate",status="200"}') == 2
            assert server.metric('dst_requests_total{path="/translate",status="422"}') == 1
            assert server.metric('dst_requests_total{path="other",status="404"}') == 1
            assert server.metric("dst_sentences_total") == 3
            assert server.metric("dst_batch_sentences_sum") == 3
            assert server.metric("dst_batch_sentences_count") == 2
            assert server.metric("dst_source_tokens_total") > 3
            assert server.metric("dst_target_tokens_total") > 0
            assert server.metric("dst_queue_sentences") == 0
            assert server.metric('dst_request_seconds_count{path="/translate"}') == 3


class TestTheQueue:
    def test_full_and_hung_up(self, bundle: Path) -> None:
        with serving(bundle, "--queue", "1", *ALONE) as server, closing(server.connect()) as first:
            kind = {"Content-Type": "application/json"}
            first.request("POST", "/translate", json.dumps({"text": "dog"}), kind)
            wait_until(lambda: server.metric("dst_queue_sentences") == 1)

            busy = server.post({"text": "fox"})
            assert busy.status == 503
            assert int(busy.headers["retry-after"]) >= 1
            assert busy.json["detail"] == "the server is busy: 1 sentences are waiting; try again later"

            first.close()  # the client hangs up: its sentence makes room
            wait_until(lambda: server.metric("dst_queue_sentences") == 0)
            wait_until(lambda: server.metric('dst_requests_total{path="/translate",status="499"}') == 1)

    def test_a_request_that_takes_too_long(self, bundle: Path) -> None:
        with serving(bundle, "--timeout", "0.2", *ALONE) as server:
            late = server.post({"text": "dog"})
            assert late.status == 504
            assert late.json["detail"] == "there was no translation within 0.2 s; send fewer sentences"
            assert server.metric("dst_queue_sentences") == 0
            with socket.create_connection(("127.0.0.1", server.port)) as slow:
                head = "POST /translate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                slow.sendall(f"{head}Content-Length: 100\r\n\r\n{{".encode())
                assert slow.recv(100).startswith(b"HTTP/1.1 408")
            server.process.send_signal(signal.SIGINT)
            finish(server.process)
            assert server.process.returncode == 0


def test_an_export_for_ctranslate2_is_served_as_it_translates(
    bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("ctranslate2", reason="needs CTranslate2: pip install 'dstransformer[ct2]'")
    export, text = tmp_path / "ct2", tmp_path / "text"
    exported = run_dst("export", "ct2", str(bundle), str(export), "--positions", "60")
    assert exported.returncode == 0, exported.stderr
    text.write_text("".join(f"{sentence}\n" for sentence in SENTENCES))
    expected = run_dst("translate", str(export), str(text), "--engine", "ct2").stdout.split("\n")[:-1]
    assert "add --engine ct2" in refuses(capsys, main(["serve", str(export)]))
    with serving(export, "--engine", "ct2") as server:
        health = server.ask("GET", "/healthz").json
        assert (health["model"], health["decoding"]["engine"]) == ("ct2", "ctranslate2")
        assert (health["src_lang"], health["limits"]["sentence_tokens"]) == ("en", 59)
        assert len(health["weights_sha256"]) == 64
        reply = server.post({"text": SENTENCES})
        for answer, other in zip(reply.json["translations"], expected, strict=True):  # the limit is one per batch
            assert answer["text"].startswith(other) or other.startswith(answer["text"])
        best = server.post({"text": TEXT[0], "n_best": 3, "prefix": "Zwei"}).json["translations"][0]
        assert [one["text"].startswith("Zwei") for one in best["n_best"]] == [True] * 3
        assert "this server takes at most 59: split it" in server.post({"text": "fox " * 99}).json["detail"]
        for path, asked in (
            ("/translate", {"text": "dog", "alignments": True}),
            ("/translate", {"text": "a <b>dog</b>", "markup": True, "split": True}),
            ("/attention", {"source": "dog", "target": "Hund"}),
        ):
            refused = server.post(asked, path)
            assert (refused.status, "CTranslate2 gives no attention" in refused.json["detail"]) == (422, True)
        assert b"what the model attended to" not in server.ask("GET", "/").body
    with serving(bundle, "--engine", "ct2") as server:
        assert server.post({"text": TEXT[0]}).json == {"translations": [{"text": expected[0]}]}


def test_a_port_in_use_is_refused(bundle: Path, server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    said = refuses(capsys, main(["serve", str(bundle), "--port", str(server.port)]))
    assert f"port {server.port} of 127.0.0.1 is in use: stop what uses it, or give another --port" in said


@pytest.mark.slow
def test_the_page(server: Server, expected: dict[str, str], tmp_path: Path) -> None:
    evil = "<img src=x onerror=\"document.title='hacked'\"> dog"
    with browsing(tmp_path) as tab:
        tab.open(f"{server.address}/")
        tab.click("#go")
        assert tab.evaluate("document.querySelector('#status').textContent") == "Type a sentence first."
        tab.click("#text")
        tab.type(f"{TEXT[0]}\n\n{TEXT[2]}\n{evil}")
        tab.evaluate("document.querySelector('#alternatives').value = '3'")
        tab.click("#go")
        tab.wait("document.querySelectorAll('.pair').length === 3")
        targets = tab.evaluate("[...document.querySelectorAll('.target')].map((each) => each.textContent)")
        wanted = server.post({"text": [TEXT[0], TEXT[2], evil], "n_best": 3}).json["translations"]
        assert targets == [translation["text"] for translation in wanted]
        assert targets[0] == expected[TEXT[0]]
        others = tab.evaluate("[...document.querySelectorAll('.pair:first-child li')].map((each) => each.textContent)")
        assert others == [f"{each['text']} {each['score']:.3f}" for each in wanted[0]["n_best"]]
        assert tab.evaluate("document.querySelectorAll('.source')[2].textContent") == evil
        assert tab.evaluate("[document.title, document.images.length]") == ["Translate with small", 0]

        tab.move_to(".pair .target")
        tab.wait("document.querySelectorAll('.pair:first-child .source .word').length > 1")
        tab.move_to(".pair .target .word")
        tab.wait("document.querySelector('.source .word').style.backgroundColor !== ''")
        shades = tab.evaluate(
            "[...document.querySelectorAll('.pair:first-child .source .word')].map((each) => each.title)"
        )
        found = server.post({"source": TEXT[0], "target": targets[0]}, "/attention").json
        assert [float(shade.rstrip("%")) for shade in shades] == pytest.approx(
            [100 * weight for weight in found["weights"][0]], abs=0.51
        )
        tab.move_to("h1")
        tab.wait("document.querySelector('.source .word').style.backgroundColor === ''")

        tab.evaluate("document.querySelector('#text').value = 'fox '.repeat(3000)")
        tab.click("#go")
        tab.wait("document.querySelector('#status.error') !== null")
        assert "tokens; this server takes at most 1,024: split it [422]" in tab.evaluate(
            "document.querySelector('#status').textContent"
        )
        complaints = [each for each in tab.errors if "422" not in each]
        tab.open(f"{server.address}/docs")
        assert "POST /translate" in tab.evaluate("document.body.textContent")
        assert complaints == []
