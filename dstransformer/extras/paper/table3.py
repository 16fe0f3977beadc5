"""Trains the rows of Table 3, each as a run of ``dst train`` in a child process.

Workers share only the output folder. A worker locks the row that it trains, so that any number of workers, started
together by a launcher or one after the other, trains each row once.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from dstransformer.config import Config, compose, load_config
from dstransformer.data import Corpus
from dstransformer.distributed.child import ChildResult, run_dst
from dstransformer.distributed.launcher import Processes
from dstransformer.distributed.world import usable_cores
from dstransformer.errors import RUN_AGAIN, DataError, UserError, without_secrets
from dstransformer.extras.paper.table3_report import draw, to_markdown
from dstransformer.extras.paper.table3_rows import (
    ROWS,
    Row,
    RowResult,
    Table,
    differences,
    read_table,
    scale_preset,
    scale_row,
    select_rows,
)
from dstransformer.io.command import Stopped, stopped_by_signals
from dstransformer.io.files import hold_lock, replace_file, storage_errors
from dstransformer.io.products import enclosing_product
from dstransformer.model import parameter_count
from dstransformer.tracking import PARENT_TAG, RunGroup, RunStatus, TrackingState, resolve_tracking_uri
from dstransformer.tracking.mlflow.location import GROUP_LOCK_NAME
from dstransformer.tracking.mlflow.page import manifest_digest

STATE_NAME = "table3.json"
PICTURE_NAME = "table3.png"

#: Part of the error of ``dst train`` if another process is writing the run.
BUSY = "another process is training in"

#: Entries of an output folder besides the rows' run folders.
_OWN = (STATE_NAME, "table3.md", PICTURE_NAME, "presets", "logs")
_PUBLISHED = ("table3.md", STATE_NAME, PICTURE_NAME)


@dataclass(frozen=True)
class TableRequest:
    """The options of ``dst table3``.

    Attributes:
        corpus: The corpus folder.
        out: The output folder: a run folder for each row, the table, logs.
        rows: Groups or names of rows; empty for all.
        scale: A name of ``SCALES``, or a preset.
        updates: Updates of base; None takes those of the scale. A row that trains longer does so by the same factor.
        overrides: ``section.key=value`` strings for all rows.
        fragments: DeepSpeed fragments for all rows. If not empty, they replace the preset's.
    """

    corpus: Path
    out: Path
    rows: Sequence[str] = ()
    scale: str = "paper"
    updates: int | None = None
    overrides: Sequence[str] = ()
    fragments: Sequence[str] = ()


class TableRun:
    """A worker that trains rows of a table.

    Args:
        request: The options.
        processes: The ranks of the launcher; each is a worker.

    Raises:
        UserError: The request is invalid, or the folder holds a table with other settings.
        StorageError: The folder cannot be written.
    """

    def __init__(self, request: TableRequest, processes: Processes) -> None:
        self.rows = select_rows(request.rows)
        self._request = request
        self._processes = processes
        self._out = request.out
        self._began = 0.0
        self._base = _load(request, scale_preset(request.scale), request.updates)
        presets = {row.name: scale_row(row, request.scale, request.updates) for row in self.rows}
        _check_overrides(request, presets)
        corpus = _open_corpus(request.corpus)
        self._vocab_size = corpus.tokenizer.vocab_size
        self._settings = _settings(request, self._base, corpus)
        tracking = self._base.tracking
        self._uri = resolve_tracking_uri(tracking.uri, self._out) if tracking.enabled else None
        _check_out(self._out)
        with storage_errors(self._out):
            for folder in ("presets", "logs"):
                (self._out / folder).mkdir(parents=True, exist_ok=True)
            with self._locked():
                table = self.read()
                if table.settings != self._settings:
                    raise UserError(_describe_mismatch(self._out, table.settings, self._settings))
                self._write(table)
                for name, tree in presets.items():
                    replace_file(self._preset(name), yaml.safe_dump(tree, sort_keys=False))
        self._configs = {row.name: _load(request, str(self._preset(row.name))) for row in self.rows}

    def run(self) -> Table:
        """Train all rows that no other worker trains.

        Returns:
            The table. On rank 0 all rows of the request have ended, including those of other workers.

        Raises:
            Stopped: A signal was received. The row in training has written a checkpoint.
        """
        self._began = time.time()
        group = self._open_group()
        try:
            with stopped_by_signals():
                for row in self._training_order():
                    self._train(row, wait=0.0)
                if self._processes.rank == 0:
                    self._report_waiting()
                    for row in self._training_order():  # those that other workers train
                        self._train(row, wait=-1.0)
        except BaseException:
            self._publish(group, "killed")
            raise
        failed = any(result.status == "failed" for result in self.results().values())
        self._publish(group, "failed" if failed else "finished")
        return self.read()

    def _report_waiting(self) -> None:
        results = self.results()
        ended = {name for name, result in results.items() if result.status in ("done", "failed")}
        if others := [row.name for row in self.rows if row.name not in ended]:
            self._report(f"waiting for rows that other workers train: {', '.join(others)}")

    def results(self) -> dict[str, RowResult]:
        """The rows of the request that were started so far, by name."""
        known = self.read().results
        return {row.name: known[row.name] for row in self.rows if row.name in known}

    def read(self) -> Table:
        """The table on disk; an empty one if there is none."""
        path = self._out / STATE_NAME
        return read_table(path) if path.exists() else Table(self._settings, {})

    def _training_order(self) -> list[Row]:
        """The rows in the paper's order; with several workers the longest first, so that the workers end together."""
        if self._processes.world_size == 1:
            return self.rows
        return sorted(self.rows, key=lambda row: -self._parameters(row) * self._updates(row))

    def _parameters(self, row: Row) -> int:
        return parameter_count(self._configs[row.name].model, self._vocab_size)

    def _updates(self, row: Row) -> int:
        return self._configs[row.name].training.max_updates

    def _new_result(self, row: Row) -> RowResult:
        return RowResult(
            "interrupted",
            differences(self._configs[row.name], None if row.group == "base" else self._base),
            self._parameters(row),
        )

    def _train(self, row: Row, wait: float) -> None:
        """Train a row unless it is done, another worker trains it, or it failed since this worker began."""
        try:
            with hold_lock(self._out / f".{row.name}.lock", "", wait=wait, keep=True):
                before = self.read().results.get(row.name)
                if before is not None and (
                    before.status == "done" or (before.status == "failed" and before.ended >= self._began)
                ):
                    return
                self._train_locked(row, before or self._new_result(row))
        except UserError as error:
            if str(error):
                raise

    def _train_locked(self, row: Row, before: RowResult) -> None:
        self._report(f"{row.name}: training {self._updates(row):,} updates; log {self._log(row)}")
        ended = run_dst(self._command(row), self._log(row), self._environment())
        result = _read_result(ended, replace(before, error="", seconds=before.seconds + ended.seconds))
        result = replace(result, ended=time.time())
        with self._locked():
            table = self.read()
            self._write(replace(table, results={**table.results, row.name: result}))
        if ended.signal is not None:
            raise Stopped(ended.signal)
        if result.status == "done":
            self._report(
                f"{row.name}: perplexity {result.perplexity:.2f}, BLEU {result.bleu:.2f}, {ended.seconds:,.0f} s"
            )
        else:
            self._report(f"{row.name}: failed: {result.error}")

    def _command(self, row: Row) -> list[str]:
        request = self._request
        command = ["train", str(self._preset(row.name)), "--json"]
        command += ["--corpus", str(request.corpus), "--run", str(self._out / row.name), "--name", row.name]
        state = TrackingState.load(self._out)
        if state is not None and state.run_id is not None:
            command += ["--tag", f"{PARENT_TAG}={state.run_id}"]
        command += [f"--set={override}" for override in request.overrides]
        return command + [f"--ds={fragment}" for fragment in request.fragments]

    def _environment(self) -> dict[str, str]:
        environment = {} if self._uri is None else {"MLFLOW_TRACKING_URI": self._uri}
        return environment | _device_variables(self._processes, os.environ)

    def _preset(self, name: str) -> Path:
        return self._out / "presets" / f"{name}.yaml"

    def _log(self, row: Row) -> Path:
        return self._out / "logs" / f"{row.name}.log"

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with hold_lock(self._out / ".table3.lock", f"{self._out} is locked ({{owner}})", wait=300.0, keep=True):
            yield

    def _write(self, table: Table) -> None:
        replace_file(self._out / STATE_NAME, json.dumps(table.to_json(), indent=2) + "\n")
        replace_file(self._out / "table3.md", to_markdown(table))

    def _open_group(self) -> RunGroup | None:
        if self._uri is None:
            return None
        with self._tracking():
            group = RunGroup(self._out, self._uri, self._base.tracking.experiment)
            params = {name: str(value) for name, value in self._settings.items()}
            group.start(f"table 3 · {self._out.absolute().name}", params, "dst table3")
        return group

    def _publish(self, group: RunGroup | None, status: RunStatus) -> None:
        """Draw the picture, and log table and picture in MLflow. Rank 0, which ends last, ends the MLflow run."""
        with self._locked():
            table = self.read()
            if any(result.perplexity is not None for result in table.results.values()):
                replace_file(self._out / PICTURE_NAME, draw(table))
        if group is None:
            return
        with self._tracking():
            group.log(to_markdown(table), [name for name in _PUBLISHED if (self._out / name).exists()])
            if self._processes.rank == 0:
                group.finish(status)
        if group.page is not None and self._processes.rank == 0:
            self._report(group.page)

    @contextmanager
    def _tracking(self) -> Iterator[None]:
        """Hold the lock for MLflow, which workers use one at a time; the table has its own lock."""
        with hold_lock(self._out / GROUP_LOCK_NAME, f"{self._out} is locked ({{owner}})", wait=-1.0, keep=True):
            yield

    def _report(self, line: str) -> None:
        print(f"dst: {line}", file=sys.stderr, flush=True)


def _read_result(ended: ChildResult, before: RowResult) -> RowResult:
    """The result of a row from the JSON that ``dst train`` printed."""
    if ended.status:
        failed = ended.signal is None and ended.status != RUN_AGAIN and BUSY not in ended.error
        return replace(before, status="failed" if failed else "interrupted", error=ended.error if failed else "")
    outcome = json.loads(ended.stdout)
    found = outcome["evaluations"]["validation"]
    name = next(name for kind in ("bleu_compound_split", "bleu") for name in found["metrics"] if name.startswith(kind))
    test = outcome["evaluations"].get("test", {"metrics": {}})["metrics"]
    cost = outcome["cost"]
    return replace(
        before,
        status="done",
        seconds=3600.0 * cost["device_hours"] / cost["devices"],
        updates=outcome["step"],
        perplexity=found["metrics"]["perplexity"],
        bleu=found["metrics"][name],
        bleu_name=name,
        signature=found["signatures"][name],
        test_bleu=test.get(name),
    )


def _check_overrides(request: TableRequest, presets: Mapping[str, Mapping[str, Any]]) -> None:
    for override in request.overrides:
        section, _, key = override.partition("=")[0].strip().partition(".")
        for row, tree in presets.items():
            if section != "checkpoint" and isinstance(tree.get(section), Mapping) and key in tree[section]:
                raise UserError(
                    f"--set {override}: row {row} has its own {section}.{key}, which this would undo: leave out the "
                    "row, or vary another preset with --scale"
                )


def _load(request: TableRequest, preset: str, updates: int | None = None) -> Config:
    length = [] if updates is None else [f"training.max_updates={updates}"]
    config = load_config(preset, [*length, *request.overrides], request.fragments)
    compose(config, 1)
    return config


def _open_corpus(path: Path) -> Corpus:
    corpus = Corpus.open(path, verify=False)
    if corpus.manifest.trees is not None:
        raise DataError(f"{path} is a corpus for a parser: Table 3 compares translations; name another corpus")
    if not corpus.tokenizer.is_joint:
        raise DataError(f"{path} has a vocabulary for each language: Table 3's models share one; name another corpus")
    for split in ("train", "validation"):
        if split not in corpus.splits:
            raise DataError(f"{path} has no split {split!r}, which Table 3 needs: rebuild the corpus with one")
    return corpus


def _settings(request: TableRequest, base: Config, corpus: Corpus) -> dict[str, Any]:
    return {
        "scale": request.scale,
        "updates": base.training.max_updates,
        "set": list(map(without_secrets, request.overrides)),
        "ds": list(request.fragments),
        "languages": corpus.manifest.languages,
        "pairs": {name: split.pairs for name, split in corpus.manifest.splits.items()},
        "vocab_size": corpus.tokenizer.vocab_size,
        "corpus_digest": manifest_digest(corpus.manifest),
    }


def _describe_mismatch(out: Path, old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    name = next(name for name in {**old, **new} if old.get(name) != new.get(name))
    return (
        f"--out {out} holds a table with {name} = {old.get(name)}, not {new.get(name)}: give the same options to "
        "continue, or choose another folder"
    )


def _check_out(out: Path) -> None:
    """A table goes into a new folder, an empty one, or one that holds a table."""
    if (found := enclosing_product(out)) is not None:
        raise UserError(f"--out {out} lies inside the {found[0]} {found[1]}: choose a folder elsewhere")
    for folder in (out, *out.absolute().parents):
        if folder.exists() and not folder.is_dir():
            raise UserError(f"--out {out}: {folder} is a file; name a folder")
    with storage_errors(out):
        names = {path.name for path in out.iterdir()} if out.is_dir() else set()
        rows = [row.name for row in ROWS] if ".table3.lock" in names else []  # rows stay if the state is moved away
        own = {*_OWN, *rows, *(f".{row}.lock" for row in rows)}
        others = sorted(name for name in names - own if not name.startswith(".table3"))
        if others and not (out / STATE_NAME).is_file():  # checked last: another worker may be creating it
            raise UserError(
                f"--out {out} holds {others[0]}, which is not part of a table: choose a new or empty folder"
            )


def _device_variables(processes: Processes, environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that give a worker its share of the machine: one GPU, or an even share of the cores."""
    import torch

    if torch.cuda.is_available() and environment.get("DS_ACCELERATOR") != "cpu":
        visible = environment.get("CUDA_VISIBLE_DEVICES", "")
        devices = visible.split(",") if visible else [str(number) for number in range(torch.cuda.device_count())]
        return {"CUDA_VISIBLE_DEVICES": devices[processes.local_rank % len(devices)]}
    local = environment.get("LOCAL_WORLD_SIZE") or environment.get("LOCAL_SIZE")
    if "OMP_NUM_THREADS" in environment or local is None:  # srun gives each task its own cores
        return {}
    return {"OMP_NUM_THREADS": str(max(1, len(usable_cores()) // int(local)))}
