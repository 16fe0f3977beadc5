"""A text translated in parts: in order, by several processes, and further after an interruption."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
from support.data.corpora import TEXT

from dstransformer.decoding import Output, Sampling, Translator, parts
from dstransformer.decoding.commands import load_translator, translate_files
from dstransformer.decoding.formats import Request
from dstransformer.distributed.launcher import Processes
from dstransformer.errors import DataError, StorageError, UserError

LINES = [f"{' '.join(TEXT[number % 4].split()[:2])} {number}" if number % 7 else "" for number in range(50)]


@pytest.fixture
def text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(parts, "MIN_LINES", 4)
    monkeypatch.setattr(parts, "PARTS_PER_PROCESS", 3)
    path = tmp_path / "text"
    path.write_text("".join(f"{line}\n" for line in LINES), encoding="utf-8")
    return str(path)


@pytest.fixture
def translator(bundle: Path) -> Translator:
    return load_translator(bundle)


def expect(text: str, tmp_path: Path, translator: Translator, request: Request) -> str:
    out = tmp_path / "expected"
    assert translate_files(text, str(out), lambda: translator, request, overwrite=True).lines == len(LINES)
    return out.read_text(encoding="utf-8")


def rounded(text: str) -> str:
    """The text, without the last digits of its scores: some sums depend on the batch in PyTorch 2.11."""
    return re.sub(r"-?[0-9]+\.[0-9]+", lambda number: f"{float(number[0]):.3f}", text)


@pytest.mark.parametrize("request_", [
    Request(),
    Request(n_best=2, format="jsonl"),
    Request(sampling=Sampling(seed=3), format="pairs", tag="<BT>"),
    Request(prefix="the"),
])  # fmt: skip
def test_the_parts_of_all_processes_make_one_file(
    text: str, tmp_path: Path, translator: Translator, request_: Request
) -> None:
    out = tmp_path / "out"
    for rank in (2, 1, 0):  # rank 0 puts the parts together
        counted: list[int] = []
        done = parts.translate_in_parts(
            text, str(out), lambda: translator, request_, Processes(rank, rank, 3), progress=counted.append
        )
        assert done == len(LINES)
        assert sum(counted) == len(LINES) if rank == 0 else 0 < sum(counted) < len(LINES)
    assert rounded(out.read_text(encoding="utf-8")) == rounded(expect(text, tmp_path, translator, request_))
    assert not Path(f"{out}.parts").exists()


class StoppingTranslator(Translator):
    """Fails after some parts, as if the process had been killed."""

    left = 2

    def search(self, *values: object, **named: object) -> list[list[Output]]:
        if not self.left:
            raise KeyboardInterrupt
        self.left -= 1
        return super().search(*values, **named)  # type: ignore[arg-type]


def interrupt(text: str, out: Path, bundle: Path) -> int:
    with pytest.raises(KeyboardInterrupt):
        parts.translate_in_parts(
            text, str(out), lambda: load_translator(bundle, lambda: StoppingTranslator), Request(), Processes(0, 0, 1)
        )
    assert not out.exists()
    return len(list(Path(f"{out}.parts").glob("part-*")))


def test_an_interrupted_command_goes_on_with_any_number_of_processes(
    text: str, tmp_path: Path, bundle: Path, translator: Translator
) -> None:
    out = tmp_path / "out"
    assert interrupt(text, out, bundle) == 2
    kept = {path.name: path.stat().st_mtime_ns for path in Path(f"{out}.parts").glob("part-*")}
    parts.translate_in_parts(text, str(out), lambda: translator, Request(), Processes(1, 1, 2))
    assert kept.items() <= {path.name: path.stat().st_mtime_ns for path in Path(f"{out}.parts").glob("part-*")}.items()
    parts.translate_in_parts(text, str(out), lambda: translator, Request(), Processes(0, 0, 2))
    assert out.read_text(encoding="utf-8") == expect(text, tmp_path, translator, Request())


def test_parts_of_another_command_are_refused(text: str, tmp_path: Path, bundle: Path, translator: Translator) -> None:
    out = tmp_path / "out"
    interrupt(text, out, bundle)

    def go_on(request: Request = Request(), one: Translator = translator) -> None:  # noqa: B008
        parts.translate_in_parts(text, str(out), lambda: one, request, Processes(0, 0, 1))

    with pytest.raises(UserError, match=r"out\.parts .*n_best 1, not 2"):
        go_on(Request(n_best=2))
    with pytest.raises(UserError, match="beam_size 4, not 2"):
        go_on(one=load_translator(bundle, beam_size=2))
    with pytest.raises(UserError, match="tokenised None, not True"):
        parts.translate_in_parts(
            text, str(out), lambda: translator, Request(), Processes(0, 0, 1), extra={"tokenised": True}
        )
    with pytest.raises(UserError, match=r"was begun with models"):
        go_on(one=load_translator(bundle, others=[bundle]))
    job = Path(f"{out}.parts") / "job.json"
    content = job.read_text()
    job.write_text(json.dumps(json.loads(content) | {"format_version": 99}))
    with pytest.raises(DataError, match="99"):
        go_on()
    job.write_text("{")
    with pytest.raises(DataError, match=r"job\.json .*out\.parts"):
        go_on()
    job.write_text(content)
    Path(text).write_text("other\n")
    with pytest.raises(DataError, match=r"text .*out\.parts"):
        go_on()
    assert not out.exists()


def test_changed_prefixes_are_refused(text: str, tmp_path: Path, bundle: Path, translator: Translator) -> None:
    out, prefixes = tmp_path / "out", tmp_path / "prefixes"
    prefixes.write_text("the\n" * len(LINES))
    request = Request(prefix_file=str(prefixes))

    def go_on(kind: type[Translator]) -> None:
        parts.translate_in_parts(
            text, str(out), lambda: load_translator(bundle, lambda: kind), request, Processes(0, 0, 1), overwrite=True
        )

    with pytest.raises(KeyboardInterrupt):
        go_on(StoppingTranslator)
    prefixes.write_text("dog\n" * len(LINES))
    with pytest.raises(DataError, match=r"prefixes .*out\.parts"):
        go_on(Translator)
    with pytest.raises(UserError, match="prefixes is an input"):
        parts.translate_in_parts(text, str(prefixes), lambda: translator, request, Processes(0, 0, 1), overwrite=True)


def test_what_killed_commands_leave_is_removed_and_nothing_else(
    text: str, tmp_path: Path, bundle: Path, translator: Translator
) -> None:
    out = tmp_path / "out"
    interrupt(text, out, bundle)
    folder = Path(f"{out}.parts")
    for name in (".part-00000002.4242.partial", ".job.json.1", "mine"):
        (folder / name).write_text("half")
    parts.translate_in_parts(text, str(out), lambda: translator, Request(), Processes(0, 0, 1))
    assert [path.name for path in folder.iterdir()] == ["mine"]
    assert out.read_text(encoding="utf-8") == expect(text, tmp_path, translator, Request())


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_process_that_comes_too_late_leaves_all_as_it_is(
    text: str, tmp_path: Path, translator: Translator, overwrite: bool
) -> None:
    """The text is so short that it is one part, which rank 0 makes while rank 1 still loads its model."""
    Path(text).write_text("the dog\na fox\n")
    out = tmp_path / "out"
    if overwrite:
        out.write_text("old\n")

    def take_part(rank: int, slowly: bool = False) -> None:
        def load() -> Translator:
            if slowly:
                take_part(0)
            return translator

        parts.translate_in_parts(text, str(out), load, Request(), Processes(rank, rank, 2), overwrite=overwrite)

    take_part(1, slowly=True)
    assert out.read_text(encoding="utf-8").splitlines() == translator.translate(["the dog", "a fox"])
    if not overwrite:
        take_part(1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bundle", "out", "text"]


def test_what_would_fail_after_the_work_is_refused_before(text: str, tmp_path: Path, bundle: Path) -> None:
    def load() -> Translator:
        raise AssertionError("loaded")

    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    before = sorted(tmp_path.rglob("*"))
    for source, output, error, complaint in (
        ("pipe", "out", UserError, "pipe is a pipe or a device: .* read a text several times"),
        ("text", "pipe", UserError, "pipe is a pipe or a device"),
        ("text", "text", UserError, "text is an input of this command"),
        ("text", "folder", StorageError, "folder: it is a folder; name a file in it"),
        ("text", "missing/out", StorageError, "missing is not a folder; make it first"),
        ("text", "bundle/out", UserError, "lies inside the bundle"),
    ):
        with pytest.raises(error, match=complaint):
            parts.translate_in_parts(
                str(tmp_path / source), str(tmp_path / output), load, Request(), Processes(0, 0, 1), overwrite=True
            )
    assert sorted(tmp_path.rglob("*")) == before
