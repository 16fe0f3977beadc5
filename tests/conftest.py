from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]

os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
os.environ.setdefault("OMP_NUM_THREADS", "1")  # tiny models; threads would only get into each other's way
os.environ.pop("MLFLOW_TRACKING_URI", None)


@pytest.fixture(scope="session")
def toy_corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small corpus of the embedded grammar, as ``dst-prep`` builds it."""
    corpus = tmp_path_factory.mktemp("toy") / "corpus"
    command = [sys.executable, "-m", "data_prep", "build", "--source", "toy", "--pairs", "600", "--valid-size", "40"]
    command += ["--test-size", "40", "--vocab-size", "400", "--workers", "1", "--out", str(corpus)]
    subprocess.run(command, check=True, cwd=REPOSITORY, capture_output=True)
    return corpus
