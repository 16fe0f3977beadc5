"""The parent run in MLflow, and the report of the workflow."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

from dstransformer.config import load_config
from dstransformer.errors import DataError
from dstransformer.io.files import replace_file
from dstransformer.io.json_text import read_json
from dstransformer.terminal.command import run_guarded
from dstransformer.tracking import RunGroup

FORMAT_VERSION = 1


def main() -> int:
    """Start the parent run, or write the report and end that run."""
    parser = argparse.ArgumentParser(description="Keep the workflow's run in MLflow.")
    parser.add_argument("act", choices=("start", "finish"))
    act = parser.parse_args().act
    folder = Path.cwd()
    group = RunGroup(folder, os.environ["MLFLOW_TRACKING_URI"], load_config("base").tracking.experiment)
    if act == "start":
        group.start(f"distillation · {folder.name}", {}, "snakemake")
        replace_file(folder / "tracking.id", group.run_id or "")
        return 0
    report = collect(folder)
    page = to_markdown(report)
    replace_file(folder / "report.json", json.dumps(report, indent=2, ensure_ascii=False) + "\n")
    replace_file(folder / "report.md", page)
    group.log(page, ["report.md", "report.json"])
    group.finish("finished")
    print(page)
    return 0


def collect(folder: Path) -> dict[str, Any]:
    """What the steps found, as plain data."""
    records = [read_json(path) for path in sorted((folder / "records").glob("*.json"), key=lambda p: p.stat().st_mtime)]
    speeds, sizes = {}, {}
    for record in records:
        kind, _, rest = record["step"].partition(".")
        if kind == "speed":
            model, engine = rest.split(".")
            speeds[f"{model}, {engine}"] = read_json(Path(record["products"][0]["path"]))
        if record["step"].startswith("export_"):
            sizes[f"{record['step'].removeprefix('export_')}, ct2"] = sum(p["bytes"] for p in record["products"])
        if record["step"] in ("teacher", "student"):
            weights = [p["bytes"] for p in record["products"] if p["path"].endswith("model.safetensors")]
            sizes[f"{record['step']}, torch"] = sum(weights)
    if missing := [name for name in speeds if name not in sizes]:
        raise DataError(
            f"a record of {missing[0].partition(',')[0]} is gone from records/: run with --forcerun translate"
        )
    scores = read_json(folder / "scores.json")
    return {
        "format_version": FORMAT_VERSION,
        "scores": scores["results"],
        "significance": scores["significance"],
        "bytes": sizes,
        "speed": speeds,
        "steps": records,
    }


def to_markdown(report: dict[str, Any]) -> str:
    """The report as a page."""
    baseline = Path(report["significance"][0]["baseline"]).name.partition(".")[2]
    lines = ["# Report", "", f"p: paired bootstrap against {baseline}.", ""]
    lines += table("test set", "system", "BLEU", "p", "chrF2", "p")
    chance = {found["system"]: found for test in report["significance"] for found in test["systems"]}
    for found in report["scores"]:
        test, _, system = Path(found["system"]).name.partition(".")
        values = [(found["metrics"][name], chance[found["system"]][name]["p_value"]) for name in ("bleu", "chrf")]
        lines.append(row(test, system, *(cell for value, p in values for cell in (f"{value:.2f}", shown_chance(p)))))
    lines += ["", "One core, first test set.", "", *table("model, engine", "bytes", "sentences a second")]
    for name, speed in report["speed"].items():
        lines.append(row(name, f"{report['bytes'][name]:,}", f"{speed['sentences_per_second']:.1f}"))
    lines += ["", *table("step", "seconds", "command")]
    lines += [row(one["step"], f"{one['seconds']:.1f}", f"`{one['command']}`") for one in report["steps"]]
    lines += ["", *table("file", "SHA-256")]
    lines += [row(made["path"], f"`{made['sha256']}`") for one in report["steps"] for made in one["products"]]
    return "\n".join(lines) + "\n"


def table(*names: str) -> list[str]:
    """The head of a table."""
    return [row(*names), "|" + "---|" * len(names)]


def row(*cells: str) -> str:
    """A row of a table."""
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def shown_chance(p: float | None) -> str:
    """A p-value; the baseline has none."""
    return "" if p is None else f"{p:.3f}"


if __name__ == "__main__":
    sys.exit(run_guarded("distill", main))
