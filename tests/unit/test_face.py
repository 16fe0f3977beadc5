"""What Python programs import: ``from dstransformer import …``."""

from __future__ import annotations

import json
import sys
from importlib import import_module

import pytest
from support.processes.launching import run_command

import dstransformer

PROGRAM = """
import json, os, sys
modules, variables = set(sys.modules), dict(os.environ)
import dstransformer
print(json.dumps([sorted(set(sys.modules) - modules), dict(os.environ) == variables, sorted(vars(dstransformer))]))
"""


def test_importing_the_package_loads_nothing_and_changes_no_variable() -> None:
    done = run_command([sys.executable, "-c", PROGRAM])
    loaded, same_variables, names = json.loads(done.stdout)
    assert loaded == ["dstransformer"]
    assert same_variables
    assert not {*dstransformer.__all__} & {*names}


@pytest.mark.parametrize("name", dstransformer.__all__)
def test_each_name_is_that_of_its_module(name: str) -> None:
    value = getattr(dstransformer, name)
    assert value.__name__ == name
    assert value is getattr(import_module(value.__module__), name)
    assert name in dir(dstransformer)
    assert vars(dstransformer)[name] is value, "it is looked up once"


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="'Trainer'"):
        dstransformer.Trainer  # noqa: B018
