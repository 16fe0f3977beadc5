"""Learned metrics: COMET (Rei et al., 2020), COMETKiwi (Rei et al., 2022) and MetricX-24 (Juraska et al., 2024).

Each is computed in a process of its own, by a Python that has its package: ``unbabel-comet`` needs older versions of
NumPy and Transformers than those here. Nothing is downloaded.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from math import isfinite
from pathlib import Path
from statistics import fmean
from typing import IO, Any, Self

from dstransformer.errors import DataError, DstError, UserError, shown
from dstransformer.evaluation.result import Score
from dstransformer.io.files import file_sha256, read_error

#: Sentences in a batch of a model.
BATCH_SIZE = 16

SCRIPT = Path(__file__).with_name("learned_script.py")

#: The package of each option.
_PACKAGES = {"comet": "unbabel-comet", "metricx": "transformers"}


def find_model(option: str, path: str) -> Path:
    """The model of a metric on this machine.

    Args:
        option: ``comet`` or ``metricx``.
        path: Of COMET the checkpoint, or the folder of a downloaded model, which has it in ``checkpoints/model.ckpt``;
            of MetricX the folder of a model, with a tokenizer.

    Raises:
        DataError: It is not there.
    """
    model = Path(path)
    if option == "metricx":
        if not (model / "config.json").is_file():
            raise DataError(f"--metricx {path}: it has no config.json: name the folder of a downloaded model")
        return model
    model = model / "checkpoints" / "model.ckpt" if model.is_dir() else model
    if not model.is_file():
        raise DataError(
            f"--comet {path}: {model} is not a file: name the checkpoint of a downloaded model (model.ckpt)"
        )
    return model


class LearnedMetric:
    """A model in a process, which ends with the ``with`` block.

    Attributes:
        name: The name of its score: ``comet``, ``cometkiwi``, ``cometqe`` or ``metricx``.
        uses_references: Whether it compares with references.

    Args:
        option: ``comet`` or ``metricx``.
        path: See :func:`find_model`.
        python: The Python that has the metric's package; None for the one that runs this.
        on_cpu: Whether it leaves GPUs alone.

    Raises:
        UserError: ``python`` is not a program, or lacks the package.
        DataError: The model is not of this metric, or cannot be read.
        DstError: The process ended before the model was loaded.
    """

    def __init__(self, option: str, path: str, python: str | None = None, *, on_cpu: bool = False) -> None:
        self._option, self._path, self._model = option, path, find_model(option, path)
        self._python, self._on_cpu = python or sys.executable, on_cpu
        digest = _digest(self._model)
        self._process: subprocess.Popen[str] | None = None
        self._log: IO[str] = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115
        facts = self._start()
        self.name: str = facts["name"]
        self.uses_references: bool = facts["uses_references"]
        # The model is called by its folder, or by its repository in the hub's cache.
        folder = self._model.parent.parent if self._model.parent.name == "checkpoints" else self._model
        cached = next((one.name for one in folder.absolute().parents if one.name.startswith("models--")), None)
        called = cached.rpartition("--")[2] if cached else folder.name
        scale = "" if option == "metricx" else "|scale:100"
        self._signature = f"{self.name}:{called}|sha256:{digest[:16]}|version:{facts['version']}{scale}"

    def score(
        self, sources: Sequence[str], translations: Sequence[str], references: Sequence[str]
    ) -> tuple[Score, list[float]]:
        """The mean score of the sentences, and the score of each; COMET's times 100.

        If the process has ended, the next call starts another.

        Raises:
            DstError: The model raised an error, or its process ended.
        """
        samples = [
            {"src": source, "mt": translation, **({"ref": reference} if self.uses_references else {})}
            for source, translation, reference in zip(sources, translations, references, strict=True)
        ]
        if self._process is None:
            self._start()
        assert self._process is not None
        assert self._process.stdin is not None
        try:
            print(json.dumps({"samples": samples, "batch_size": BATCH_SIZE}), file=self._process.stdin, flush=True)
        except BrokenPipeError:
            raise self._exit_error(self._process) from None
        answer = self._read(self._process)
        if "error" in answer:
            label = Score(self.name, 0.0).label
            raise DstError(f"{label} failed: {shown(answer['error'], quote=False, limit=300)}")
        factor = 1.0 if self._option == "metricx" else 100.0
        scores = [factor * one for one in answer["scores"]]
        if not all(map(isfinite, scores)):
            raise DstError(f"{Score(self.name, 0.0).label} of a sentence is not a number")
        return Score(self.name, fmean(scores), self._signature), scores

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
        self._log.close()

    def _start(self) -> dict[str, Any]:
        """Load the model; returns what the process says of it."""
        if (program := shutil.which(self._python)) is None:
            package = _PACKAGES[self._option]
            raise UserError(f"--metric-python {self._python} is not a program: name the Python that has {package}")
        # The variables PYTHON… are for the Python of this process.
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        if self._on_cpu:
            environment["CUDA_VISIBLE_DEVICES"] = ""
        self._process = subprocess.Popen(
            [program, "-I", str(SCRIPT), self._option, str(self._model.absolute())],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True, env=environment,
        )  # fmt: skip
        try:
            facts = self._read(self._process)
            if facts.get("lacks") in ("comet", "torch", "transformers"):
                raise UserError(
                    f"--{self._option}: {self._python} has no package {_PACKAGES[self._option]}: install it in a "
                    "separate environment, and name its Python with --metric-python"
                )
            if "error" in facts:
                reason = shown(facts["error"], quote=False, limit=300)
                raise DataError(f"--{self._option} {self._path} cannot be loaded: {reason}")
        except BaseException:
            self.close()
            raise
        return facts

    def _read(self, process: subprocess.Popen[str]) -> dict[str, Any]:
        assert process.stdout is not None
        line = process.stdout.readline()
        try:
            answer = json.loads(line)
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            if line.endswith("\n"):
                process.kill()
            raise self._exit_error(process)
        return answer

    def _exit_error(self, process: subprocess.Popen[str]) -> DstError:
        status = process.wait()
        self.close()
        self._log.seek(0)
        lines = [line.strip() for line in self._log if line.strip()]
        last = f": {shown(lines[-1], quote=False, limit=200)}" if lines else ""
        return DstError(f"the process of --{self._option} ({self._python}) ended with status {status}{last}")


def _digest(model: Path) -> str:
    """The hash of the weights.

    Raises:
        DataError: They cannot be read.
    """
    try:
        if model.is_file():
            return file_sha256(model)
        files = sorted(path for ending in ("*.safetensors", "*.bin") for path in model.glob(ending))
        return hashlib.sha256("".join(map(file_sha256, files)).encode()).hexdigest()
    except OSError as error:
        raise read_error(model, error) from None
