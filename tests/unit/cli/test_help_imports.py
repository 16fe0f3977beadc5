"""The help of both programs answers at once, because it imports the parsers and nothing else."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

PROGRAM = """
import contextlib, importlib, io, json, sys
before = set(sys.modules)
with contextlib.redirect_stdout(io.StringIO()) as printed, contextlib.suppress(SystemExit):
    importlib.import_module(sys.argv[1]).main(sys.argv[2:])
print(json.dumps([printed.getvalue(), sorted(set(sys.modules) - before)]))
"""

#: What the parsers consist of.
PARSERS = (
    "dstransformer.cli", "dstransformer.errors", "dstransformer.io", "dstransformer.io.command",
    "dstransformer.io.flags", "dstransformer.io.progress",
    "data_prep", "data_prep.cli", "data_prep.cli.commands",
)  # fmt: skip


@pytest.mark.parametrize(("module", "word"), [
    ("dstransformer.cli", "--help"), ("dstransformer.cli", "--version"),
    ("data_prep.cli", "--help"), ("data_prep.cli", "--version"),
])  # fmt: skip
def test_nothing_but_the_parser_is_imported(module: str, word: str) -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM, module, word], capture_output=True, text=True, check=True)
    printed, imported = json.loads(done.stdout)
    assert ("usage: dst" in printed) == (word == "--help")
    others = {name for name in imported if name.partition(".")[0] not in sys.stdlib_module_names}
    others = {name for name in others if not name.startswith(("dstransformer.cli.", "dstransformer.extras"))}
    assert others <= {"dstransformer", *PARSERS}


@pytest.mark.parametrize("command", ["build", "read", "clean", "vocab", "encode", "verify", "report", "text", "info"])
def test_the_help_of_a_command_has_its_options(command: str) -> None:
    program = "import sys; from data_prep.cli import main; main(sys.argv[1:])"
    done = subprocess.run(
        [sys.executable, "-c", program, command, "--help"], capture_output=True, text=True, check=True
    )
    assert "--" in done.stdout.replace("--help", "") or "CORPUS" in done.stdout
