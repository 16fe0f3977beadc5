"""``dst evaluate``: several systems on several test sets."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from sacrebleu.dataset import DATASETS
from support.data.corpora import TEXT
from support.models.random_bundle import random_bundle

from dstransformer.cli import main
from dstransformer.evaluation.bleu import score

OTHER = ["Two men talk.", "A dog runs.", "The fox jumps."]


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The working folder holds a bundle, two test sets and the outputs of two systems on each."""
    monkeypatch.chdir(tmp_path)
    for name, lines in (("a.en", TEXT), ("b.en", OTHER)):
        write(name, lines)
        write(name.replace("en", "de"), [line.upper() for line in lines])
        write(name.replace("en", "good"), [line.upper() for line in lines[:-1]] + ["FAST"])
        write(name.replace("en", "bad"), [line[::-1] for line in lines])
    assert bundle == tmp_path / "bundle"


def write(name: str, lines: list[str]) -> None:
    Path(name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def evaluated(capsys: pytest.CaptureFixture[str], command: str) -> Any:
    assert main(["evaluate", *command.split(), "--json"]) == 0, capsys.readouterr().err
    return json.loads(capsys.readouterr().out)


def test_one_bundle_on_one_test_set(capsys: pytest.CaptureFixture[str]) -> None:
    found = evaluated(capsys, "bundle --src a.en --ref a.de --beam 3 --output out")
    assert (found["bundle"], found["step"], found["beam_size"], found["length_penalty"]) == ("bundle", 7, 3, 0.6)
    assert found["weights_sha256"] == hashlib.sha256(Path("bundle/model.safetensors").read_bytes()).hexdigest()
    assert found["test_set"]["src_sha256"] == hashlib.sha256(Path("a.en").read_bytes()).hexdigest()
    assert found["test_set"]["ref_sha256"] == hashlib.sha256(Path("a.de").read_bytes()).hexdigest()
    assert set(found["metrics"]) == {"bleu", "chrf", "ter", "bleu_compound_split"}
    assert "case:lc|tok:tercom" in found["signatures"]["ter"]
    assert main(["evaluate", "bundle", "--src", "a.en", "--ref", "a.de", "--beam", "3"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(" ")[0] for line in lines] == ["BLEU", "chrF2", "TER", "BLEU", "4"]
    # The outputs, scored as a file, have the same scores.
    again = evaluated(capsys, "--ref a.de --systems out --langpair eng-de_AT")
    assert again["metrics"] == found["metrics"]
    assert (again["file"], again["test_set"]["src"]) == ("out", None)


def test_without_a_language_the_compound_split_bleu_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    nameless = random_bundle(Path("nameless"), provenance={"src_lang": None, "tgt_lang": None})
    for command in (f"{nameless} --src b.en --ref b.de --max-extra-tokens 1", "--ref a.de --systems a.good"):
        assert "bleu_compound_split" not in evaluated(capsys, command)["metrics"]
        assert "bleu_compound_split" in evaluated(capsys, f"{command} --langpair en-de")["metrics"]


def test_several_systems_on_several_test_sets(capsys: pytest.CaptureFixture[str]) -> None:
    command = "bundle --src a.en --ref a.de --src b.en --ref b.de --systems a.good a.bad --systems b.good b.bad"
    found = evaluated(capsys, f"{command} --significance bootstrap --resamples 50 --seed 3")
    assert [(one["test_set"]["name"], one["system"]) for one in found["results"]] == [
        ("a", "bundle"), ("a", "a.good"), ("a", "a.bad"), ("b", "bundle"), ("b", "b.good"), ("b", "b.bad"),
    ]  # fmt: skip
    good = [line.upper() for line in TEXT[:-1]] + ["FAST"]
    bleu = score(good, [line.upper() for line in TEXT])[0]
    assert found["results"][1]["metrics"]["bleu"] == pytest.approx(bleu.value)
    assert len({one["test_set"]["digest"] for one in found["results"]}) == 2
    first, second = found["significance"]
    assert (first["test_set"], first["test"], first["samples"], first["seed"]) == ("a", "bootstrap", 50, 3)
    assert [one["system"] for one in second["systems"]] == ["bundle", "b.good", "b.bad"]
    assert first["baseline"] == "bundle"
    assert 0 < second["systems"][1]["bleu"]["p_value"] <= 1

    assert main(["evaluate", *command.split(), "--significance", "randomisation", "--resamples", "40"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert re.split(r" {2,}", lines[0]) == ["test set", "system", "BLEU", "chrF2", "TER", "BLEU (compound-split)"]
    assert re.match(rf"a +a\.good +{bleu.value:.2f} \(p 0\.\d{{4}}\*?\) ", lines[2])
    assert len(lines) == 7 + 1 + 4 + 1
    assert lines[-1] == ("* p < 0.05 against bundle: paired approximate randomisation, 40 trials, seed 12345")
    assert lines[8].startswith("BLEU: nrefs:1|")


def test_two_bundles(capsys: pytest.CaptureFixture[str]) -> None:
    found = evaluated(capsys, "bundle ./bundle/../bundle --src b.en --ref b.de --beam 2")
    assert [one["metrics"] for one in found["results"]] == [found["results"][0]["metrics"]] * 2
    assert main(["evaluate", "bundle", "bundle", "--src", "b.en", "--ref", "b.de"]) == 2
    assert "the system bundle is given twice" in capsys.readouterr().err


def test_a_tokenizer_that_does_not_fit_the_language_is_said(caplog: pytest.LogCaptureFixture) -> None:
    for languages in ("en-ja", "en-de"):
        command = f"--ref a.de --systems a.good --langpair {languages} --tokenize bpe"
        assert main(["evaluate", *command.split()]) == 0
    assert caplog.messages == ["--tokenize bpe does not fit ja: --tokenize auto takes ja-mecab"]


class TestCachedSets:
    @pytest.fixture
    def cache(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        for name in ("wmt13", "wmt14"):
            monkeypatch.setattr(DATASETS[name], "_outdir", str(tmp_path / "cache" / name))
        (tmp_path / "cache" / "wmt14").mkdir(parents=True)
        write("cache/wmt14/wmt14.en-de.src", OTHER)
        write("cache/wmt14/wmt14.en-de.ref", [line.upper() for line in OTHER])
        return tmp_path / "cache"

    def test_they_are_found_by_name(self, cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
        found = evaluated(capsys, "bundle --test-set wmt14 --src a.en --ref a.de")
        assert [one["test_set"]["name"] for one in found["results"]] == ["a", "wmt14 en-de"]
        assert found["results"][1]["test_set"]["src"] == str(cache / "wmt14" / "wmt14.en-de.src")
        alone = evaluated(capsys, "--test-set wmt14 --langpair eng-deu --systems b.good")
        assert alone["metrics"]["bleu"] > 10
        assert alone["test_set"]["name"] == "wmt14 en-de"

    def test_nothing_is_downloaded(self, cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
        for command, complaint in (
            (
                "bundle --test-set wmt14,wmt13",
                "wmt13.en-de.src is not in sacrebleu's cache; `sacrebleu -t wmt13 -l en-de ",
            ),
            ("bundle --test-set wmt99", "--test-set 'wmt99': sacrebleu has no such test set; `sacrebleu --list`"),
            ("bundle --test-set wmt14 --langpair en-fi", "--test-set wmt14 has no en-fi, only cs-en, en-cs"),
            ("--test-set wmt14 --systems b.good", "--test-set needs the languages: --langpair en-de"),
        ):
            assert main(["evaluate", *command.split()]) == 2
            assert complaint in capsys.readouterr().err
        assert not (cache / "wmt13").exists()


@pytest.mark.parametrize(("more", "complaint"), [
    ("--systems nowhere", "cannot read nowhere"),
    ("--systems b.good", "b.good has 3 lines but a.de has 4"),
    ("--systems a.good --significance bootstrap --resamples 0", "--resamples 0: draw at least one"),
    ("--systems a.good --significance bootstrap --seed -1", "--seed -1: give a positive whole number"),
])  # fmt: skip
def test_slips_are_found_before_anything_is_translated(
    more: str, complaint: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delattr("dstransformer.decoding.TextDecoder.translate")
    assert main(["evaluate", "bundle", "--src", "a.en", "--ref", "a.de", *more.split()]) == 2
    assert complaint in capsys.readouterr().err


@pytest.mark.parametrize(("command", "complaint"), [
    ("--ref a.de", "--task translation needs BUNDLE or --systems; see"),
    ("bundle", "--task translation needs --src and --ref, or --test-set"),
    ("bundle --ref a.de", "--task translation needs --src; see"),
    ("bundle --src a.en", "--task translation needs --ref; see"),
    ("bundle --src a.en --ref a.de --ref b.de", "--src is given 1 times and --ref 2 times"),
    ("bundle --src a.en --ref a.de --significance bootstrap", "--significance compares systems: name another BUNDLE"),
    ("bundle --src a.en --ref a.de --seed 3", "--seed is for --significance"),
    ("bundle --src a.en --ref a.de --interval 3", "--interval is for --follow"),
    ("bundle --src a.en --ref a.de --langpair en-ja", "de (bundle) and that of ja (--langpair); evaluate them apart"),
    ("--ref a.de --systems a.good --to de", "--to is for a BUNDLE: files of translations are only scored"),
    ("bundle --src a.en --ref a.de --to fr", "--to 'fr': the model translates into de; it has no tags"),
    ("bundle --src a.en --ref a.de --src b.en --ref b.de --systems a.good", "given 1 times for 2 test sets"),
    ("--ref a.de --ref b.de --systems a.good a.bad --systems b.bad", "--systems names 2 and 1 files: name the same"),
    ("bundle --src a.en --ref a.de --systems a.bad --output out", "--output is for the translations of one BUNDLE on"),
    ("bundle --src a.en --ref a.de --src b.en --ref b.de --output out", "--output is for the translations of one"),
    ("--ref a.de --systems a.bad --track", "--track needs a BUNDLE"),
    ("--ref a.de --systems a.bad --beam 9", "--beam is for a BUNDLE: files of translations are only scored"),
    ("bundle --src a.en --ref a.de --track", "bundle lies in no tracked run, nor does its provenance name one (None)"),
    ("bundle --follow run", "--follow and BUNDLE do not go together"),
    ("--follow run --systems a.bad", "--follow and --systems do not go together"),
    ("--follow run", "run is not a run"),
    ("--follow run --interval 0", "--interval is for --follow, in seconds, more than 0"),
    ("--follow run --interval inf", "--interval is for --follow, in seconds, more than 0 and at most 86,400"),
    ("bundle --src a.en --ref a.de --comet model.ckpt", "--comet model.ckpt: model.ckpt is not a file: name the"),
    ("bundle --src a.en --ref a.de --metricx a.en", "--metricx a.en: it has no config.json: name the folder"),
    ("--follow run --comet none", "--comet none: none is not a file: name the checkpoint"),
    ("bundle --src a.en --ref a.de --comet a.en", "has no package unbabel-comet: install it in a separate environment"),
    ("bundle --src a.en --ref a.de --comet a.en --metric-python none", "--metric-python none is not a program: name"),
    ("bundle --src a.en --ref a.de --metric-python python3", "--metric-python is for --comet and --metricx"),
    ("--task parsing --gold a.en bundle bundle", "--task parsing takes one BUNDLE"),
    ("--task parsing --gold a.en bundle --systems a.bad", "--task parsing does not take --systems"),
])  # fmt: skip
def test_slips_are_named(command: str, complaint: str, capsys: pytest.CaptureFixture[str]) -> None:
    before = sorted(Path.cwd().iterdir())
    assert main(["evaluate", *command.split()]) == 2
    errors = capsys.readouterr().err
    assert complaint in errors
    assert errors.count("\n") == 1
    assert sorted(Path.cwd().iterdir()) == before


def test_a_bundle_of_the_other_task_is_refused_before_anything_is_translated(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree("bundle", "parser")
    config = Path("parser", "config.yaml")
    stored = config.read_text(encoding="utf-8")
    assert "trees: null" in stored
    config.write_text(stored.replace("trees: null", "trees: {tags: keep, closing: label}"), encoding="utf-8")
    write("gold", ["(TOP (NN x))"])
    monkeypatch.delattr("dstransformer.decoding.TextDecoder.translate")
    assert main(["evaluate", "bundle", "parser", "--src", "a.en", "--ref", "a.de"]) == 2
    assert capsys.readouterr().err == "dst: error: parser is a parser: score it with --task parsing --gold TREES\n"
    assert main(["evaluate", "--task", "parsing", "--gold", "gold", "bundle"]) == 2
    assert capsys.readouterr().err == "dst: error: bundle is a translation model: score it with --task translation\n"
