"""A model of two directions, from the recipe of the package: trained, scored by direction, and used by its tags."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from mlflow import MlflowClient
from support.data.prep import build, refuses
from support.processes.launching import run_dst
from support.services.serving import serving
from support.training.runs import TINY, records

from dstransformer.cli import main
from dstransformer.cli.evaluate import _target_codes
from dstransformer.data import Direction
from dstransformer.decoding import Translator
from dstransformer.decoding.commands import load_translator
from dstransformer.errors import UserError
from dstransformer.evaluation.learned import LearnedMetric
from dstransformer.evaluation.result import Score
from dstransformer.evaluation.systems import evaluate_bundle
from dstransformer.evaluation.testset import TestSet
from dstransformer.model import open_bundle

pytestmark = pytest.mark.slow

#: The scores of each direction and their means, of all sentences or of the first four.
NAMES = [f"{score}{direction}" for direction in ("", "_en-de", "_de-en") for score in ("bleu", "chrf")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus and a run of two directions, tracked in MLflow."""
    folder = tmp_path_factory.mktemp("directions")
    sizes = [f"sources.{name}.{key}={size}" for name, pairs in (("en-de", 600), ("de-en", 200))
             for key, size in (("pairs", pairs), ("valid_size", 12), ("test_size", 10))]  # fmt: skip
    options = ["--set", *sizes, "vocab.vocab_size=500"]
    assert build("toy_multilingual", *options, "--out", folder / "corpus") == 0
    settings = [*TINY, "tracking.enabled=true", f"tracking.uri=sqlite:///{folder}/mlflow.db", "training.max_updates=20"]
    settings += ["validation.every=10", "training.mixture=[{temperature: 5}]", "validation.final_sentences=0"]
    where = ["--corpus", str(folder / "corpus"), "--run", str(folder / "run")]
    done = run_dst("train", "toy", *where, "--ds", "zero0", "fp32", "--set", *settings)
    assert done.returncode == 0, done.stderr
    (folder / "log").write_text(done.stdout + done.stderr, encoding="utf-8")
    return folder


def test_every_direction_has_its_bleu_in_the_log_and_in_mlflow(folder: Path) -> None:
    log = (folder / "log").read_text(encoding="utf-8")
    assert "mixture   temperature 5 (en-de 1, de-en 2.40822)" in log
    valid, (final,) = records(folder / "run", "valid"), records(folder / "run", "final_test")
    assert [record["step"] for record in valid] == [10, 20]
    for record, ending in ((valid[0], "_first_4"), (final, "")):
        scores = [name for name in record if name.startswith(("bleu", "chrf")) and not name.endswith("_signature")]
        assert scores == [name + ending for name in NAMES]
        mean = (record[f"bleu_en-de{ending}"] + record[f"bleu_de-en{ending}"]) / 2
        assert record[f"bleu{ending}"] == pytest.approx(mean)
    assert "bleu_de-en_first_4" in log
    client = MlflowClient(f"sqlite:///{folder}/mlflow.db")
    (run,) = client.search_runs([one.experiment_id for one in client.search_experiments()])
    assert {f"valid/{name}_first_4" for name in NAMES} | {f"final_test/{name}" for name in NAMES} <= set(
        run.data.metrics
    )
    assert run.data.tags["languages"] == "en-de, de-en"
    usage = run.data.tags["mlflow.note.content"].partition("Use the bundle:")[2]
    assert "input.txt --to de --output" in usage


def test_the_bundle_knows_its_directions(folder: Path) -> None:
    bundle = open_bundle(folder / "run")
    assert bundle.directions == (Direction("en", "de", ">>deu<<"), Direction("de", "en", ">>eng<<"))
    tags = [f"▁{direction.tag}" for direction in bundle.directions]
    assert all(tag in bundle.tokenizer.symbols for tag in tags)


def test_the_target_language_is_an_option_or_begins_the_sentence(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain, tagged = tmp_path / "plain", tmp_path / "tagged"
    plain.write_text("The dog sees the cat.\n\nA man sleeps.\n", encoding="utf-8")
    tagged.write_text(">>deu<< The dog sees the cat.\n\n>>deu<< A man sleeps.\n", encoding="utf-8")
    found = {}
    for name, command in (("to", [plain, "--to", "de"]), ("code", [plain, "--to", "deu"]), ("text", [tagged])):
        assert main(["translate", str(folder / "run"), *map(str, command)]) == 0
        found[name] = capsys.readouterr().out
    assert found["to"] == found["code"] == found["text"]
    assert found["to"].count("\n") == 3
    for command, message in (
        ([plain], "sentence 1 begins with no tag, and the model translates into several languages: name one with --to"),
        ([plain, "--to", "fr"], "--to 'fr': the model translates into de, en; its tags are >>deu<<, >>eng<<"),
    ):
        assert message in refuses(capsys, main(["translate", str(folder / "run"), *map(str, command)]))


def test_score_and_ctranslate2_take_the_target_language_too(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("ctranslate2")
    source, tagged, target = (tmp_path / name for name in ("source", "tagged", "target"))
    source.write_text("The dog sees the cat.\nA man sleeps.\n", encoding="utf-8")
    tagged.write_text(">>deu<< The dog sees the cat.\n>>deu<< A man sleeps.\n", encoding="utf-8")
    target.write_text("Der Hund sieht die Katze.\nEin Mann schläft.\n", encoding="utf-8")
    assert main(["export", "ct2", str(folder / "run"), str(tmp_path / "ct2")]) == 0
    capsys.readouterr()
    engine = ["translate", str(tmp_path / "ct2"), "--engine", "ct2"]
    pairs = ["score", str(folder / "run"), "--tgt", str(target), "--src"]
    for command in (engine, pairs):
        found = []
        for options in ([str(source), "--to", "de"], [str(tagged)]):
            assert main([*command, *options]) == 0
            found.append(capsys.readouterr().out)
        assert found[0] == found[1]


def test_a_request_names_the_target_language(folder: Path) -> None:
    with serving(folder / "run" / "bundle") as server:
        texts = ["The dog sees the cat.", "A man sleeps."]
        named = server.post({"text": texts, "to": "de"})
        assert (named.status, named.json) == (
            200, server.post({"text": [f">>deu<< {text}" for text in texts]}).json
        )  # fmt: skip
        asked = {"alignments": True, "markup": True}
        added, typed = (
            server.post({"text": text, **asked, **to}).json["translations"][0]
            for text, to in ((f"<b>{texts[0]}</b>", {"to": "de"}), (f">>deu<< <b>{texts[0]}</b>", {}))
        )
        assert [[source + 1, target] for source, target in added["alignment"]] == typed["alignment"]
        assert added["text"].startswith("<b>")
        missing = server.post({"text": [">>deu<< The dog.", texts[0]]})
        assert missing.status == 422
        assert missing.json["detail"].startswith("sentence 2 begins with no tag, and the model translates into several")
        assert 'name one with "to", or begin each sentence with one of >>deu<<, >>eng<<' in missing.json["detail"]
        unknown = server.post({"text": texts, "to": "fr"})
        assert unknown.json["detail"] == "\"to\" 'fr': the model translates into de, en; its tags are >>deu<<, >>eng<<"
        attention = server.post({"source": texts[1], "target": "Ein Mann.", "to": "de"}, "/attention")
        assert attention.json["source"] == [">>deu<<", "A", "man", "sleeps."]
        health = server.ask("GET", "/healthz").json
        assert [one["tag"] for one in health["directions"]] == [">>deu<<", ">>eng<<"]
        page = server.ask("GET", "/").body.decode()
        assert "<h1>Translate en, de → de, en</h1>" in page
        assert '<option value="&gt;&gt;deu&lt;&lt;">de &gt;&gt;deu&lt;&lt;</option>' in page


def test_long_texts_keep_their_tag_in_every_part(folder: Path) -> None:
    translator = Translator.load(folder / "run")
    first, second = ">>deu<< The dog sees the cat.", ">>deu<< A man sleeps in the house."
    apart = translator.translate([first, second])
    limit = max(len(ids) for ids in translator.tokenizer.encode([first, second]))
    translator.settings = translator.settings.model_copy(update={"long_inputs": "split", "max_input_tokens": limit})
    for tags in (translator.tags, None):  # None as in the server
        translator.tags = tags
        text = f"{first} {second.removeprefix('>>deu<< ')}"
        parts = [part.begin + part.text for part in translator._divide([text], 1, split=False)[0]]
        assert translator.tokenizer.encode(parts) == translator.tokenizer.encode([first, second])
        joined = translator.translate([text])
        assert joined == [" ".join(text for text in apart if text)]


def test_a_model_of_one_direction_has_no_other() -> None:
    stored = Path(__file__).parents[1] / "data" / "formats" / "1" / "run"
    assert open_bundle(stored).directions == ()
    assert load_translator(stored, to="deu").tags is None
    with pytest.raises(UserError, match="--to 'fr'"):
        load_translator(stored, to="fr")


def test_each_direction_is_evaluated(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for code, lines in (("eng", "A dog.\nA cat.\n"), ("deu", "Ein Hund.\nEine Katze.\n")):
        kind = "src" if code == "eng" else "ref"
        (tmp_path / f"newstest2019-{kind}.{code}.txt").write_text(lines, encoding="utf-8")
    (tmp_path / "output").write_text("Ein Hund.\nEine Katze.\n", encoding="utf-8")
    for pair, target in (("en-de", "de"), ("de-en", "en"), ("de-Latn-en", "en")):
        command = ["evaluate", str(folder / "run"), "--test-set", f"ntrex:{tmp_path}", "--langpair", pair, "--json"]
        assert main(command) == 0
        found = json.loads(capsys.readouterr().out)
        assert (found["to"], found["sentences"]) == (target, 2)
        assert "bleu_compound_split" in found["metrics"]
    assert main([*command[:-2], "en-de", "--systems", str(tmp_path / "output"), "--json"]) == 0
    signatures = [one["signatures"]["bleu_compound_split"] for one in json.loads(capsys.readouterr().out)["results"]]
    assert len(set(signatures)) == 1
    said = refuses(capsys, main(["evaluate", str(folder / "run"), "--test-set", f"ntrex:{tmp_path}"]))
    assert "--test-set needs the languages: --langpair en-de" in said


def test_the_tags_of_the_sentences_choose_the_tokenizer(folder: Path) -> None:
    directions = (Direction("en", "jpn", ">>jpn<<"), Direction("en", "zho", ">>zho<<"), Direction("en", "deu", None))
    bundle = replace(open_bundle(folder / "run"), directions=directions)

    def codes(to: str | None, *lines: str) -> list[str]:
        return _target_codes(bundle, to, [TestSet("set", lines, (".",) * len(lines), "src", "ref")])

    assert codes("zh", ">>jpn<< A dog.", "", ">>jpn<< A cat.") == ["jpn"], "a tag wins over --to"
    assert codes("zh", ">>jpn<< A dog.", "A cat.") == ["jpn", "zho"]
    assert codes(None, "A dog.") == ["deu"]
    with pytest.raises(UserError, match="'>>fra<<'"):
        codes("zh", ">>fra<< A dog.")


def test_learned_metrics_get_sources_without_tags(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Recorder(LearnedMetric):
        def __init__(self) -> None:
            self.sources: list[str] = []

        def score(
            self, sources: Sequence[str], translations: Sequence[str], _: Sequence[str]
        ) -> tuple[Score, list[float]]:
            self.sources += sources
            return Score("comet", 0.0, ""), [0.0] * len(translations)

    recorder = Recorder()
    test_set = TestSet("tagged", (">>deu<< A dog.", ">>eng<< Ein Hund."), ("Ein Hund.", "A dog."), "src", "ref")
    bundle = open_bundle(folder / "run")
    evaluate_bundle(bundle, load_translator(bundle), [test_set], name="run", tokenize="13a", learned=[recorder])
    assert recorder.sources == ["A dog.", "Ein Hund."]
    assert "tagged has sentences of several directions (>>deu<<, >>eng<<): each score is one for all" in caplog.text


def test_following_scores_each_direction(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", "--follow", str(folder / "run"), "--interval", "1"]) == 0
    scored = [line.split("  ")[1:3] for line in capsys.readouterr().out.splitlines()]
    assert [words for words in scored if "validation en-de" in words]
    assert [words for words in scored if "validation de-en" in words]


def test_the_scores_of_each_direction_are_found_again(folder: Path, tmp_path: Path) -> None:
    done = run_dst("reproduce", str(folder / "run"), "--evaluate-only", "--out", str(tmp_path / "again"), "--json")
    assert done.returncode == 0, done.stderr
    assert {"test bleu_en-de", "test bleu_de-en"} <= {figure["name"] for figure in json.loads(done.stdout)["figures"]}
