"""Reranking of n-best lists by weights that a development set gives, by minimum Bayes risk and by references."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

import pytest
import sacrebleu
from sacrebleu.metrics.chrf import CHRF
from support.services.serving import save_small_bundle

from dstransformer.cli import main
from dstransformer.data import Corpus
from dstransformer.decoding.scoring import Scorer
from dstransformer.errors import DataError
from dstransformer.evaluation.bleu import score
from dstransformer.extras.rerank.reranking import (
    GRID,
    Candidate,
    ExpectedUtility,
    Utility,
    Weighting,
    Weights,
    best_lines,
    iter_nbest,
    json_lines,
    tune,
    with_reverse_scores,
)

REFERENCES = [
    "Zwei Männer unterhalten sich vor einem kleinen Haus in der Stadt.",
    "Ein Hund läuft über die grüne Wiese und bellt laut.",
    "Die Frau liest ein altes Buch im Garten hinter dem Haus.",
]


def hypothesis(line: int, rank: int, text: str, log_probability: float, **more: Any) -> dict[str, Any]:
    fields = {"line": line, "rank": rank, "source": f"source {line}", "text": text, "score": log_probability / 9}
    return fields | {"log_probability": log_probability, "tokens": len(text.split())} | more


def write(path: Path, *hypotheses: dict[str, Any]) -> str:
    path.write_text("".join(json.dumps(fields, ensure_ascii=False) + "\n" for fields in hypotheses), encoding="utf-8")
    return str(path)


@pytest.fixture
def nbest(tmp_path: Path) -> str:
    """Lists of lines 1, 2 and 4 in which the reverse model would choose the second hypothesis."""
    found = []
    for line, reference in zip((1, 2, 4), REFERENCES, strict=True):
        found.append(hypothesis(line, 1, " ".join(reference.split()[:-3]), -4.0, reverse_log_probability=-20.0))
        found.append(hypothesis(line, 2, reference, -4.5, reverse_log_probability=-9.0))
        found.append(hypothesis(line, 3, reference + " Ja ja ja ja.", -6.0, reverse_log_probability=-15.0))
    return write(tmp_path / "nbest.jsonl", *found)


@pytest.fixture
def references(tmp_path: Path) -> str:
    """The references, with one for the empty line 3, which the lists lack."""
    (tmp_path / "ref").write_text("\n".join((*REFERENCES[:2], "Fehlt.", REFERENCES[2])) + "\n", encoding="utf-8")
    return str(tmp_path / "ref")


def test_the_terms_are_added_with_their_weights(nbest: str) -> None:
    groups = list(iter_nbest(nbest))
    assert next(best_lines(groups, Weights(1, 0, 0))) == " ".join(REFERENCES[0].split()[:-3])
    assert list(best_lines(groups, Weights(1, 0.5, 0))) == [*REFERENCES[:2], "", REFERENCES[2]]
    assert list(best_lines(groups, Weights(1, 0, 9)))[1].endswith("Ja ja ja ja.")
    first = json.loads(next(json_lines(groups, Weights(1, 0.5, 0.25))))
    assert first["score"] == pytest.approx(-4.5 + 0.5 * -9.0 + 0.25 * first["tokens"])
    assert (first["rank"], first["first_rank"], first["first_score"]) == (1, 2, -0.5)


def test_each_line_of_the_output_is_that_of_a_source_line(tmp_path: Path) -> None:
    """Other programs may write texts with line ends."""
    lists = [hypothesis(line, 1, "ein\nHund\r\n\u2028bellt", -1.0, reverse_log_probability=-1.0) for line in (1, 2)]
    groups = list(iter_nbest(write(tmp_path / "nbest", *lists)))
    assert list(best_lines(groups, Weights(1, 1, 0))) == ["ein Hund bellt"] * 2


def test_the_reverse_scores_are_those_of_the_model(tmp_path: Path) -> None:
    bundle = save_small_bundle(tmp_path / "bundle")
    lists = [hypothesis(line, rank, f"Wort {rank}", -1.0) for line in (1, 2) for rank in (1, 2, 3)]
    path = write(tmp_path / "nbest", *lists)
    scorer = Scorer.load(bundle)
    found = [c for group in with_reverse_scores(iter_nbest(path), scorer, path) for c in group]
    expected = scorer.score([fields["text"] for fields in lists], [fields["source"] for fields in lists])
    assert [c.reverse for c in found] == [score.log_probability for score in expected]
    with pytest.raises(DataError, match="reverse_log_probability"):
        list(with_reverse_scores(iter_nbest(path), None, path))
    with pytest.raises(DataError, match=r"source line 1: .*--max-tokens"):
        list(with_reverse_scores(iter_nbest(path), Scorer.load(bundle, max_tokens=1), path))


def test_a_reverse_model_of_the_same_direction_is_noticed(
    trained: Path, toy_corpus: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    split = Corpus.open(toy_corpus).split("validation")
    pairs = list(zip(split.src_texts(), split.tgt_texts(), strict=True))[:20]
    lists = {
        "same": [hypothesis(line, 1, tgt, -1.0, source=src) for line, (src, tgt) in enumerate(pairs, 1)],
        "other": [hypothesis(line, 1, src, -1.0, source=tgt) for line, (src, tgt) in enumerate(pairs, 1)],
    }
    for name, hypotheses in lists.items():
        path = write(tmp_path / name, *hypotheses)
        list(with_reverse_scores(iter_nbest(path), Scorer.load(trained), path))
        assert ("name a model of the other direction" in caplog.text) == (name == "same")
        caplog.clear()


def test_tuning_finds_the_weights_with_the_highest_bleu(nbest: str, references: str) -> None:
    groups = list(iter_nbest(nbest))
    lines = Path(references).read_text(encoding="utf-8").splitlines()
    found = tune(groups, lines, references)
    assert found.bleu == score([*REFERENCES[:2], "", REFERENCES[2]], lines)[0]
    assert found.best_bleu == pytest.approx(found.bleu.value)
    assert found.first_bleu == pytest.approx(score(list(best_lines(groups, Weights(1, 0, 0))), lines)[0].value)
    assert found.first_bleu < found.bleu.value


def test_no_other_weights_of_the_grid_do_better(tmp_path: Path) -> None:
    """The sums of counts choose as sacrebleu does on the whole text."""
    rng = random.Random(3)
    words = " ".join(REFERENCES).split()
    lists, lines = [], []
    for line in range(1, 13):
        lines.append(" ".join(rng.choices(words, k=8)))
        for rank in range(1, 5):
            text = " ".join(word if rng.random() < 0.7 else rng.choice(words) for word in lines[-1].split())
            fields = hypothesis(line, rank, text, -rng.random() * 5, reverse_log_probability=-rng.random() * 5)
            lists.append(fields | {"tokens": rng.randrange(4, 12)})
    groups = list(iter_nbest(write(tmp_path / "nbest", *lists)))
    found = tune(groups, lines, "ref")
    scores = {weights: score(list(best_lines(groups, weights)), lines)[0].value for weights in GRID[::7]}
    assert found.bleu.value >= max(scores.values()) - 1e-9
    assert found.bleu.value == score(list(best_lines(groups, found.weights)), lines)[0].value
    assert len(set(scores.values())) > 5
    assert len(GRID) == 651
    assert not any("-0 " in f"{weights} " for weights in GRID)


def test_the_command_tunes_and_applies(
    nbest: str, references: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["rerank", nbest, "--tune", references, "--output", str(tmp_path / "tuned")]) == 0
    said = capsys.readouterr().out
    assert main(["rerank", nbest, "--tune", references, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    weights = [f"{found['weights'][name]:g}" for name in ("forward", "reverse", "length")]
    assert said.startswith(f"--weights {' '.join(weights)}: BLEU {found['bleu']:.2f} (nrefs:1")
    assert f"the first of each list {found['first_bleu']:.2f}" in said
    assert main(["rerank", nbest, "--weights", *weights]) == 0
    assert capsys.readouterr().out == (tmp_path / "tuned").read_text(encoding="utf-8")
    assert main(["rerank", nbest, "--weights", "1", "0", "-0.5", "--format", "jsonl"]) == 0
    ranks = [json.loads(line)["rank"] for line in capsys.readouterr().out.splitlines()]
    assert ranks == [1, 2, 3] * 3


WORDS = ["ein", "kleiner", "Hund", "läuft", "über", "die", "grüne", "Wiese", "und", "bellt", "laut"]


def draw_list(folder: Path, seed: int) -> list[Candidate]:
    """Hypotheses with changed and left-out words, some of them twice."""
    draw = random.Random(seed)
    texts = [" ".join(draw.choice(WORDS) if draw.random() < 0.3 else word for word in WORDS[: draw.randint(4, 11)])
             for _ in range(7)]  # fmt: skip
    found = [hypothesis(1, 1, text, draw.uniform(-9, -1)) for text in (*texts, texts[0], texts[3])]
    (group,) = iter_nbest(write(folder / "drawn", *found))
    return group


@pytest.mark.parametrize("weighting", ["uniform", "model"])
@pytest.mark.parametrize("utility", ["chrf", "bleu"])
def test_the_expected_utility_is_that_of_enumeration(utility: Utility, weighting: Weighting, tmp_path: Path) -> None:
    function = sacrebleu.sentence_chrf if utility == "chrf" else sacrebleu.sentence_bleu
    for seed in range(5):
        group = draw_list(tmp_path, seed)
        weights = [math.exp(one.log_probability) if weighting == "model" else 1.0 for one in group]
        expected = []
        for one in group:
            gains = [function(one.text, [other.text]).score for other in group]
            expected.append(sum(w * gain for w, gain in zip(weights, gains, strict=True)) / sum(weights))
        found = ExpectedUtility(utility, weighting).scores(group)
        assert found == pytest.approx(expected)
        assert len({round(value, 9) for value in found}) > 3


def test_improbable_hypotheses_have_weights(tmp_path: Path) -> None:
    path = write(tmp_path / "n", hypothesis(1, 1, "ein Hund", -2000.0), hypothesis(1, 2, "eine Katze", -2001.0))
    first, second = ExpectedUtility("chrf", "model").scores(next(iter_nbest(path)))
    assert first > second > 0


def test_the_command_takes_what_is_most_like_the_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts = ["Das ist etwas ganz anderes.", "Ein Hund läuft.", "Ein Hund läuft weg.", "Der Hund läuft weg."]
    path = write(
        tmp_path / "n", *(hypothesis(line, 1, text, -1.0 - rank) for line in (1, 3) for rank, text in enumerate(texts))
    )
    assert main(["rerank", path, "--mbr", "chrf"]) == 0
    assert capsys.readouterr().out == "Ein Hund läuft weg.\n\nEin Hund läuft weg.\n"
    assert main(["rerank", path, "--mbr", "chrf", "--mbr-weights", "model"]) == 0
    assert capsys.readouterr().out.startswith("Das ist etwas ganz anderes.\n"), "it has nearly two thirds of the mass"
    assert main(["rerank", path, "--mbr", "bleu", "--format", "jsonl"]) == 0
    best = json.loads(capsys.readouterr().out.splitlines()[0])
    assert (best["text"], best["rank"]) == ("Ein Hund läuft weg.", 1)


def test_the_oracle_is_the_maximum_over_all_hypotheses_and_the_first_of_equals(tmp_path: Path) -> None:
    draw = random.Random(3)
    texts = {line: [" ".join(draw.choices(WORDS, k=5)) for _ in range(6)] for line in range(1, 21) if line != 7}
    references = [" ".join(draw.choices(WORDS, k=5)) for _ in range(20)]
    (tmp_path / "ref").write_text("\n".join(references) + "\n", encoding="utf-8")
    path = write(tmp_path / "n", *(hypothesis(line, 1, text, -1.0) for line in texts for text in texts[line] * 2))
    assert main(["rerank", path, "--oracle", str(tmp_path / "ref"), "--output", str(tmp_path / "out")]) == 0
    chosen = (tmp_path / "out").read_text(encoding="utf-8").split("\n")[:-1]
    assert chosen[6] == "", "line 7 has no hypotheses"
    for line, own in texts.items():
        scores = [CHRF().sentence_score(text, [references[line - 1]]).score for text in own]
        assert chosen[line - 1] == own[scores.index(max(scores))]


@pytest.mark.parametrize(("line", "complaint"), [
    ("[1]", r"line 2: '\[1\]' is not a JSON object \(a list\); `dst translate --n-best N --format jsonl`"),
    ("{", "line 2: '{' is not a JSON object"),
    ('{"source": "a", "hypotheses": []}', "line 2 has no 'line': `dst translate --n-best N --format jsonl` writes"),
    (json.dumps(hypothesis(0, 1, "a", -1.0)), "line 2: line is 0: "),
    (json.dumps(hypothesis(1, 1, "a", -1.0) | {"text": None}), "line 2: text is None: "),
    (json.dumps(hypothesis(1, 1, "a", float("nan"))), "line 2: log_probability is nan: "),
    (json.dumps(hypothesis(1, 1, "a", -1.0, reverse_log_probability="x")), "line 2: reverse_log_probability is 'x': "),
    (json.dumps(hypothesis(1, 1, "a", -1.0) | {"tokens": True}), "line 2: tokens is True"),
    (json.dumps(hypothesis(1, 1, "a", -1)).replace("-1", "1" + "0" * 400), "line 2: log_probability is 1000"),
    (json.dumps(hypothesis(1, 1, "a", -1.0) | {"tokens": 10**400}), "line 2: tokens is 1000"),
    (json.dumps(hypothesis(1, 1, "a\ud800", -1.0)), r"line 2: .* \('\\ud800' is a lone surrogate\)"),
    (json.dumps(hypothesis(1, 1, "a", -1.0, note="\udfff")), r"line 2: .* \('\\udfff' is a lone surrogate\)"),
    (json.dumps(hypothesis(2, 1, "a", -1.0)), "the hypotheses of source line 2 come after those of line 5: sort them"),
])  # fmt: skip
def test_lists_that_are_none_are_refused(tmp_path: Path, line: str, complaint: str) -> None:
    path = tmp_path / "nbest"
    path.write_text(json.dumps(hypothesis(5, 1, "a", -1.0)) + f"\n{line}\n")
    with pytest.raises(DataError, match=complaint):
        list(iter_nbest(str(path)))


@pytest.mark.parametrize(("options", "complaint"), [
    (["--weights", "1", "0", "inf"], "inf is not a finite number"),
    (["--tune", "two"], "two has 2 lines but the n-best list goes on to source line 4"),
    (["--tune", "ref", "--output", "-"], "--output - would mix the translations with what --tune prints"),
    (["--tune", "ref", "--output", "ref", "--overwrite"], "ref is an input of this command"),
    (["--weights", "1", "0", "0", "--json"], "--json is for --tune"),
    (["--weights", "1", "0", "0", "--batch-tokens", "9"], "--batch-tokens is for the model of --reverse: name it"),
    (["--tune", "ref", "--format", "jsonl"], "--format is for --output"),
    (["--weights", "1", "0", "0", "--reverse", "nowhere"], "nowhere is not a bundle: it does not exist"),
    (["--weights", "1", "0", "0", "--mbr-weights", "model"], "--mbr-weights is for --mbr: add it"),
    (["--mbr", "chrf", "--reverse", "nowhere"], "--reverse is for --weights and --tune: --mbr uses no other model"),
    (["--mbr", "chrf", "--json"], "--json is for --tune"),
    (["--oracle", "two"], "two has 2 lines but the n-best list goes on to source line 4"),
    (["--oracle", "five"], "five has 5 lines but the n-best list ends at source line 4"),
    (["--oracle", "ref", "--json"], "--json does not go with --oracle"),
    (["--oracle", "ref", "--format", "jsonl"], "--format jsonl does not go with --oracle"),
    (["--oracle", "ref", "--reverse", "bundle"], "--reverse does not go with --oracle"),
])  # fmt: skip
def test_slips_are_named(
    nbest: str,
    references: str,
    options: list[str],
    complaint: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = Path(nbest).parent
    (folder / "two").write_text("eins\nzwei\n")
    (folder / "five").write_text("eins\nzwei\ndrei\nvier\nfünf\n")
    monkeypatch.chdir(folder)
    before = Path(references).read_bytes()
    assert main(["rerank", nbest, *options]) == 2
    assert complaint in capsys.readouterr().err
    assert Path(references).read_bytes() == before
