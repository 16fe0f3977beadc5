from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.processes.forks import REPOSITORY, environment

from dstransformer.model import Bundle

DOCKER = REPOSITORY / "docker"

#: Fails if an import needs a distribution that is not among those given, nor needed by them, and is not optional.
CHECK = """
import sys
from importlib.metadata import PackageNotFoundError, distribution, packages_distributions
from packaging.requirements import Requirement
allowed, todo = set(), sys.argv[1:]
while todo:
    name = Requirement(todo.pop()).name.lower().replace("_", "-")
    if name not in allowed:
        allowed.add(name)
        try:
            todo += [each for each in distribution(name).requires or () if "extra ==" not in each]
        except PackageNotFoundError:
            pass
owners = packages_distributions()
class Absent:
    def find_spec(self, name, path=None, target=None):
        owned = [each.lower().replace("_", "-") for each in owners.get(name.partition(".")[0], ())]
        if owned and not allowed & set(owned):
            raise ModuleNotFoundError(name, name=name)
sys.meta_path.insert(0, Absent())
from dstransformer.extras.serving import cli, loaded_model, server
from dstransformer.model import open_bundle
from dstransformer.decoding import Translator
print(Translator.load(open_bundle(BUNDLE), device="cpu").translate(["dog"]) != [""])
"""


@pytest.mark.slow
@pytest.mark.extended
def test_the_image_for_serving_installs_what_dst_serve_imports(opened: Bundle, tmp_path: Path) -> None:
    text = (DOCKER / "Dockerfile.serve").read_text()
    listed = re.search(r"pip install -c constraints.txt \\\n((?:.*\\\n)*.*)\n", text)
    assert listed is not None
    names = listed[1].replace("\\", " ").split()
    program = tmp_path / "check.py"
    program.write_text(CHECK.replace("BUNDLE", repr(str(opened.path))))
    command = [sys.executable, str(program), "torch", "dstransformer-itself", *names]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
    assert done.stdout == "True\n", done.stderr[-2000:]
    command.remove("prometheus-client")
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
    assert "ModuleNotFoundError: prometheus_client" in done.stderr


@pytest.mark.parametrize("name", ["Dockerfile.serve", "Dockerfile.train"])
def test_everything_that_is_copied_is_there_and_not_ignored(name: str) -> None:
    kept = [line[1:] for line in (REPOSITORY / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    lines = [
        line for line in (DOCKER / name).read_text().splitlines() if line.startswith("COPY") and "--from" not in line
    ]
    copied = [word for line in lines for word in line.split()[1:-1] if not word.startswith("--")]
    assert copied
    for path in copied:
        assert (REPOSITORY / path).exists(), path
        assert path in kept, path
