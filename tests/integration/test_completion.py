"""The scripts of ``completion`` in real shells: what they offer for a command line that is not finished."""

import os
import pty
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dstransformer.io.products import Kind, write_marker

SHELLS = ("bash", "zsh", "fish")

#: In fish and zsh, what begins with the word; a known value of each kind.
CASES = [
    ("dst trai", "train"),
    ("dst translate --bea", "--beam"),
    ("dst-prep build --qui", "--quiet"),
    ("dst train to", "toy"),
    ("dst train toy --ds offload_o", "offload_optimizer"),
    ("dst translate runs/f", "runs/first"),
    ("dst doctor ru", "runs"),
    ("dst translate runs/first/bu", "runs/first/bundle"),
    ("dst train toy --corpus corpora/t", "corpora/toy"),
    ("dst align --precision fp", "fp32"),
    ("dst translate runs/first text.e", "text.en"),
    ("dst-prep build wmt14_en_d", "wmt14_en_de"),
    ("dst-prep build --source tr", "trees"),
    ("dst-prep verify corpora/t", "corpora/toy"),
]


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("scripts")
    for name in ("dst", "dst-prep"):
        module = "dstransformer" if name == "dst" else "data_prep"
        for shell in SHELLS:
            code = f"import sys, runpy; sys.argv[1:] = ['completion', {shell!r}]\n"
            code += "import atexit; atexit.register(lambda: sys.stderr.write('torch' * ('torch' in sys.modules)))\n"
            code += f"runpy.run_module({module!r}, run_name='__main__')"
            printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
            assert not printed.stderr
            (folder / f"{name}.{shell}").write_text(printed.stdout)
    return folder


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in (
        "runs/notes/a",
        "text.en",
        "ruins/x",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    kinds: dict[str, Kind] = {"runs/first": "run", "runs/first/bundle": "bundle", "corpora/toy": "corpus"}
    for name, kind in kinds.items():
        (tmp_path / name).mkdir(parents=True)
        write_marker(tmp_path / name, kind)
    (tmp_path / "corporations").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def need(shell: str) -> str:
    return shutil.which(shell) or pytest.skip(f"{shell} is not installed")


def offered_by_bash(script: Path, line: str) -> list[str]:
    words = line.split(" ")
    function = f"_shtab_{script.stem.replace('-', '_')}"
    code = f'source {script}; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); {function}; printf "%s\\n" "${{COMPREPLY[@]}}"'
    return subprocess.run(
        [need("bash"), "--norc", "-c", code, "bash", *words], capture_output=True, text=True, check=True
    ).stdout.split()


def offered_by_fish(script: Path, line: str) -> list[str]:
    code = f"source {script}; complete -C $argv[1]"
    printed = subprocess.run(
        [need("fish"), "--no-config", "-c", code, line], capture_output=True, text=True, check=True
    ).stdout
    return [each.partition("\t")[0] for each in printed.splitlines()]


def typed_in_zsh(script: Path, line: str) -> str:
    """The command line after TAB, which a widget prints."""
    setup = (
        f'autoload -U compinit; compinit -D -u; eval "$(cat {script})"; unsetopt beep\n'
        "show() { print -r -- '<''<'$BUFFER'>''>'; exit }; zle -N show; bindkey '^X' show; print -r -- re''ady\n"
    )
    child, terminal = pty.fork()
    if child == 0:
        os.environ.update(TERM="dumb", PS1="", LINES="50", COLUMNS="200")
        os.execv(need("zsh"), ["zsh", "-f", "-i"])
    seen = ""

    def read_until(text: str) -> None:
        nonlocal seen
        while text not in seen:
            try:
                seen += os.read(terminal, 4096).decode(errors="replace")
            except OSError:  # zsh has ended
                break
        assert text in seen, seen

    os.write(terminal, setup.encode())
    read_until("ready")
    os.write(terminal, f"{line}\t\x18".encode())
    read_until(">>")
    os.waitpid(child, 0)
    os.close(terminal)
    return seen.rpartition("<<")[2].partition(">>")[0]


@pytest.mark.parametrize(("line", "expected"), CASES)
def test_bash_and_fish_offer_what_is_known(line: str, expected: str, scripts: Path, place: Path) -> None:
    script = line.partition(" ")[0]
    assert expected in [each.rstrip("/") for each in offered_by_bash(scripts / f"{script}.bash", line)]
    assert expected in [each.rstrip("/") for each in offered_by_fish(scripts / f"{script}.fish", line)]


@pytest.mark.parametrize(("line", "expected"), [CASES[i] for i in (0, 1, 2, 4, 5, 8, 11, 12)])
def test_zsh_completes_what_is_known(line: str, expected: str, scripts: Path, place: Path) -> None:
    need("zsh")
    completed = typed_in_zsh(scripts / f"{line.partition(' ')[0]}.zsh", line)
    assert completed.split()[-1].rstrip("/") == expected
