"""The parent run in MLflow, and the report of the workflow."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

from dstransformer.config import load_config
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
    lines = ["# Report", "", "| test set | system | BLEU | chrF2 |", "|---|---|---|---|"]
    for found in report["scores"]:
        name = found["test_set"]["name"]
        system = Path(found["system"]).name.removeprefix(f"{name}.")
        metrics = found["metrics"]
        lines.append(f"| {name} | {system} | {metrics['bleu']:.2f} | {metrics['chrf']:.2f} |")
    lines += ["", "| model, engine | bytes | sentences a second on one core |", "|---|---|---|"]
    for name, size in report["bytes"].items():
        lines.append(f"| {name} | {size:,} | {report['speed'][name]['sentences_per_second']:.1f} |")
    lines += ["", "| step | seconds | command |", "|---|---|---|"]
    for record in report["steps"]:
        lines.append(f"| {record['step']} | {record['seconds']:.1f} | `{record['command']}` |")
    lines += ["", "| file | SHA-256 |", "|---|---|"]
    lines += [f"| {p['path']} | `{p['sha256']}` |" for record in report["steps"] for p in record["products"]]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(run_guarded("distill", main))
