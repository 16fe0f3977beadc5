"""A run to track, and a real MLflow server that can be suspended, killed and restarted."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path

from dstransformer.config import Config, load_config
from dstransformer.data import (
    CleaningReport,
    LengthStats,
    Manifest,
    Shard,
    SourceInfo,
    SplitInfo,
    TokenizerInfo,
)
from dstransformer.evaluation import Evaluation, Sample, Score
from dstransformer.tracking.events import RunStart
from support.processes.forks import environment
from support.processes.launching import free_port, wait_until


def make_manifest(shard_hash: str = "a" * 64, command: str = "dst-prep build") -> Manifest:
    lengths = LengthStats(min=1, mean=9.5, max=30)
    shards = (
        Shard(name="00000.arrow", rows=10, sha256=shard_hash),
        Shard(name="00001.arrow", rows=10, sha256="b" * 64),
    )
    train = SplitInfo(
        pairs=20,
        src_tokens=190,
        tgt_tokens=200,
        src_lengths=lengths,
        tgt_lengths=lengths,
        src_unknown=0,
        tgt_unknown=0,
        has_text=False,
        shards=shards,
    )
    return Manifest(
        build_key="k" * 64,
        src_lang="en",
        tgt_lang="de",
        tokenizer=TokenizerInfo(kind="bpe", vocab_size=37000, sha256="c" * 64),
        splits={"train": train},
        sources=(SourceInfo(name="files", revision=None, inputs=()),),
        cleaning=CleaningReport(read=21, kept=20, dropped={"empty": 1}),
        options={"workers": 2},
        command=command,
        versions={"datasets": "5.2.0"},
    )


def make_start(resume_step: int | None = None, config: Config | None = None) -> RunStart:
    return RunStart(
        run_name="base-seed1",
        config=config or load_config("base"),
        ds_config={"zero_optimization": {"stage": 2}},
        manifest=make_manifest(),
        corpus=Path("/data/wmt14.en-de"),
        tags={"git_revision": "0123abc", "world_size": "8"},
        resume_step=resume_step,
    )


class MlflowServer:
    """``mlflow server`` on a free local port, with a SQLite file and an artifact folder.

    Args:
        folder: Where to put both.
        store: The database to start from, which is copied.
    """

    def __init__(self, folder: Path, store: Path) -> None:
        self._folder = folder
        shutil.copy(store, folder / "server.db")
        self.port = free_port()
        self.uri = f"http://127.0.0.1:{self.port}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(self.port)]
        command += ["--workers", "1", "--backend-store-uri", f"sqlite:///{self._folder / 'server.db'}"]
        command += ["--artifacts-destination", str(self._folder / "artifacts")]
        quiet = {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
        with (self._folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                command, env=environment(quiet), stdout=log, stderr=log, start_new_session=True
            )
        wait_until(self._healthy, lambda: (self._folder / "server.log").read_text()[-3000:])

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the server and its workers."""
        assert self._process is not None
        os.killpg(self._process.pid, number)

    def kill(self) -> None:
        if self._process is not None:
            self.signal(signal.SIGKILL)
            self._process.wait()
            self._process = None

    def _healthy(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.uri}/health", timeout=10) as answer:
                return bool(answer.status == 200)
        except (OSError, urllib.error.URLError):
            return False


def evaluation_of(
    *, signature: str = "", digest: str = "", loss: float | None = None, samples: Sequence[Sample] = (), **scores: float
) -> Evaluation:
    """Make an evaluation with these scores, given by name."""
    named = tuple(Score(name, value, signature) for name, value in scores.items())
    return Evaluation(named, loss=loss, samples=tuple(samples), digest=digest)
