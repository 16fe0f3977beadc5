"""The parent run in MLflow, and the report of the workflow: what each step to the shipped student costs and gains."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from dstransformer.config import load_config
from dstransformer.io.command import run_guarded
from dstransformer.io.files import replace_file
from dstransformer.io.json_text import read_json
from dstransformer.tracking.mlflow.location import resolve_experiment
from dstransformer.tracking.mlflow.parent_run import close_group, open_group

FORMAT_VERSION = 1

#: The weights in a bundle.
WEIGHTS = "model.safetensors"

#: The shortlist in an export, by CTranslate2's name.
VOCABULARY_MAP = "vmap.txt"

#: What changes from the system before to this one.
CHANGES = {
    "baseline": "the student's architecture",
    "student": "the teacher's translations",
    "finetuned": "updates with 8-bit weights",
    "shipped": "the shortlist",
}

#: The figures of a step of :func:`chains`, and how the report writes each.
CHAIN_FORMATS = {
    "bleu": ".2f", "bleu_difference": "+.2f", "bytes_factor": ".3f", "sentences_per_second_factor": ".2f",
}  # fmt: skip


def main() -> int:
    """Start the parent run, or write the report and end that run."""
    parser = argparse.ArgumentParser(description="Keep the workflow's run in MLflow.")
    parser.add_argument("act", choices=("start", "finish"))
    act = parser.parse_args().act
    folder = Path.cwd()
    store, experiment = os.environ["MLFLOW_TRACKING_URI"], resolve_experiment(load_config("base").tracking.experiment)
    tracked = folder / "tracking.id"  # empty if the store did not accept the run
    known = tracked.read_text(encoding="utf-8") if tracked.exists() else ""
    run_id = open_group(
        store, experiment, known or None, name=f"distillation · {folder.name}", params={}, source="snakemake"
    )
    if act == "start":
        replace_file(tracked, run_id or "")
        return 0
    report = collect(folder)
    page = to_markdown(report)
    replace_file(folder / "report.json", json.dumps(report, indent=2, ensure_ascii=False) + "\n")
    replace_file(folder / "report.md", page)
    if run_id is not None:
        files = [folder / "report.md", folder / "report.json"]
        close_group(store, run_id, note=page, files=files, metrics=metrics(report), status="finished")
    print(page)
    return 0


def collect(folder: Path) -> dict[str, Any]:
    """What the steps found, as plain data."""
    records = [read_json(path) for path in sorted((folder / "records").glob("*.json"), key=lambda p: p.stat().st_mtime)]
    scores, shipped = read_json(folder / "scores.json"), read_json(folder / "shipped.json")
    by_step = {record["step"]: record for record in records}
    speeds = {
        step.removeprefix("speed."): read_json(Path(record["products"][0]["path"]))
        for step, record in by_step.items()
        if step.startswith("speed.")
    }
    sizes = {name: size_of(name, by_step) for name in speeds}
    found: dict[str, dict[str, float]] = {
        name: {"bytes": sizes[name], "sentences_per_second": speed["sentences_per_second"]}
        for name, speed in speeds.items()
    }
    first = Path(scores["results"][0]["system"]).name.partition(".")[0]
    for result in scores["results"]:
        test, _, system = Path(result["system"]).name.partition(".")
        model, _, quantization = system.partition("-")
        name = f"{model}.{'ct2' if quantization or model == 'shipped' else 'torch'}"
        if test == first and name in found:
            found[name]["bleu"] = result["metrics"]["bleu"]
    shortlist = any(Path(made["path"]).name == VOCABULARY_MAP for made in by_step["ship"]["products"])
    return {
        "format_version": FORMAT_VERSION,
        "scores": scores["results"],
        "significance": scores["significance"],
        "shipped": shipped,
        "bytes": sizes,
        "speed": speeds,
        "chains": chains(found, shipped["model"], shortlist=shortlist),
        "cost": costs(records),
        "steps": records,
    }


def size_of(name: str, by_step: Mapping[str, Mapping[str, Any]]) -> int:
    """The bytes of what a speed was measured of: weights, or an export as it was used."""
    model, engine = name.split(".")
    if engine == "torch":
        return sum(made["bytes"] for made in by_step[model]["products"] if made["path"].endswith(WEIGHTS))
    if model == "shipped":
        return sum(made["bytes"] for made in by_step["ship"]["products"] if made["path"] != "shipped.json")
    products = by_step[f"export_{model}"]["products"]
    return sum(made["bytes"] for made in products if Path(made["path"]).name != VOCABULARY_MAP)


def metrics(report: Mapping[str, Any]) -> dict[str, float]:
    """The values of a report that MLflow gets."""
    found = {"cost/core_hours": report["cost"]["core_hours"], "cost/hours": report["cost"]["seconds"] / 3600}
    for result in report["scores"]:
        test, _, system = Path(result["system"]).name.partition(".")
        found[f"bleu/{test}/{system}"] = result["metrics"]["bleu"]
    for name, speed in report["speed"].items():
        found[f"sentences_per_second/{name}"] = speed["sentences_per_second"]
        found[f"bytes/{name}"] = report["bytes"][name]
    return found


def to_markdown(report: Mapping[str, Any]) -> str:
    """The report as a page."""
    baseline = Path(report["significance"][0]["baseline"]).name.partition(".")[2]
    model, why = report["shipped"]["model"], report["shipped"]["why"]
    lines = ["# Report", "", f"exported/shipped is {model}: {why}.", ""]
    lines += [f"p: paired bootstrap against {baseline}.", ""]
    lines += table("test set", "system", "BLEU", "p", "chrF2", "p")
    chance = {found["system"]: found for test in report["significance"] for found in test["systems"]}
    for found in report["scores"]:
        test, _, system = Path(found["system"]).name.partition(".")
        cells = []
        for name in ("bleu", "chrf"):
            p = chance[found["system"]][name]["p_value"]  # the baseline has none
            cells += [f"{found['metrics'][name]:.2f}", "" if p is None else f"{p:.3f}"]
        lines.append(row(test, system, *cells))
    lines += ["", "One core, first test set.", "", *table("model.engine", "bytes", "sentences a second")]
    for name, speed in report["speed"].items():
        lines.append(row(name, f"{report['bytes'][name]:,}", f"{speed['sentences_per_second']:.1f}"))
    lines += ["", "What each step changes: BLEU on the first test set, bytes, and speed on one core.", ""]
    lines += table("path", "from", "to", "what changes", "BLEU", "difference", "bytes, times", "speed, times")
    for step in report["chains"]:
        cells = [format(step[name], form) if name in step else "" for name, form in CHAIN_FORMATS.items()]
        lines.append(row(step["path"], step["from"], step["to"], step["change"], *cells))
    lines += ["", "Cost. A step that was interrupted counts from its last start.", ""]
    lines += table("step", "seconds", "cores", "core hours")
    cost = report["cost"]
    for name, step in cost["steps"].items():
        lines.append(row(name, f"{step['seconds']:.1f}", str(step["cores"]), f"{step['core_hours']:.4f}"))
    lines.append(row("all", f"{cost['seconds']:.1f}", "", f"{cost['core_hours']:.4f}"))
    lines += ["", *table("step", "command")]
    lines += [row(one["step"], f"`{one['command']}`") for one in report["steps"]]
    lines += ["", *table("file", "SHA-256")]
    lines += [row(made["path"], f"`{made['sha256']}`") for one in report["steps"] for made in one["products"]]
    return "\n".join(lines) + "\n"


def table(*names: str) -> list[str]:
    """The head of a table."""
    return [row(*names), "|" + "---|" * len(names)]


def row(*cells: str) -> str:
    """A row of a table."""
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def chains(found: Mapping[str, Mapping[str, float]], shipped: str, *, shortlist: bool) -> list[dict[str, Any]]:
    """The steps of two paths: from the teacher in PyTorch to what is shipped, and within CTranslate2.

    Args:
        found: BLEU on the first test set, bytes, and sentences a second on one core, of each system by model and
            engine, such as ``student.ct2``; what was not measured is left out.
        shipped: The student that is shipped.
        shortlist: Whether its export has a shortlist.

    Returns:
        For each step its path, the systems before and after it, what changes, the values after it and their changes:
        the difference in BLEU, and the factors of bytes and of speed. The last step of a path is all of it.
    """
    ends = ["finetuned.ct2"] if "finetuned.ct2" in found else []
    last = [f"{shipped}.ct2", *(["shipped.ct2"] if shortlist else [])]
    paths = {
        "PyTorch, then CTranslate2": ["teacher.torch", "baseline.torch", "student.torch", "student.ct2"],
        "CTranslate2": ["teacher.ct2", "student.ct2"],
    }
    steps = []
    for path, names in paths.items():
        present = [name for name in names if name in found]
        if len(present) < 2:
            continue
        pairs = [*pairwise(present), *((present[-1], end) for end in ends)]
        pairs += pairwise(last)
        steps += [_step(found, path, one, other) for one, other in pairs]
        if len(pairs) > 1:
            steps.append(_step(found, path, present[0], last[-1]) | {"change": "all of it"})
    return steps


def _step(found: Mapping[str, Mapping[str, float]], path: str, one: str, other: str) -> dict[str, Any]:
    before, after = found[one], found[other]
    step: dict[str, Any] = {"path": path, "from": one, "to": other, "change": _change(one, other), **after}
    if "bleu" in before and "bleu" in after:
        step["bleu_difference"] = round(after["bleu"] - before["bleu"], 4)
    for name in ("bytes", "sentences_per_second"):
        if before.get(name) and name in after:
            step[f"{name}_factor"] = round(after[name] / before[name], 4)
    return step


def _change(one: str, other: str) -> str:
    (before, engine), (after, other_engine) = one.split("."), other.split(".")
    if engine != other_engine:
        return "8-bit weights and the engine"
    if before == "teacher" and after == "student":
        return f"{CHANGES['baseline']} and {CHANGES['student']}"
    return CHANGES[after]


def costs(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Seconds, cores and core hours of each step, and of all, from records without ``cores`` too: they had one."""
    steps = {
        one["step"]: {
            "seconds": one["seconds"],
            "cores": one.get("cores", 1),
            "core_hours": round(one["seconds"] * one.get("cores", 1) / 3600, 6),
        }
        for one in records
    }
    return {
        "steps": steps,
        "seconds": round(sum(one["seconds"] for one in steps.values()), 2),
        "core_hours": round(sum(one["core_hours"] for one in steps.values()), 6),
    }


if __name__ == "__main__":
    sys.exit(run_guarded("distill", main))
