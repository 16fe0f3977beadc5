"""Command lines in process: what is accepted, and what is refused in one line."""

from __future__ import annotations

import shlex
import signal
import sys
from collections.abc import Iterator
from importlib.abc import MetaPathFinder
from pathlib import Path
from types import ModuleType

import pytest
from support.models.random_bundle import random_bundle

import data_prep.cli.commands
import dstransformer.cli.program
from dstransformer.cli import main
from dstransformer.errors import DataError
from dstransformer.io.command import CommandParser, exit_on_sigterm, run_guarded

COMMANDS = dstransformer.cli.program.build_parser().commands
assert COMMANDS is not None


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Check that a command line is refused with a single error line; return the line."""
    assert main(arguments) == 2
    output, errors = capsys.readouterr()
    assert output == ""
    assert errors.count("\n") == 1
    assert len(errors) < 350
    assert errors.startswith("dst: error: ")
    return errors


@pytest.mark.parametrize(("arguments", "message"), [
    ("ds-config toy --set model.dropout 0.3", "not of the form section.key=value (with `=` and no space)"),
    ("ds-config toy --set training.max_updates=1e5", "write it as an integer, 100000"),
    ("ds-config toy --ds zero2,bf16", "--ds zero2,bf16: separate fragments by spaces, --ds zero2 bf16"),
    ("--local_rank=0 train toy --set", "--set"),
    ("ds-config --ds zero1 bf16 tyo", "PRESET, before --set and --ds"),
    ("ds-config " + "x" * 9999, "unknown preset 'xxx"),
    ("ds-config toy --world-size " + "9" * 9999, "argument --world-size: invalid int value: '999"),
    ("evaluate nowhere --src a --ref b --beam-siz 2", "--beam-siz 2; see `dst evaluate --help`"),
    ("nonsense", "'nonsense' is not a command of dst: `dst --help`"),
    ("trian toy", "`dst train`"),
    ("export onnx", "'onnx' is not a format of dst export: `dst export --help`"),
    ("translate ", "argument BUNDLE: the name is empty: is a variable unset?"),
    ("translate nowhere --beam many", "argument --beam: invalid int value: 'many'; see `dst translate --help`"),
])  # fmt: skip
def test_invalid_command_lines_are_refused(capsys: pytest.CaptureFixture[str], arguments: str, message: str) -> None:
    assert message in refused(capsys, *arguments.split(" "))


@pytest.mark.parametrize(("variables", "speaks"), [
    ({"RANK": "3", "WORLD_SIZE": "8"}, False),
    ({"RANK": "0", "WORLD_SIZE": "8"}, True),
    ({"RANK": "3", "WORLD_SIZE": "1"}, True),
    ({"RANK": "3"}, True),
    ({"SLURM_PROCID": "1", "SLURM_NTASKS": "2", "SLURM_STEP_NUM_TASKS": "2"}, False),
    ({"SLURM_PROCID": "1"}, True),
    ({"RANK": "one", "WORLD_SIZE": "2"}, True),
])  # fmt: skip
def test_mistakes_are_reported_except_by_other_ranks(
    variables: dict[str, str], speaks: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("RANK", "WORLD_SIZE", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_STEP_NUM_TASKS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    for arguments in (["train", "nonsense"], ["translate", "nowhere", __file__, "--output", "out"]):
        assert main(arguments) == 2
        assert bool(capsys.readouterr().err) == speaks
    refused(capsys, "evaluate", "nowhere", "--src", "a", "--ref", "b")


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["--version"])
    assert capsys.readouterr().out == f"dst {dstransformer.__version__}\n"


@pytest.mark.parametrize("command", ["", *COMMANDS.choices])
def test_every_option_has_a_help_text(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main([command, "--help"] if command else ["--help"])
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("  ")]
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        if line.startswith(("  -", "  RUN", "  FILE", "  BUNDLE", "  PRESET")):
            described = "  " in line.strip() or following.startswith("        ")
            assert described, line


def iter_examples(parser: CommandParser) -> Iterator[str]:
    if parser.commands is None:
        assert parser.examples, parser.prog
        yield from parser.examples
        return
    for command in parser.commands.choices.values():
        yield from iter_examples(command)


@pytest.mark.parametrize("program", [dstransformer.cli.program, data_prep.cli.commands])
def test_every_command_has_an_example_that_is_right(program: ModuleType) -> None:
    for example in iter_examples(program.build_parser()):
        words = shlex.split(example)
        start = next(place for place, word in enumerate(words) if word in ("dst", "dst-prep", "dstransformer"))
        program.parse(words[start + 1 :])


def raising(error: BaseException) -> int:
    raise error


@pytest.mark.parametrize(("error", "status", "said"), [
    (DataError("bad text"), 2, "dst: error: bad text\n"),
    (DataError("bad\ntext " + "x" * 5000), 2, "dst: error: bad text xxx"),
    (KeyboardInterrupt(), 130, "dst: interrupted\n"),
    (BrokenPipeError(), 141, ""),
    (ImportError("x.so: failed to map segment from shared object"), 1, "dst: error: there is not enough memory to"),
    (MemoryError(), 1, "dst: error: there is not enough memory\n"),
    (PermissionError(13, "Permission denied", "/x"), 1, "dst: error: /x: Permission denied\n"),
    (OSError(24, "Too many open files", "/x"), 1, "dst: error: /x: Too many open files; raise `ulimit -n`\n"),
])  # fmt: skip
def test_errors_and_interrupts_are_reported_in_one_line(
    error: BaseException, status: int, said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdout", sys.stdout)
    monkeypatch.delenv("DST_DEBUG", raising=False)
    assert run_guarded("dst", lambda: raising(error)) == status
    errors = capsys.readouterr().err
    assert errors.startswith(said)
    assert errors.count("\n") == bool(said)
    assert len(errors) < 1100


def test_sigterm_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    def end() -> int:
        exit_on_sigterm()
        signal.raise_signal(signal.SIGTERM)
        return 0

    before = signal.getsignal(signal.SIGTERM)
    try:
        assert run_guarded("dst", end) == 143
    finally:
        signal.signal(signal.SIGTERM, before)
    assert capsys.readouterr().err == "dst: ended by SIGTERM\n"


def test_evaluate_refuses_to_overwrite_inputs_or_mix_its_output(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    src, ref = tmp_path / "src", tmp_path / "ref"
    src.write_text("dog\n")
    ref.write_text("Hund\n")
    bundle = str(random_bundle(tmp_path / "bundle"))
    command = ["evaluate", bundle, "--src", str(src), "--ref", str(ref), "--overwrite", "--output"]
    assert "--output - would mix the outputs with the scores" in refused(capsys, *command, "-")
    assert "ref is an input of this command" in refused(capsys, *command, str(ref))
    assert "src is an input of this command" in refused(capsys, *command, str(src))
    assert (src.read_text(), ref.read_text()) == ("dog\n", "Hund\n")


def test_an_internal_error_keeps_its_traceback_and_says_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_guarded("dst", lambda: raising(TypeError("no\nway"))) == 1
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("Traceback")
    assert lines[-1] == "dst: internal error: TypeError: no way; please report it with the lines above"


def test_dst_debug_adds_the_traceback(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DST_DEBUG", "1")
    assert main(["ds-config", "bsae"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("Traceback")
    assert lines[-1].startswith("dst: error: unknown preset 'bsae'")


def test_a_closed_stdout_is_reported(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    assert main(["presets"]) == 1
    assert capsys.readouterr().err == "dst: error: cannot write to stdout: it is closed\n"


def test_characters_that_stdout_cannot_encode_are_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (tmp_path / "out").open("w", encoding="ascii") as ascii_only:
        monkeypatch.setattr(sys, "stdout", ascii_only)
        assert run_guarded("dst", lambda: print("für …") or 0) == 0
    assert (tmp_path / "out").read_text() == "f?r ?\n"


@pytest.mark.parametrize(("options", "complaint"), [
    (["--corpus", "", "--run", "r"], "argument --corpus: the name is empty: is a variable unset?"),
    (["--corpus", "https://example.org/c", "--run", "r"], "argument --corpus: 'https://example.org/c' is an address"),
    (["--corpus", "c", "--run", "r", "--name", "a\udcff"], "argument --name: 'a\\udcff' is empty or has characters"),
])  # fmt: skip
def test_invalid_names_are_refused(options: list[str], complaint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert complaint in refused(capsys, "train", "toy", *options)


def test_an_interrupt_during_imports_is_reported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Interrupted(MetaPathFinder):
        def find_spec(self, name: str, *_: object) -> None:
            if name == "dstransformer.cli.program":
                raise KeyboardInterrupt

    monkeypatch.delitem(sys.modules, "dstransformer.cli.program", raising=False)
    monkeypatch.delattr(dstransformer.cli, "program", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Interrupted(), *sys.meta_path])
    assert main(["presets"]) == 130
    assert capsys.readouterr().err == "dst: interrupted\n"


@pytest.mark.parametrize(("arguments", "message"), [
    (["track", "a", "b"], "unrecognized arguments: b"),
    (["evaluate", "--task", "parsing", "--gold", "a", "--trees", "b", "--beam", "4"], "--trees and --beam do not go"),
    (["table3", "--corpus", "c", "--out", "o", "--rows", "c_layer_2"], "did you mean c_layers_2?"),
    (["export", "hf", "bundle", "folder", "--out", "x"], "unrecognized arguments: --out x; see `dst export hf --help`"),
    (["serve", "bundle", "--allow-host", "https://example.org/"], "'https://example.org/' is not a name: leave out"),
    (["train", "toy", "--corpus", "c", "--run", "r", "--tag", "a=1", "--tag", "a=2"], "--tag a is given twice, as '1'"),
    (["train", "toy", "--corpus", "c", "--run", "r", "--tag", "mlflow.runName=x"], "would rename the run: use --name"),
])  # fmt: skip
def test_slips_are_named(capsys: pytest.CaptureFixture[str], arguments: list[str], message: str) -> None:
    assert main(arguments) == 2
    assert message in capsys.readouterr().err


def test_a_working_directory_that_is_gone_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    tmp_path.rmdir()
    assert "the working directory has been deleted: change to another one with `cd`" in refused(capsys, "presets")
