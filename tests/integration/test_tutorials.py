"""Runs the shell blocks of the tutorials, in order and in one folder, with smaller sizes: a test for each section."""

from __future__ import annotations

import json
import os
import re
import socket
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import pytest
from support.processes.forks import REPOSITORY, Fork, environment
from support.processes.launching import finish, free_port, started

#: What a test makes smaller, so that it takes seconds. The commands stay; that launcher is in the first tutorial, too.
SMALLER = {
    "deepspeed -q --num_gpus 2 --module dstransformer train mine.yaml": "dst train mine.yaml",
    "--pairs 20000": "--pairs 1500 --valid-size 20 --test-size 400",
    "--vocab-size 1000": "--vocab-size 500",
    "--vocab-size 4000": "--vocab-size 500",
    "training.max_updates=500": "training.max_updates=6 validation.every=3 checkpoint.every_updates=3",
    "max_updates: 2000": "max_updates: 6",
    "every: 500": "every: 3\n  bleu_sentences: 4",
    "training.max_updates=1000": "training.max_updates=6",
    "training.max_updates=20 checkpoint.every_updates=10": "training.max_updates=4 checkpoint.every_updates=2",
    "training.max_updates=40 checkpoint.every_updates=10": "training.max_updates=6 checkpoint.every_updates=2",
    "extends: multi30k\n": (
        "extends: multi30k\nmodel: {num_layers: 1, d_model: 32, d_ff: 64, d_k: 8, d_v: 8}\n"
        "batch: {src_tokens: 512, tgt_tokens: 512}\ndecoding: {max_extra_tokens: 5}\n"
        "tracking: {enabled: false}\n"  # the run of the first tutorial is in MLflow
    ),
}

#: The six files that the second tutorial begins with: the held-out text of the first one's corpus.
OWN_TEXT = """
for side in en de; do
  head -n 300 test.$side > train.$side; sed -n 301,350p test.$side > dev.$side; sed -n 351,380p test.$side > part.$side
done
mv part.en test.en; mv part.de test.de
"""


COMMANDS = {"dst": "dstransformer", "dst-prep": "data_prep"}

CLIENT = """#!{python} -IS
import json, os, socket, sys
with socket.socket(socket.AF_UNIX) as server:
    server.connect({address!r})
    job = [{module!r}, sys.argv[1:], dict(os.environ), os.getcwd(), os.getpid()]
    server.sendall(json.dumps(job).encode() + b"\\n")
    sys.exit(int(server.makefile().readline()))
"""


@contextmanager
def shell_commands() -> Iterator[Path]:
    """Yield a folder for ``PATH`` that holds the commands, which work until the block ends."""
    with tempfile.TemporaryDirectory(prefix="dst-test-") as name, socket.socket(socket.AF_UNIX) as listener:
        folder, address = Path(name), f"{name}/socket"
        for command, module in COMMANDS.items():
            (folder / command).write_text(CLIENT.format(python=sys.executable, address=address, module=module))
            (folder / command).chmod(0o755)
        listener.bind(address)
        listener.listen()
        forks: list[Fork] = []
        threading.Thread(target=_serve, args=(listener, forks), daemon=True).start()
        try:
            yield folder
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            for fork in forks:
                fork.close()


def _serve(listener: socket.socket, forks: list[Fork]) -> None:
    with suppress(OSError):  # the listener was closed
        while True:
            client, _ = listener.accept()
            threading.Thread(target=_run, args=(client, forks), daemon=True).start()


def _run(client: socket.socket, forks: list[Fork]) -> None:
    with closing(client), client.makefile() as requests:
        module, arguments, variables, folder, pid = json.loads(requests.readline())
        streams = [Path(f"/proc/{pid}/fd/{number}") for number in range(3)]
        fork = Fork(["-m", module, *arguments], variables, Path(folder), streams)
        forks.append(fork)
        status = fork.wait()
        client.sendall(f"{status if status >= 0 else 128 - status}\n".encode())


class Section(NamedTuple):
    """A section of a tutorial, and the shell commands in it."""

    tutorial: str
    heading: str
    script: str


def read_sections() -> list[Section]:
    """All sections that have commands, in the order of the tutorials."""
    found = []
    for tutorial in ("first-model", "your-own-text", "cluster"):
        text = (REPOSITORY / "docs" / "tutorial" / f"{tutorial}.md").read_text(encoding="utf-8")
        for section in text.split("\n## ")[1:]:
            script = "".join(re.findall(r"^```sh\n(.*?)^```", section, re.MULTILINE | re.DOTALL))
            if script:
                found.append(Section(tutorial, section.partition("\n")[0], script))
    return found


SECTIONS = read_sections()

#: A file that each of these sections makes.
PRODUCTS = {
    "first-model: Train": "runs/toy/bundle",
    "first-model: Look at the run": "attention/attention.html",
    "your-own-text: Build and inspect": "mine.html",
    "your-own-text: Use it": "out/hf/config.json",
    "cluster: Move between layouts": "runs/layouts/bundle",
}


def name_of(section: Section) -> str:
    return f"{section.tutorial}: {section.heading}"


@pytest.fixture(scope="module")
def run_up_to(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[Section], Path]]:
    """A function that runs the sections up to one of them, each once, and returns their folder.

    Launchers start processes of their own; commands are forked, which the tests of the wheel make up for.
    """
    folder, waiting = tmp_path_factory.mktemp("tutorials"), list(SECTIONS)
    (folder / "launch").symlink_to(REPOSITORY / "launch")
    with shell_commands() as commands:
        variables = environment() | {
            "PATH": os.pathsep.join([str(commands), str(Path(sys.executable).parent), os.environ["PATH"]]),
            "DLTS_HOSTFILE": "/none",  # deepspeed's default is a file of the machine
            "MASTER_PORT": str(free_port()),
        }

        def run(last: Section) -> Path:
            while last in waiting:
                section = waiting.pop(0)
                command = ["bash", "-e", "-c", prepared(section)]
                with started(command, variables, cwd=folder, stdin=-3, stdout=-1, stderr=-2) as process:
                    printed, _ = finish(process)
                assert process.returncode == 0, f"{name_of(section)}:\n{printed[-4000:]}"
            return folder

        yield run


def prepared(section: Section) -> str:
    """The commands of a section, with smaller sizes."""
    script = section.script
    for large, small in SMALLER.items():
        script = script.replace(large, small)
    script = script.replace("deepspeed -q --num_gpus 2", f"deepspeed --num_gpus 2 --master_port {free_port()}")
    return OWN_TEXT * (section.heading == "Build and inspect") + script


def test_every_smaller_size_stands_in_for_one_of_the_tutorials() -> None:
    scripts = "".join(section.script for section in SECTIONS)
    assert [large for large in SMALLER if large not in scripts] == []
    assert PRODUCTS.keys() <= set(map(name_of, SECTIONS))


@pytest.mark.slow
@pytest.mark.parametrize("section", SECTIONS, ids=name_of)
def test_the_commands_of_the_tutorials_run(run_up_to: Callable[[Section], Path], section: Section) -> None:
    folder = run_up_to(section)
    if name_of(section) in PRODUCTS:
        assert (folder / PRODUCTS[name_of(section)]).exists()
