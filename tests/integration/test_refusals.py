"""What ``dst`` refuses: exit status 2, one line that names what is wrong, and nothing is written."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from support.data.prep import refuses
from support.processes.forks import REPOSITORY, environment
from support.processes.launching import run_dst
from support.services.serving import save_small_bundle
from support.training.runs import plain_options

from dstransformer.cli import main

STORED = REPOSITORY / "tests" / "data" / "formats" / "1"

#: Command lines by what their error line says. Words in capitals are paths: CORPUS, the plain RUN and its BUNDLE; an
#: EXPORT for CTranslate2; NEW, which does not exist; the FILE and the FOLDER of other things; TEXT, two lines; LINE,
#: one.
COMMANDS = [
    ("train bsae --corpus CORPUS --run NEW", ["unknown preset 'bsae': did you mean 'base'"]),
    ("train toy --corpus CORPUS --run NEW --set model.d_model=65536 model.d_ff=1000000",
     ["parameters: building it takes", "which has"]),
    ("train toy --corpus CORPUS --run NEW --set batch.src_tokens=20", ["src tokens, more than an update may hold"]),
    ("train toy --corpus CORPUS --run NEW --resume FOLDER", ["FOLDER is not a checkpoint"]),
    ("train toy --corpus CORPUS --run NEW --init CORPUS", ["--init CORPUS: CORPUS is a corpus, not a bundle"]),
    ("train toy --corpus CORPUS --run NEW --profile 1000", ["profile is 1000"]),
    ("train toy --corpus CORPUS --run NEW --set tracking.also=[what]", ["tracking.also"]),
    ("train toy --corpus NEW --run NEW/run", ["NEW is not a corpus"]),
    ("train toy --corpus my&corpus --run NEW", ["`dst-prep build --out 'my&corpus'`"]),
    ("train base", ["the following arguments are required: --corpus, --run", "`dst train --help`"]),
    ("ds-config base --world-size 0", ["0 processes cannot train"]),
    ("", ["COMMAND", "`dst --help`"]),
    ("track FOLDER", ["FOLDER is not the folder of a tracked run"]),
    ("track nowhere", ["nowhere does not exist: name the folder of a run that `dst train` wrote"]),
    ("doctor nowhere", ["nowhere is not a run: it does not exist"]),
    ("average nowhere --out NEW", ["nowhere has no checkpoints: name a folder that `dst train --run` wrote"]),
    ("average RUN --best 3 --out NEW", ["has 2 checkpoints with a validation score"]),
    ("average RUN --last 1 --out FILE", ["--out FILE: FILE is a file; name a folder"]),
    ("translate FILE TEXT", ["FILE is not a bundle: it is a file"]),
    ("translate RUN NEW", ["cannot read NEW"]),
    ("translate TEXT RUN", ["a folder: are they swapped?"]),
    ("translate BUNDLE TEXT --top-k 5", ["--top-k is for drawing: add --sample"]),
    ("translate BUNDLE TEXT --ensemble nowhere", ["nowhere is not a bundle: it does not exist"]),
    ("translate BUNDLE TEXT --resume", ["--resume needs a "]),
    ("translate BUNDLE TEXT --interactive", ["--interactive reads sentences from the terminal"]),
    ("translate BUNDLE --interactive --format jsonl", ["--interactive shows scores and texts: leave out --format"]),
    ("translate BUNDLE TEXT --sample --beam 3", ["--beam is for the search, and --sample draws: leave one out"]),
    ("translate BUNDLE TEXT --sample --prune 3", ["--prune is for the search, and --sample draws: leave one out"]),
    ("translate BUNDLE TEXT --prefix-file nowhere", ["cannot read nowhere"]),
    ("evaluate RUN --src TEXT --ref LINE", ["TEXT has 2 lines but LINE has 1"]),
    ("evaluate EXPORT --src TEXT --ref TEXT", ["EXPORT is an export for CTranslate2", "--engine ct2", "--systems"]),
    ("evaluate --ref LINE --systems LINE --langpair en-jp", ["--langpair 'en-jp': 'jp' is not a", "did you mean ja?"]),
    *((f"import {command} --src-lang jp --out NEW", ["--src-lang: 'jp' is not a", "--any-language", "you mean ja?"])
      for command in ("hf FOLDER", "marian FILE --vocabs FILE")),
    ("import hf FOLDER --tgt-lang german --any-language --out NEW", ["FOLDER"]),
    ("serve PARSER --port 0", ["PARSER is a parser: only translation models can be served; use `dst parse`"]),
    ("serve BUNDLE --port 0 --host no.such.host.invalid", ["--host 'no.such.host.invalid'"]),
    ("serve BUNDLE --port 0 --host 203.0.113.7", ["--host '203.0.113.7' is not an address of this machine"]),
    ("table3 --corpus CORPUS --out NEW --scale tyo", ["--scale 'tyo': give paper, small, or a preset"]),
    ("table3 --corpus CORPUS --out NEW --updates 0", ["--updates 0: give 1 or more"]),
    ("table3 --corpus CORPUS --out NEW --rows A --set model.num_heads=2",
     ["row a_heads_1 has its own model.num_heads, which this would undo"]),
    ("table3 --corpus CORPUS --out CORPUS/table", ["lies inside the corpus CORPUS"]),
    ("table3 --corpus CORPUS --out FOLDER", ["holds thesis.tex, which is not part of a table"]),
]  # fmt: skip

#: What is refused before PyTorch, DeepSpeed or MLflow is imported: all that a command line, a configuration and a
#: manifest can say.
AT_ONCE = [
    "train bsae --corpus CORPUS --run NEW",
    "train toy --corpus CORPUS --run NEW --set model.width=3",
    "train toy --corpus CORPUS --run NEW --set training.seed=one",
    "train toy --corpus CORPUS --run NEW --ds zero9",
    "train toy --corpus NEW --run NEW/run",
    "train toy --corpus BUNDLE --run NEW",
    "train toy --corpus CORPUS --run FOLDER",
    "train toy --corpus CORPUS --run NEW --init nowhere",
    "train toy --corpus CORPUS --run NEW --init CORPUS",
    "train toy --corpus CORPUS --run NEW --resume nowhere",
    "train toy --corpus CORPUS --run RUN --resume never",
    "train toy --corpus CORPUS --run NEW --set batch.src_tokens=20",
    "train toy --corpus CORPUS --run NEW --set loss.guided_alignment=0.1",
    "train toy --corpus CORPUS --run NEW --set training.mixture=[{weights:{nowhere:1}}]",
    "train bsae --corpus CORPUS --run NEW --dry-run",
    "translate nowhere TEXT",
    "translate FOLDER TEXT",
    "translate CORPUS TEXT --engine ct2",
    "translate RUN nowhere",
    "translate RUN TEXT --beam 0",
    "translate RUN TEXT --ensemble nowhere",
    "translate RUN TEXT --to fr",
    "translate RUN TEXT --sample --temperature 0",
    "evaluate nowhere --src TEXT --ref LINE",
    "evaluate RUN --src TEXT --ref LINE",
    "score FILE --src TEXT --tgt TEXT",
    "align nowhere --src TEXT --tgt TEXT",
    "parse CORPUS TEXT",
    "export hf nowhere NEW",
    "export ct2 FOLDER NEW",
    "export marian CORPUS NEW",
    "export argos nowhere NEW.argosmodel",
    "serve nowhere --port 0",
    "serve PARSER --port 0",
    "average nowhere --out NEW",
    "checkpoints nowhere",
]

#: Overrides and options with which the plain run cannot be resumed.
RESUMES = [
    (["model.d_ff=128"], ["model.d_ff is 128, but", "was trained with 64"]),
    (["optimizer.name=muon"], ["optimizer.name is muon, but", "was trained with adam"]),
    (["training.max_updates=14", "--init", "BUNDLE"], ["this run started from random weights and resumes from"]),
]


@pytest.fixture
def paths(plain_run: Path, toy_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The paths that the words in capitals stand for; the working directory has what else is named."""
    monkeypatch.chdir(tmp_path)
    here = {"NEW": "new", "FILE": "notes.txt", "FOLDER": "folder", "TEXT": "text", "LINE": "line"}
    files = {"text": b"a dog\na cat\n", "line": b"ein Hund\n", "notes.txt": b"keep me"}
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "thesis.tex").touch()
    parser = save_small_bundle(tmp_path / "parser", trees={"tags": "keep", "closing": "label"})
    given = {"CORPUS": toy_corpus, "RUN": plain_run, "BUNDLE": plain_run / "bundle", "PARSER": parser}
    given["EXPORT"] = STORED / "ct2"
    return {name: str(tmp_path / path) for name, path in here.items()} | {
        name: str(path) for name, path in given.items()
    }


def with_paths(text: str, paths: dict[str, str]) -> str:
    return re.sub(rf"\b({'|'.join(paths)})\b", lambda found: paths[found[0]], text)


def contents(folder: Path) -> dict[Path, tuple[int, int]]:
    """All paths but those of locks; of files, when they changed and their sizes."""
    paths = {path: path.stat() for path in folder.rglob("*") if path.name != ".lock"}
    return {path: (stat.st_mtime_ns, stat.st_size) if path.is_file() else (0, 0) for path, stat in paths.items()}


def assert_refused(
    arguments: Sequence[str],
    parts: Sequence[str],
    paths: dict[str, str],
    capsys: pytest.CaptureFixture[str],
    run: Callable[[Sequence[str]], int] = main,
) -> None:
    """Check that a command, which runs in this process by default, is refused and changes nothing."""
    folders = [Path(paths["NEW"]).parent, Path(paths["RUN"]), Path(paths["CORPUS"])]
    before = [contents(folder) for folder in folders]
    said = refuses(capsys, run([with_paths(argument, paths) for argument in arguments]))
    assert [part for part in parts if with_paths(part, paths) not in said] == [], said
    assert len(said) < 600
    assert [contents(folder) for folder in folders] == before


def in_a_process(arguments: Sequence[str]) -> int:
    """Run ``dst`` in a process of its own, which a run needs that looks for its checkpoint; pass on its errors."""
    done = run_dst(*arguments)
    sys.stderr.write(done.stderr)
    return done.returncode


@pytest.mark.parametrize(("command", "parts"), COMMANDS, ids=lambda value: value if isinstance(value, str) else "")
def test_a_command_line_is_refused(
    command: str, parts: list[str], paths: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert_refused(command.split(), parts, paths, capsys)


def test_what_needs_no_pytorch_is_refused_before_it_is_imported(paths: dict[str, str], tmp_path: Path) -> None:
    program = """
import json, sys
from dstransformer.cli import main
for words in json.loads(sys.argv[1]):
    print(main(words), *{"torch", "deepspeed", "mlflow"} & {*sys.modules})
"""
    commands = json.dumps([[with_paths(word, paths) for word in command.split()] for command in AT_ONCE])
    run = [sys.executable, "-c", program, commands]
    done = subprocess.run(run, cwd=tmp_path, env=environment(), capture_output=True, text=True, check=True)
    printed = zip(AT_ONCE, done.stdout.splitlines(), strict=True)
    assert [f"{command}: {text}" for command, text in printed if text != "2"] == []


@pytest.mark.parametrize(("changes", "parts"), RESUMES)
def test_a_run_is_not_resumed_by_another_command(
    changes: list[str], parts: list[str], plain_copy: Path, paths: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    paths |= {"RUN": str(plain_copy), "BUNDLE": str(plain_copy / "bundle")}
    assert_refused(plain_options(Path(paths["CORPUS"]), plain_copy, *changes), parts, paths, capsys, in_a_process)


@pytest.mark.parametrize("damage", ["tokenizer", "shard"])
def test_a_damaged_corpus_is_refused(
    damage: str, paths: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus = tmp_path / "corpus"
    shutil.copytree(paths["CORPUS"], corpus)
    if damage == "tokenizer":
        with (corpus / "tokenizer.model").open("ab") as file:
            file.write(b"\x12\x00")
    else:
        shard = next((corpus / "train").glob("*.arrow"))
        content = bytearray(shard.read_bytes())
        content[len(content) // 2] ^= 4
        shard.write_bytes(content)
    assert_refused(["train", "toy", "--corpus", str(corpus), "--run", "NEW"], [str(corpus)], paths, capsys)


@pytest.mark.parametrize(("options", "parts"), [
    (["--resume", "RUN/checkpoints/step-00000006"], ["--resume RUN/checkpoints/step-00000006 is not a checkpoint of"]),
    (["--corpus", str(STORED / "corpus")], ["it was trained on another corpus than"]),
])  # fmt: skip
def test_a_checkpoint_of_another_run_or_corpus_is_refused(
    options: list[str], parts: list[str], plain_copy: Path, paths: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    command = [*plain_options(Path(paths["CORPUS"]), plain_copy), *options]
    assert_refused(command, parts, paths, capsys, in_a_process)


def test_a_run_with_only_damaged_checkpoints_is_refused(
    plain_copy: Path, paths: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    for manifest in plain_copy.glob("checkpoints/*/manifest.json"):
        manifest.write_text("{")
    command = plain_options(Path(paths["CORPUS"]), plain_copy)
    assert_refused(command, ["every checkpoint in", "is damaged"], paths, capsys, in_a_process)
