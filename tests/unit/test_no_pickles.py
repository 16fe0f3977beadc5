"""No file that this package reads can run code: nothing unpickles one, except weights and nothing else."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

#: Modules that exist to unpickle, and functions of others that do so by default or on request.
MODULES = {"pickle", "_pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}
FUNCTIONS = {"torch.load", "torch.save", "torch.jit.load", "np.load", "numpy.load", "pd.read_pickle"}
FUNCTIONS |= {"yaml.unsafe_load", "yaml.full_load", "yaml.UnsafeLoader", "yaml.Loader", "yaml.FullLoader"}

SOURCES = sorted(path for name in ("dstransformer", "data_prep") for path in (ROOT / name).rglob("*.py"))


def offences(source: str) -> Iterator[str]:
    """The forbidden imports and calls of a module."""
    tree = ast.parse(source)
    safe = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call) and _refuses_pickles(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.partition(".")[0] in MODULES)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in MODULES:
            yield str(node.module)
        elif isinstance(node, ast.Attribute) and ast.unparse(node) in FUNCTIONS and id(node) not in safe:
            yield ast.unparse(node)
        elif isinstance(node, ast.keyword) and node.arg == "allow_pickle" and ast.unparse(node.value) != "False":
            yield "allow_pickle"


def _refuses_pickles(call: ast.Call) -> bool:
    given = {(each.arg, ast.unparse(each.value)) for each in call.keywords}
    safe = ("weights_only", "True") if ast.unparse(call.func) == "torch.load" else ("allow_pickle", "False")
    return safe in given


@pytest.mark.parametrize("source", [
    "np.load(path)", "import pickle", "from pickle import loads", "import torch\ntorch.load(path)", "read = torch.load",
    "torch.load(path, weights_only=False)", "np.load(path, allow_pickle=True)", "import joblib.numpy_pickle",
    "yaml.unsafe_load(text)",
])  # fmt: skip
def test_the_check_finds_what_it_looks_for(source: str) -> None:
    assert list(offences(source))


def test_nothing_unpickles() -> None:
    assert len(SOURCES) > 150
    assert {str(path): found for path in SOURCES if (found := list(offences(path.read_text())))} == {}
