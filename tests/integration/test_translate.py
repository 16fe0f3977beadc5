"""``dst translate`` as users call it: formats, several processes, a kill."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.processes.forks import environment
from support.processes.launching import run_dst, wait_until
from support.processes.ranks import run_dst_ranks

BUNDLE = Path(__file__).parents[1] / "data" / "formats" / "1" / "run" / "bundle"
WORDS = ["the", "dog", "sees", "a", "cat", "fox", "near", "house"]


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """1,500 lines of up to 12 words, some empty."""
    draw = random.Random(1)
    path = tmp_path_factory.mktemp("text") / "text"
    path.write_text("".join(f"{' '.join(draw.choices(WORDS, k=draw.randrange(13)))}\n" for _ in range(1500)))
    return path


def translated(text: Path, *options: str) -> str:
    done = run_dst("translate", str(BUNDLE), str(text), *options)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_after_a_kill_the_same_command_goes_on(text: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    parts = Path(f"{out}.parts")
    arguments = ["translate", str(BUNDLE), str(text), "--output", str(out), "--resume"]
    process = subprocess.Popen([sys.executable, "-m", "dstransformer", *arguments], env=environment(), text=True)
    wait_until(lambda: parts.is_dir() and len(list(parts.glob("part-*"))) > 1, running=[process])
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL, "it was done before the kill: the test needs more lines"
    assert not out.exists()
    kept = {path: path.stat().st_mtime_ns for path in parts.glob("part-*")}
    refused = run_dst(*arguments, "--beam", "3")
    assert refused.returncode == 2
    assert "was begun with beam_size" in refused.stderr
    assert {path: path.stat().st_mtime_ns for path in parts.glob("part-*")} == kept
    done = run_dst_ranks(2, *arguments)
    assert done.returncode == 0, done.stderr
    assert out.read_text() == translated(text)


@pytest.mark.parametrize(("stdin", "message"), [
    (b"the dog\nthe d\xffg\n", "standard input, line 2: not UTF-8"),
    (None, "standard input is closed: --interactive reads sentences from it"),
])  # fmt: skip
def test_a_conversation_that_makes_no_sense_is_refused(stdin: bytes | None, message: str) -> None:
    command = [sys.executable, "-m", "dstransformer", "translate", str(BUNDLE), "--interactive"]
    closing = [] if stdin is not None else ["sh", "-c", 'exec "$@" <&-', "sh"]
    done = subprocess.run([*closing, *command], input=stdin, env=environment(), capture_output=True, check=False)
    assert done.returncode == 2
    assert message in done.stderr.decode()
    assert done.stderr.count(b"\n") == 1


def test_a_conversation_shows_scores() -> None:
    command = [sys.executable, "-m", "dstransformer", "translate", str(BUNDLE), "--interactive", "--n-best", "2"]
    done = subprocess.run(
        command, input="the dog\na cat\n", env=environment(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    scores = [float(line.split()[0]) for line in done.stdout.splitlines()]
    assert len(scores) == 4
    assert scores[0] >= scores[1]
