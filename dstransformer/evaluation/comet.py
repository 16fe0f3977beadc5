"""COMET (Rei et al., 2020), computed by the package ``unbabel-comet`` in a separate environment.

The package conflicts with the versions of NumPy and Transformers used here. Nothing is downloaded.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from dstransformer.errors import DataError, DstError, UserError, shown
from dstransformer.evaluation.result import Score
from dstransformer.io.files import file_sha256

#: Sentences in a batch of the model.
BATCH_SIZE = 16

SCRIPT = Path(__file__).with_name("comet_script.py")


def find_checkpoint(path: str) -> Path:
    """The checkpoint of a COMET model.

    Args:
        path: The file, or the folder of a downloaded model, which has it in ``checkpoints/model.ckpt``.

    Raises:
        DataError: The checkpoint is not a file.
    """
    given = Path(path)
    found = given / "checkpoints" / "model.ckpt" if given.is_dir() else given
    if not found.is_file():
        raise DataError(
            f"--comet {path}: {found} is not a file: name the checkpoint of a downloaded model (model.ckpt)"
        )
    return found


class Comet:
    """A COMET model in a separate process, which ends with the ``with`` block.

    Args:
        path: See :func:`find_checkpoint`.
        python: The Python that has the package ``unbabel-comet``; None for the one that runs this.

    Raises:
        UserError: ``python`` is not a program, or lacks the package.
        DataError: The file is not a COMET model.
        DstError: The process ended before the model was loaded.
    """

    def __init__(self, path: str, python: str | None = None) -> None:
        checkpoint = find_checkpoint(path)
        self._python = python or sys.executable
        if (program := shutil.which(self._python)) is None:
            raise UserError(f"--comet-python {self._python} is not a program: name the Python that has unbabel-comet")
        self._log = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115
        self._process = subprocess.Popen(
            [program, "-I", str(SCRIPT), str(checkpoint.absolute())],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True, env=_environment(),
        )  # fmt: skip
        try:
            loaded = self._read()
            if loaded.get("lacks_comet"):
                raise UserError(
                    f"--comet: {self._python} has no package unbabel-comet: install it in a separate environment "
                    "(it does not go beside this one) and name its Python with --comet-python"
                )
            if "error" in loaded:
                raise DataError(f"--comet {path} cannot be loaded: {shown(loaded['error'], quote=False, limit=300)}")
        except BaseException:
            self.close()
            raise
        name = checkpoint.parent.parent.name if checkpoint.parent.name == "checkpoints" else checkpoint.name
        self._signature = f"comet:{name}|sha256:{file_sha256(checkpoint)[:16]}|version:{loaded['version']}|scale:100"

    def score(
        self, sources: Sequence[str], translations: Sequence[str], references: Sequence[str]
    ) -> tuple[Score, list[float]]:
        """The mean score of the sentences, and the score of each, times 100.

        Raises:
            DstError: The model raised an error, or its process ended.
        """
        samples = [
            {"src": source, "mt": translation, "ref": reference}
            for source, translation, reference in zip(sources, translations, references, strict=True)
        ]
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"samples": samples, "batch_size": BATCH_SIZE}) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._exit_error() from None
        answer = self._read()
        if "error" in answer:
            raise DstError(f"COMET failed: {shown(answer['error'], quote=False, limit=300)}")
        return Score("comet", 100.0 * answer["system"], self._signature), [100.0 * one for one in answer["scores"]]

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()
        self._log.close()

    def __enter__(self) -> Comet:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise self._exit_error()
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _exit_error(self) -> DstError:
        status = self._process.wait()
        self._log.seek(0)
        lines = [line.strip() for line in self._log if line.strip()]
        last = f": {shown(lines[-1], quote=False, limit=200)}" if lines else ""
        return DstError(f"the process of COMET ({self._python}) ended with status {status}{last}")


def _environment() -> dict[str, str]:
    """The environment without ``PYTHON…`` variables, which are for the Python of this process."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
