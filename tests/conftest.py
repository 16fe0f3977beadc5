from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.corpora import build_toy

os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
os.environ.setdefault("OMP_NUM_THREADS", "1")  # tiny models; threads would only get into each other's way
os.environ.pop("MLFLOW_TRACKING_URI", None)


@pytest.fixture(scope="session")
def toy_corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small corpus of the embedded grammar, as ``dst-prep`` builds it."""
    return build_toy(tmp_path_factory.mktemp("toy") / "corpus", pairs=600)
