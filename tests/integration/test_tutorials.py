"""Runs the shell blocks of the tutorials, in order and in one folder, with smaller sizes."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest
from support.processes.forks import environment
from support.processes.launching import finish, free_port, started
from support.processes.shell_commands import shell_commands

REPOSITORY = Path(__file__).parents[2]
TUTORIALS = ("first-model", "your-own-text", "cluster")
#: What a test makes smaller, so that it takes minutes. The commands stay.
SMALLER = {
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
    ),
}


@pytest.mark.slow
def test_the_commands_of_the_tutorials_run(tmp_path: Path) -> None:
    """Launchers start processes of their own; commands are forked, which the tests of the wheel make up for."""
    with shell_commands() as commands:
        run_tutorials(commands, tmp_path)


def run_tutorials(commands: Path, tmp_path: Path) -> None:
    (tmp_path / "launch").symlink_to(REPOSITORY / "launch")
    variables = environment() | {
        "PATH": os.pathsep.join([str(commands), str(Path(sys.executable).parent), os.environ["PATH"]]),
        "DLTS_HOSTFILE": "/none",  # deepspeed's default is a file of the machine
        "MASTER_PORT": str(free_port()),
    }
    unused = set(SMALLER)
    for tutorial in TUTORIALS:
        script = "".join(read_blocks(tutorial))
        for large, small in SMALLER.items():
            if large in script:
                unused.discard(large)
                script = script.replace(large, small)
        if tutorial == "your-own-text":
            script = OWN_TEXT + script
        script = script.replace("deepspeed --num_gpus 2", f"deepspeed --num_gpus 2 --master_port {free_port()}")
        with started(["bash", "-e", "-c", script], variables, cwd=tmp_path, stdin=-3, stdout=-1, stderr=-2) as process:
            printed, _ = finish(process)
        assert process.returncode == 0, f"{tutorial}:\n{printed[-4000:]}"
    assert unused == set()
    for made in (
        "runs/toy/bundle",
        "attention/attention.html",
        "mine.html",
        "out/hf/config.json",
        "runs/layouts/bundle",
    ):
        assert (tmp_path / made).exists()


#: The six files that the second tutorial begins with: the held-out text of the first one's corpus.
OWN_TEXT = """
for side in en de; do
  head -n 300 test.$side > train.$side; sed -n 301,350p test.$side > dev.$side; sed -n 351,380p test.$side > part.$side
done
mv part.en test.en; mv part.de test.de
"""


def read_blocks(tutorial: str) -> list[str]:
    text = (REPOSITORY / "docs" / "tutorial" / f"{tutorial}.md").read_text(encoding="utf-8")
    return re.findall(r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
