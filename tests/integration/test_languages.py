"""Japanese, Arabic and Chinese from the corpus to the reproduction of a run, and what chooses by chrF or loss."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from support.data.prep import build
from support.processes.launching import run_dst
from support.tiers import combinations
from support.training.runs import records, train_options

from dstransformer.training.checkpoints.format import read_checkpoint

#: Words of a made-up grammar in English, Japanese, Arabic and Chinese; a sentence is subject, object and verb.
SUBJECTS = (
    ("a dog", "犬が", "كلب", "一只狗"),
    ("a woman", "女の人が", "امرأة", "一个女人"),
    ("my friend", "友達が", "صديقي", "我的朋友"),
    ("the teacher", "先生が", "المعلم", "老师"),
    ("a child", "子供が", "طفل", "一个孩子"),
)
OBJECTS = (
    ("the park", "公園を", "الحديقة", "公园"),
    ("the sea", "海を", "البحر", "大海"),
    ("a book", "本を", "كتابا", "一本书"),
    ("the moon", "月を", "القمر", "月亮"),
    ("the city", "町を", "المدينة", "城市"),
    ("a letter", "手紙を", "رسالة", "一封信"),
)
VERBS = (
    ("sees", "見ます", "يرى", "看见"),
    ("likes", "好みます", "يحب", "喜欢"),
    ("remembers", "覚えます", "يتذكر", "记得"),
    ("paints", "描きます", "يرسم", "画"),
    ("forgets", "忘れます", "ينسى", "忘记"),
)
TIMES = (
    ("today", "今日", "اليوم", "今天"),
    ("now", "今", "الآن", "现在"),
    ("often", "よく", "كثيرا", "常常"),
    ("again", "また", "مرة أخرى", "又"),
)

TOKENS = {"jpn": "ja-mecab", "arb_Arab": "13a", "zho_Hans": "zh"}
COLUMNS = {"jpn": 1, "arb_Arab": 2, "zho_Hans": 3}


def sentences(code: str) -> list[tuple[str, str]]:
    """All sentences of the grammar in English and another language, in a random order."""
    column, found = COLUMNS[code], []
    for subject in SUBJECTS:
        for verb in VERBS:
            for item in OBJECTS:
                for time in TIMES:
                    english = f"{time[0]} {subject[0]} {verb[0]} {item[0]} ."
                    other = {
                        1: f"{time[1]}、{subject[1]}{item[1]}{verb[1]}。",
                        2: f"{verb[2]} {subject[2]} {item[2]} {time[2]} .",
                        3: f"{time[3]}{subject[3]}{verb[3]}{item[3]}。",
                    }[column]
                    found.append((english, other))
    random.Random(1).shuffle(found)
    return found


def build_corpus(folder: Path, code: str) -> Path:
    """A corpus with the options of a careful user: scripts and lengths are checked."""
    pairs = sentences(code)
    parts = {"train": pairs[:520], "valid": pairs[520:560], "test": pairs[560:600]}
    options = ["--source", "files", "--src-lang", "eng", "--tgt-lang", code]
    for name, part in parts.items():
        prefix = "" if name == "train" else f"{name}-"
        for side, number in (("src", 0), ("tgt", 1)):
            path = folder / f"{name}.{side}"
            path.write_text("".join(f"{pair[number]}\n" for pair in part), encoding="utf-8")
            options += [f"--{prefix}{side}", str(path)]
    assert build(*options, "--min-script", "0.5", "--vocab-size", "400", "--out", folder / "corpus") == 0
    manifest = json.loads((folder / "corpus" / "manifest.json").read_text())
    assert manifest["cleaning"]["kept"] == 520, "nothing is dropped"
    return folder / "corpus"


@pytest.mark.slow
@pytest.mark.parametrize("code", combinations(TOKENS, first_tier={("jpn",)}))
def test_a_language_goes_through(code: str, tmp_path: Path) -> None:
    corpus, run = build_corpus(tmp_path, code), tmp_path / "run"
    done = run_dst(*train_options(corpus, run, "validation.bleu_sentences=40", "tracking.enabled=false"))
    assert done.returncode == 0, done.stderr
    assert f"bleu ranks checkpoints; BLEU with sacrebleu's tokenizer {TOKENS[code]}" in done.stderr + done.stdout
    (final,) = records(run, "final_test")
    assert f"tok:{TOKENS[code]}" in final["bleu_signature"]
    checkpoints = [read_checkpoint(path) for path in sorted((run / "checkpoints").glob("step-*"))]
    assert {f"tok:{TOKENS[code]}" in checkpoint.signature for checkpoint in checkpoints if checkpoint.metric} == {True}

    test_set = ["--src", str(tmp_path / "test.src"), "--ref", str(tmp_path / "test.tgt")]
    (tmp_path / "perfect").write_text((tmp_path / "test.tgt").read_text(encoding="utf-8"), encoding="utf-8")
    systems = ["--systems", str(tmp_path / "perfect"), "--significance", "bootstrap", "--resamples", "20"]
    done = run_dst("evaluate", str(run), *test_set, *systems, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    ours, perfect = found["results"]
    assert ours["metrics"]["bleu"] == pytest.approx(final["bleu"], abs=1e-6)
    assert perfect["metrics"]["bleu"] == pytest.approx(100.0)
    assert {f"tok:{TOKENS[code]}" in one["signatures"]["bleu"] for one in found["results"]} == {True}
    assert ("asian:yes" in ours["signatures"]["ter"]) == (code != "arb_Arab")
    (tested,) = found["significance"]
    assert f"tok:{TOKENS[code]}" in tested["signatures"]["bleu"]
    assert tested["systems"][0]["bleu"]["score"] == pytest.approx(ours["metrics"]["bleu"])

    done = run_dst("reproduce", str(run), "--evaluate-only", "--json")
    assert done.returncode == 0, done.stderr
    figures = {figure["name"]: figure["verdict"] for figure in json.loads(done.stdout)["figures"]}
    assert figures["test bleu"] == "equal"


@pytest.mark.slow
def test_files_of_a_language_that_is_not_named_are_refused(tmp_path: Path) -> None:
    lines = [pair[1] for pair in sentences("zho_Hans")[:4]]
    for name in ("ref", "system"):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    command = ["evaluate", "--ref", str(tmp_path / "ref"), "--systems", str(tmp_path / "system"), "--json"]
    done = run_dst(*command)
    assert done.returncode == 2
    says = "BLEU depends on the language of this text, which is not known: name it, as in --langpair en-ja, or choose a"
    assert says in done.stderr
    for option in (("--tokenize", "zh"), ("--langpair", "en-zh")):
        done = run_dst(*command, *option)
        assert json.loads(done.stdout)["metrics"]["bleu"] == pytest.approx(100.0)


@pytest.mark.slow
def test_another_score_keeps_the_best_and_chooses_the_bundle(toy_corpus: Path, tmp_path: Path) -> None:
    chosen = [
        "checkpoint.every_updates=4",
        "validation.every=4",
        "checkpoint.final=best_on_validation",
        "checkpoint.keep_last=1",
    ]
    chosen += ["checkpoint.average_last=1", "validation.patience=9", "validation.metric=loss"]
    done = run_dst(*train_options(toy_corpus, tmp_path / "run", *chosen))
    assert done.returncode == 0, done.stderr
    values = {line["step"]: line["loss"] for line in records(tmp_path / "run", "valid")}
    checkpoints = [read_checkpoint(path) for path in sorted((tmp_path / "run" / "checkpoints").glob("step-*"))]
    assert {checkpoint.metric for checkpoint in checkpoints} == {"loss"}
    assert {checkpoint.state.step: checkpoint.score for checkpoint in checkpoints}.items() <= values.items()
    assert min(values.values()) in [checkpoint.score for checkpoint in checkpoints]
    final = json.loads((tmp_path / "run" / "bundle" / "provenance.json").read_text())["final"]
    scores = final["scores"]
    assert final["metric"] == "loss"
    assert scores[final["chosen"]] == min(scores.values())
