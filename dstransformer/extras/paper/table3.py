"""Trains the rows of Table 3, each as a run of ``dst train`` in a child process.

Workers share only the output folder. A worker locks the row that it trains, so that any number of workers, started
together by a launcher or one after the other, trains each row once.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from dstransformer.config import Config, compose, load_config
from dstransformer.data import Corpus
from dstransformer.distributed.hardware import usable_cores
from dstransformer.distributed.launcher import Processes
from dstransformer.errors import RUN_AGAIN, DataError, UserError, without_secrets
from dstransformer.extras.child import ChildResult, run_dst
from dstransformer.extras.paper.table3_report import RowResult, Table, draw, read_table, to_markdown
from dstransformer.extras.paper.table3_rows import Row, differences, scale_preset, scale_row, select_rows
from dstransformer.io.command import Stopped, stopped_by_signals
from dstransformer.io.files import hold_lock, replace_file, storage_errors
from dstransformer.io.products import enclosing_product
from dstransformer.io.progress import note
from dstransformer.model import parameter_count
from dstransformer.tracking.events import RunStatus
from dstransformer.tracking.mlflow.location import resolve_experiment, resolve_tracking_uri
from dstransformer.tracking.mlflow.page import manifest_digest
from dstransformer.tracking.mlflow.parent_run import close_group, open_group

STATE_NAME = "table3.json"
LOCK_NAME = ".table3.lock"


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
            self._out.mkdir(parents=True, exist_ok=True)
            with self._locked():
                for folder in ("presets", "logs"):
                    (self._out / folder).mkdir(exist_ok=True)
                table = self.read()
                if (old := table.settings) != self._settings:
                    name = next(name for name in {**old, **self._settings} if old.get(name) != self._settings.get(name))
                    raise UserError(
                        f"--out {self._out} holds a table with {name} = {old.get(name)}, not "
                        f"{self._settings.get(name)}: give the same options to continue, or choose another folder"
                    )
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
        began = time.time()
        self._open_group()
        status: RunStatus = "killed"
        try:
            with stopped_by_signals():
                for row in self._training_order():
                    self._train(row, began, wait=0.0)
                if self._processes.rank == 0:
                    known = self.read().rows
                    ended = {name for name, result in known.items() if result.status in ("done", "failed")}
                    if waiting := [row.name for row in self.rows if row.name not in ended]:
                        note(f"dst: waiting for rows that other workers train: {', '.join(waiting)}")
                    for row in self._training_order():
                        self._train(row, began, wait=-1.0)
            status = "failed" if self.failed() else "finished"
        finally:
            self._publish(status)
        return self.read()

    def failed(self) -> bool:
        """Whether a row of the request has failed."""
        known = self.read().rows
        return any(row.name in known and known[row.name].status == "failed" for row in self.rows)

    def read(self) -> Table:
        """The table on disk; an empty one if there is none."""
        path = self._out / STATE_NAME
        return read_table(path) if path.exists() else Table(settings=self._settings, rows={})

    def _training_order(self) -> list[Row]:
        """The rows in the paper's order; with several workers the longest first, so that the workers end together."""
        if self._processes.world_size == 1:
            return self.rows
        return sorted(self.rows, key=lambda row: -self._parameters(row) * self._configs[row.name].training.max_updates)

    def _parameters(self, row: Row) -> int:
        return parameter_count(self._configs[row.name].model, self._vocab_size)

    def _train(self, row: Row, began: float, wait: float) -> None:
        """Train a row unless it is done, another worker trains it, or it failed since this worker began."""
        try:
            with hold_lock(self._out / f".{row.name}.lock", "", wait=wait, keep=True):
                before = self.read().rows.get(row.name)
                if before is None:
                    changed = differences(self._configs[row.name], None if row.group == "base" else self._base)
                    before = RowResult(status="interrupted", differences=changed, parameters=self._parameters(row))
                if before.status != "done" and not (before.status == "failed" and before.ended >= began):
                    self._train_locked(row, before)
        except UserError as error:
            if str(error):
                raise

    def _train_locked(self, row: Row, before: RowResult) -> None:
        log = self._out / "logs" / f"{row.name}.log"
        note(f"dst: {row.name}: training {self._configs[row.name].training.max_updates:,} updates; log {log}")
        environment = _device_variables(self._processes, os.environ)
        if self._uri is not None:
            environment["MLFLOW_TRACKING_URI"] = self._uri
            if (parent := self.read().mlflow_run) is not None:
                environment["MLFLOW_RUN_ID"] = parent
        ended = run_dst(self._command(row), log, environment)
        result = _read_result(ended, before)
        with self._locked():
            table = self.read()
            self._write(table.model_copy(update={"rows": {**table.rows, row.name: result}}))
        if ended.signal is not None:
            raise Stopped(ended.signal)
        if result.status == "done":
            note(f"dst: {row.name}: perplexity {result.perplexity:.2f}, BLEU {result.bleu:.2f}, {ended.seconds:,.0f} s")
        else:
            note(f"dst: {row.name}: failed: {result.error}")

    def _command(self, row: Row) -> list[str]:
        request = self._request
        command = ["train", str(self._preset(row.name)), "--json"]
        command += ["--corpus", str(request.corpus), "--run", str(self._out / row.name), "--name", row.name]
        command += [f"--set={override}" for override in request.overrides]
        return command + [f"--ds={fragment}" for fragment in request.fragments]

    def _preset(self, name: str) -> Path:
        return self._out / "presets" / f"{name}.yaml"

    def _locked(self) -> AbstractContextManager[None]:
        return hold_lock(self._out / LOCK_NAME, f"{self._out} is locked ({{owner}})", wait=300.0, keep=True)

    def _write(self, table: Table) -> None:
        replace_file(self._out / STATE_NAME, json.dumps(table.to_json(), indent=2) + "\n")
        replace_file(self._out / "table3.md", to_markdown(table))

    def _open_group(self) -> None:
        """Open the run in MLflow above those of the rows."""
        if self._uri is None:
            return
        with self._locked():  # of several workers the first one creates it
            table = self.read()
            known = open_group(
                self._uri, resolve_experiment(self._base.tracking.experiment), table.mlflow_run,
                name=f"table 3 · {self._out.absolute().name}", source="dst table3",
                params={name: str(value) for name, value in self._settings.items()},
            )  # fmt: skip
            self._write(table.model_copy(update={"mlflow_run": known}))

    def _publish(self, status: RunStatus) -> None:
        """Draw the picture, and log table and picture in MLflow. Rank 0, which ends last, ends the MLflow run."""
        is_last = self._processes.rank == 0
        with self._locked():
            table = self.read()
            picture = self._out / "table3.png"
            if any(result.perplexity is not None for result in table.rows.values()):
                replace_file(picture, draw(table))
            if self._uri is None or table.mlflow_run is None:
                return
        files = [path for path in (self._out / "table3.md", self._out / STATE_NAME, picture) if path.exists()]
        # Without the lock, for which a row that ends meanwhile would wait as long as MLflow takes.
        page = close_group(
            self._uri, table.mlflow_run, note=to_markdown(table), files=files, status=status if is_last else None
        )
        if page is not None and is_last:
            note(f"dst: {page}")


def _read_result(ended: ChildResult, before: RowResult) -> RowResult:
    """The result of a row from the JSON that ``dst train`` printed."""
    known = {"error": "", "ended": time.time(), "seconds": before.seconds + ended.seconds}
    if ended.status:
        if ended.signal is not None or ended.status == RUN_AGAIN:
            return before.model_copy(update=known | {"status": "interrupted"})
        return before.model_copy(update=known | {"status": "failed", "error": ended.error})
    outcome = json.loads(ended.stdout)
    found = outcome["evaluations"]["validation"]
    name = next(name for kind in ("bleu_compound_split", "bleu") for name in found["metrics"] if name.startswith(kind))
    test = outcome["evaluations"].get("test", {"metrics": {}})["metrics"]
    cost = outcome["cost"]
    done = {
        "status": "done",
        "seconds": 3600.0 * cost["device_hours"] / cost["devices"],
        "updates": outcome["step"],
        "perplexity": found["metrics"]["perplexity"],
        "bleu": found["metrics"][name],
        "bleu_name": name,
        "signature": found["signatures"][name],
        "test_bleu": test.get(name),
    }
    return before.model_copy(update=known | done)


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
    if (form := corpus.manifest.form).model:
        raise DataError(f"{path} is a corpus for {form.model}: Table 3 compares translations; name another corpus")
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


def _check_out(out: Path) -> None:
    """A table goes into a new folder, an empty one, or one that holds a table."""
    if (found := enclosing_product(out)) is not None:
        raise UserError(f"--out {out} lies inside the {found[0]} {found[1]}: choose a folder elsewhere")
    for folder in (out, *out.absolute().parents):
        if folder.exists() and not folder.is_dir():
            raise UserError(f"--out {out}: {folder} is a file; name a folder")
    with storage_errors(out):
        names = sorted(path.name for path in out.iterdir()) if out.is_dir() else []
    if names and not {LOCK_NAME, STATE_NAME} & set(names):
        raise UserError(f"--out {out} holds {names[0]}, which is not part of a table: choose a new or empty folder")


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
