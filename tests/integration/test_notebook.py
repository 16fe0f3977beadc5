"""The notebook runs from its first cell to its last, with less text and a smaller training."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from support.processes.forks import REPOSITORY, environment

NOTEBOOK = REPOSITORY / "docs" / "tutorial" / "first-model.ipynb"
SMALLER = {
    "--pairs 50000 --vocab-size 1000": "--pairs 1500 --valid-size 20 --test-size 20 --vocab-size 500",
    "training.max_updates=500": "training.max_updates=6",
    "validation.every=100": "validation.every=3",
}


@pytest.mark.slow
def test_the_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PATH", os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    text = NOTEBOOK.read_text(encoding="utf-8")
    for large, small in SMALLER.items():
        assert large in text
        text = text.replace(large, small)
    notebook = nbformat.reads(text, as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells)
    notebook.cells = [cell for cell in notebook.cells if "install" not in cell.metadata.get("tags", ())]
    NotebookClient(notebook, timeout=3000, resources={"metadata": {"path": str(tmp_path)}}).execute()
    training = next(cell for cell in notebook.cells if "train(TrainRequest" in cell.source)
    shown = [output.get("text", "") or output.get("data", {}).get("text/plain", "") for output in training.outputs]
    assert any(text.startswith("update 6 ") for text in shown)
    assert any("\nBLEU " in f"\n{text}" for text in shown)
    assert notebook.cells[-2].outputs[0].data["image/png"]
