from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dstransformer.cli import main
from dstransformer.errors import UserError
from dstransformer.extras.paper.table2 import PAPER, RunResult, format_table, read_run, sustained_tflops_of, to_json
from dstransformer.io.products import write_marker

P100 = "Tesla P100-SXM2-16GB"
SIGNATURES = {"bleu_signature": "tok:13a", "bleu_compound_split_signature": "compounds:split"}
FINAL = {"kind": "final_test", "step": 9, "bleu": 26.4, "bleu_compound_split": 27.31, **SIGNATURES}
COST = {"kind": "cost", "step": 9, "flops": 9.5e17, "pflop_days": 0.011, "device_hours": 96.0}


def write_run(folder: Path, *records: dict[str, Any], bundle: str = "bundle", **provenance: Any) -> Path:
    (folder / bundle).mkdir(parents=True)
    write_marker(folder, "run")
    (folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    known = {"src_lang": "en", "tgt_lang": "de", "hardware": {"device": P100}, "corpus": "/data/wmt14.en-de"}
    known |= {"sources": ["wmt14"], **provenance}
    (folder / bundle / "provenance.json").write_text(json.dumps(known))
    return folder


def row_of(text: str, run: Path) -> list[str]:
    (line,) = (line for line in text.splitlines() if line.startswith(f"| {run} |"))
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_the_papers_costs_follow_from_its_training_times() -> None:
    """12 hours for 100,000 steps of the base model, 3.5 days for the big one, on eight P100 (section 5.2)."""
    costs = {row.model: row.flops_de for row in PAPER}
    for hours, model in ((12, "Transformer (base model)"), (3.5 * 24, "Transformer (big)")):
        run = RunResult("run", device_hours=8 * hours, sustained_tflops=9.5)
        assert run.paper_flops == pytest.approx(costs[model], rel=0.01)


@pytest.mark.parametrize(("device", "tflops"), [
    (P100, 9.5), ("Tesla K80", 2.8), ("Tesla K40m", 3.7), ("Tesla K40", 3.7), ("Tesla M40 24GB", 6.0),
    ("NVIDIA H100 80GB HBM3", None), ("AMD EPYC 9554 64-Core Processor", None),
])  # fmt: skip
def test_sustained_tflops_of_the_papers_devices(device: str, tflops: float | None) -> None:
    assert sustained_tflops_of(device) == tflops


def test_a_finished_run_is_listed_below_the_paper(tmp_path: Path) -> None:
    first, last = {**FINAL, "bleu": 1.0, "bleu_compound_split": 1.0}, {**COST, "device_hours": 12 * 8}
    run = write_run(tmp_path / "run", {**COST, "flops": 1.0}, first, FINAL, last)
    text = format_table([read_run(run)])
    assert row_of(text, run)[1:] == ["27.31", "–", "3.3e18", "–", "9.5e17"]
    assert "| Transformer (big) | 28.4 | 41.8 | 2.3e19 | 2.3e19 | – |" in text
    assert "| Deep-Att + PosUnk Ensemble | – | 40.4 | – | 8.0e20 | – |" in text
    assert "- BLEU (compound-split) 27.31 (compounds:split)\n- BLEU 26.40 (tok:13a)\n" in text
    assert "newstest2014 of /data/wmt14.en-de" in text
    assert "96 device hours × 9.5 TFLOPS" in text
    assert "warning" not in text


def test_french_has_its_own_columns_and_sacrebleus_score(tmp_path: Path) -> None:
    final = {"kind": "final_test", "step": 9, "bleu": 38.0, "bleu_signature": "tok:13a"}
    run = write_run(tmp_path / "run", final, COST, tgt_lang="fr")
    text = format_table([read_run(run)])
    assert row_of(text, run)[1:] == ["–", "38.00", "–", "3.3e18", "9.5e17"]
    assert "an earlier version" not in text


def test_other_devices_need_sustained_tflops(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", FINAL, COST, hardware={"device": "NVIDIA H100"})
    text = format_table([read_run(run)])
    assert row_of(text, run)[3] == "no TFLOPS known"
    assert "the paper has no sustained TFLOPS for NVIDIA H100; give --sustained-tflops" in text
    assert row_of(format_table([read_run(run, 400.0)]), run)[3] == "1.4e20"


def test_missing_figures_are_a_dash_and_a_note(tmp_path: Path) -> None:
    older = write_run(tmp_path / "older", {key: FINAL[key] for key in ("kind", "step", "bleu", "bleu_signature")})
    text = format_table([read_run(older)])
    assert row_of(text, older)[1:] == ["26.40", "–", "–", "–", "–"]
    assert "its BLEU is sacrebleu's" in text
    assert "it has no cost: it has not computed anything" in text
    unfinished = write_run(tmp_path / "unfinished", COST, bundle="checkpoints/step-00000004/bundle")
    text = format_table([read_run(unfinished)])
    assert row_of(text, unfinished)[1:] == ["–", "–", "3.3e18", "–", "9.5e17"]
    assert "it has no final evaluation: the run has not finished" in text
    untested = write_run(tmp_path / "untested", {**FINAL, "kind": "final_validation"}, COST)
    text = format_table([read_run(untested)])
    assert row_of(text, untested)[1] == "–"
    assert "no test split, so it has no test score; on validation BLEU 26.40 (tok:13a)" in text


def test_mismatched_figures_are_noted(tmp_path: Path) -> None:
    final = {"kind": "final_test", "step": 9, "bleu_first_500": 26.4, "bleu_compound_split_first_500": 27.0}
    run = write_run(tmp_path / "run", final, {**COST, "step": 12})
    text = format_table([read_run(run)])
    assert "BLEU (compound-split) (first 500 sentences) 27.00" in text
    assert "its BLEU is of update 9, its cost of update 12" in text


def test_a_corpus_other_than_wmt14_causes_a_warning(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", FINAL, COST, sources=["files"])
    assert f"warning: {run}: its corpus (source files) is not WMT14" in format_table([read_run(run)])
    swapped = write_run(tmp_path / "swapped", FINAL, COST, src_lang="de", tgt_lang="en")
    text = format_table([read_run(swapped)])
    assert "the table has no column for de-en" in text
    assert row_of(text, swapped)[1:5] == ["–"] * 4


def test_a_run_without_its_source_is_noted(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", FINAL, COST)
    path = run / "bundle" / "provenance.json"
    provenance = json.loads(path.read_text())
    del provenance["sources"]
    path.write_text(json.dumps(provenance))
    assert "no record says whether its corpus is WMT14" in format_table([read_run(run)])


def test_damaged_metrics_are_named(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", COST | {"flops": "many"})
    with pytest.raises(UserError, match="flops is 'many'"):
        read_run(run)


def test_folders_without_a_run_are_refused(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", FINAL, COST)
    with pytest.raises(UserError, match="bundle"):
        read_run(run / "bundle")


def test_json_has_the_same_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = write_run(tmp_path / "run", FINAL, COST, hardware={"device": "NVIDIA H100"}, sources=["toy"])
    assert main(["table2", str(run), "--sustained-tflops", "100", "--json"]) == 0
    table = json.loads(capsys.readouterr().out)
    assert table == json.loads(json.dumps(to_json([read_run(run, 100.0)])))
    (found,) = table["runs"]
    assert (found["bleu"]["value"], found["sacrebleu"]["value"]) == (27.31, 26.4)
    assert found["flops_by_the_papers_method"] == pytest.approx(96 * 3600 * 1e14)
    assert (found["flops_counted"], found["sustained_tflops"]) == (9.5e17, 100.0)
    assert table["paper"][-2] == {
        "model": "Transformer (base model)",
        "bleu": {"en-de": 27.3, "en-fr": 38.1},
        "flops": {"en-de": 3.3e18, "en-fr": 3.3e18},
    }
    assert len(table["warnings"]) == 1
