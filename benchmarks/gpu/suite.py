"""Training and decoding on one CUDA device, compared with the limits of the device.

Every case runs in a new process, so that cases share neither peak memory nor compiled code, and one that fails does not
stop the others.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu.cases import SMOKE, Case, Choice, Work, build_cases
from benchmarks.gpu.device import describe
from benchmarks.gpu.report import describe_profile, format_limits, format_row, format_tables
from benchmarks.lib.machine import ROOT, format_header
from dstransformer.training.metrics import datasheet_peak

#: Minimum seconds left to start another case.
MIN_SECONDS = 15.0

#: How much is printed of the end of what a case that failed has printed.
LOG_CHARACTERS = 4000

#: Environment of a smoke run: hide any GPU, use one thread for tiny tensors, and run the code paths of a GPU.
SMOKE_ENVIRONMENT = {
    "CUDA_VISIBLE_DEVICES": "",
    "DS_ACCELERATOR": "cpu",
    "OMP_NUM_THREADS": "1",
    "DST_CPU_KERNELS": "0",
}


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--models", nargs="+", choices=("base", "big"), default=["base", "big"])
    parser.add_argument("--acts", nargs="+", choices=("train", "decode"), default=["train", "decode"])
    parser.add_argument("--precisions", nargs="+", choices=("bf16", "fp16", "fp32"), help="default: bf16 fp16")
    parser.add_argument("--backends", nargs="+", choices=("varlen", "padded"), help="default: varlen, padded")
    parser.add_argument("--loops", nargs="+", choices=("engine", "bare"), default=["engine"])
    parser.add_argument("--micro-batches", type=_count, help="micro-batches per update; default: 1, padded 8")
    parser.add_argument("--stage", type=int, choices=(0, 1, 2, 3), default=1, help="the ZeRO stage; default: 1")
    parser.add_argument("--rounds", type=_count, help="timed rounds; default: 5")
    parser.add_argument("--json", type=Path, help="file for all measurements")
    parser.add_argument("--profile", type=Path, metavar="FOLDER", help="folder for the full profile of every case")
    parser.add_argument("--case-seconds", type=float, default=120.0, help="time limit of a case")
    parser.add_argument("--minutes", type=float, default=9.0, help="time limit of all cases together")
    parser.add_argument("--smoke", action="store_true", help="run on the CPU with tiny sizes: padded, fp32 and bf16")


def main(options: argparse.Namespace) -> int:
    """Run the selected cases. Return 0 if all succeeded, 1 if one failed, 2 if the options or the machine forbid it."""
    if options.smoke and "varlen" in (options.backends or ()):
        print("--smoke runs on the CPU, which only has the backend padded: remove --backends", file=sys.stderr)
        return 2
    if not options.smoke and not torch.cuda.is_available():
        print(
            f"the benchmark gpu needs a CUDA device, but torch {torch.__version__} finds none: use a machine with one, "
            "or add --smoke, which runs the same code on the CPU with tiny sizes",
            file=sys.stderr,
        )
        return 2
    machine = describe(torch.device("cpu" if options.smoke else "cuda"))
    print(format_header(machine, options.command))
    peak = None if options.smoke else datasheet_peak(machine)
    known = "unknown" if peak is None else f"{peak / 1e12:,.0f} TFLOP/s"
    print(f"dense bf16 peak from the data sheet: {known}", flush=True)
    cases = [case for case in build_cases(_choose(options)) if case.act in options.acts]
    runs = _run_all(cases, options, peak)
    done = [(case, run["result"]) for case, run in runs if run["result"] is not None]
    for case, result in done:
        if result["profile"] is not None:
            print(f"\n{describe_profile(case, result)}")
    print(f"\n{format_limits(done)}\n\n{format_tables(done, peak)}")
    if options.json is not None:
        figures = [{"case": case.to_json(), **run} for case, run in runs]
        report = {"machine": machine, "datasheet_peak_flops": peak, "cases": figures}
        options.json.write_text(json.dumps(report, indent=1), encoding="utf-8")
    return 1 if any(run["status"].startswith("failed") for _, run in runs) else 0


def _count(text: str) -> int:
    if int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text}: give 1 or more")
    return int(text)


def _choose(options: argparse.Namespace) -> Choice:
    work = SMOKE if options.smoke else Work()
    return Choice(
        models=options.models,
        precisions=options.precisions or (["fp32", "bf16"] if options.smoke else ["bf16", "fp16"]),
        backends=options.backends or (["padded"] if options.smoke else ["varlen", "padded"]),
        loops=options.loops,
        micro_batches=options.micro_batches,
        work=replace(work, rounds=options.rounds or work.rounds),
        trace=None if options.profile is None else str(options.profile.absolute()),
        stage=options.stage,
    )


def _run_all(
    cases: Sequence[Case], options: argparse.Namespace, peak: float | None
) -> list[tuple[Case, dict[str, Any]]]:
    end = time.monotonic() + 60.0 * options.minutes
    runs = []
    for case in cases:
        left = end - time.monotonic()
        if left < MIN_SECONDS:
            run: dict[str, Any] = {"status": f"not run: no time left of {options.minutes:g} minutes", "result": None}
        else:
            run = _run(case, min(options.case_seconds, left), smoke=options.smoke)
        runs.append((case, run))
        shown = f"{case.name}: {run['status']}" if run["result"] is None else format_row(case, run["result"], peak)
        print(f"{shown} [{run.get('seconds', 0.0):.0f} s]", flush=True)
    return runs


def _run(case: Case, limit: float, *, smoke: bool) -> dict[str, Any]:
    """Run a case in a new process. Return its status and, if it succeeded in time, its measurements."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    if smoke:
        environment |= SMOKE_ENVIRONMENT
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="dst-gpu-bench-") as folder:
        log, result = Path(folder, "log"), Path(folder, "result.json")
        command = [sys.executable, "-m", "benchmarks.gpu.worker", json.dumps(case.to_json()), str(result)]
        with log.open("w") as output:
            process = subprocess.Popen(
                command, cwd=ROOT, env=environment, stdout=output, stderr=output, start_new_session=True
            )
            try:
                code = process.wait(limit)
            except subprocess.TimeoutExpired:
                return {"status": f"failed: not finished within {limit:.0f} s", "result": None, "seconds": limit}
            finally:
                # Also kill its children, such as compiler processes.
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        seconds = time.monotonic() - began
        if code != 0 or not result.exists():
            print(log.read_text(encoding="utf-8", errors="replace")[-LOG_CHARACTERS:], file=sys.stderr)
            return {"status": f"failed with {code}: {_last_line(log)}", "result": None, "seconds": seconds}
        return {"status": "done", "result": json.loads(result.read_text(encoding="utf-8")), "seconds": seconds}


def _last_line(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").split("\n")
    return next((line.strip()[:300] for line in reversed(lines) if line.strip()), "no output")
