"""Documents: links and anchors lead somewhere, commands have the options they show, the reference is up to date."""

from __future__ import annotations

import ast
import importlib.util
import re
import shlex
import subprocess
import tomllib
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from types import ModuleType

import pytest
import yaml

from data_prep.cli import commands as dst_prep
from dstransformer import __version__
from dstransformer.cli import program as dst
from dstransformer.errors import UserError
from dstransformer.io.command import CommandParser

REPOSITORY = Path(__file__).parents[2]
DOCUMENTS = sorted(
    path
    for folder in (".", "docs", "launch", "benchmarks", ".github")
    for path in (REPOSITORY / folder).glob("*.md" if folder == "." else "**/*.md")
)
LINK = re.compile(r"!?\[(?:[^\]\[]|\[[^\]]*\])*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)


def name(path: Path) -> str:
    return str(path.relative_to(REPOSITORY))


@pytest.mark.parametrize("document", DOCUMENTS, ids=name)
def test_links_lead_to_files_and_headings_that_exist(document: Path) -> None:
    text = FENCE.sub("", document.read_text(encoding="utf-8"))
    wrong = []
    for target in LINK.findall(text):
        if re.match(r"[a-z]+:", target):
            continue
        file, _, anchor = target.partition("#")
        path = (document.parent / file).resolve() if file else document
        if not path.exists() or (anchor and path.suffix == ".md" and anchor not in anchors(path)):
            wrong.append(target)
    assert wrong == []


def anchors(document: Path) -> set[str]:
    """The anchors of the headings, as GitHub names them."""
    text = FENCE.sub("", document.read_text(encoding="utf-8"))
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    plain = (re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading) for heading in headings)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in plain}


def test_every_document_is_reached_from_the_readme() -> None:
    todo, seen = [REPOSITORY / "README.md"], set()
    while todo:
        document = todo.pop()
        if document in seen:
            continue
        seen.add(document)
        for target in LINK.findall(document.read_text(encoding="utf-8")):
            path = (document.parent / target.partition("#")[0]).resolve()
            if path.suffix == ".md" and path.exists():
                todo.append(path)
    assert [name(path) for path in DOCUMENTS if path not in seen and ".github" not in path.parts] == []


def test_readme_has_at_most_800_words() -> None:
    assert len((REPOSITORY / "README.md").read_text(encoding="utf-8").split()) <= 800


@pytest.mark.parametrize("document", DOCUMENTS, ids=name)
def test_commands_that_documents_show_can_be_parsed(document: Path) -> None:
    wrong = []
    for parse, words in iter_commands(document.read_text(encoding="utf-8")):
        try:
            parse(words)
        except UserError as error:
            wrong.append(f"{' '.join(words)}: {error}")
    assert wrong == []


def options(parser: CommandParser, prefix: str = "") -> dict[str, set[str]]:
    found = {}
    for command, child in parser.commands.choices.items() if parser.commands else ():
        words = f"{prefix} {command}".strip()
        found[words] = {flag for action in child._actions for flag in action.option_strings}
        found |= options(child, words)
    return found


def iter_commands(text: str) -> Iterator[tuple[Callable[[Sequence[str]], object], list[str]]]:
    """Each ``dst`` and ``dst-prep`` command of the shell blocks: who parses it, and its words."""
    parsers = dict.fromkeys(("dst", "dstransformer"), dst.parse) | dict.fromkeys(
        ("dst-prep", "data_prep"), dst_prep.parse
    )
    for language, shown in FENCE.findall(text):
        if language not in ("sh", "bash", "console"):
            continue
        block = re.sub(r"^\$ |\\\n", "", shown, flags=re.MULTILINE)
        for line in re.sub(r"…|\$\w+", "model.dropout=0", block).splitlines():  # a value for any value
            lexer = shlex.shlex(line, posix=True, punctuation_chars="|;&()<>")
            lexer.whitespace_split = True
            words = list(lexer)
            ends = [i for i, word in enumerate(words) if set(word) <= set("|;&()<>")] + [len(words)]
            for start, end in pairwise([-1, *ends]):
                command = words[start + 1 : end]
                for i, word in enumerate(command[:-1]):
                    if word in parsers and re.match(r"[a-z][\w-]*$", command[i + 1]) and "install" not in command[:i]:
                        yield parsers[word], command[i + 1 :]
                        break


@pytest.mark.parametrize("document", DOCUMENTS, ids=name)
def test_modules_that_documents_run_exist(document: Path) -> None:
    modules = re.findall(
        r"python -m ((?:benchmarks|dstransformer|data_prep)[\w.]*\w)", document.read_text(encoding="utf-8")
    )
    assert [module for module in modules if importlib.util.find_spec(module) is None] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=name)
def test_values_that_documents_set_exist(document: Path) -> None:
    base = yaml.safe_load((REPOSITORY / "dstransformer/config/presets/base.yaml").read_text(encoding="utf-8"))
    keys = re.findall(rf"\b({'|'.join(base)})\.([a-z]\w*)=", document.read_text(encoding="utf-8"))
    assert [f"{section}.{key}" for section, key in keys if key not in base[section]] == []


def test_tables_for_users_of_other_toolkits_name_options_and_values_that_exist() -> None:
    base = yaml.safe_load((REPOSITORY / "dstransformer/config/presets/base.yaml").read_text(encoding="utf-8"))
    known = {"dst": options(dst.build_parser()), "dst-prep": options(dst_prep.build_parser())}
    page = (REPOSITORY / "docs/guide/coming-from.md").read_text(encoding="utf-8")
    ours = [
        cell for row in re.findall(r"^\|.*\| (.*) \|$", page, re.MULTILINE) for cell in re.findall(r"`([^`]+)`", row)
    ]
    wrong = []
    for cell in ours:
        if value := re.match(r"([a-z]+)\.([a-z]\w*)", cell):
            wrong += [cell] if value[2] not in base.get(value[1], ()) else []
            continue
        program, command, words = "dst", "translate", cell.split()
        if words[0] in known:
            program = words.pop(0)
            command = words.pop(0)
            if words and f"{command} {words[0]}" in known[program]:
                command = f"{command} {words.pop(0)}"
        found = known[program].get(command, set())
        wrong += [cell for word in words if word.startswith("--") and word not in found]
        wrong += [cell] if command not in known[program] else []
    assert len(ours) > 150
    assert wrong == []


def test_the_page_on_installing_names_every_extra() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    page = (REPOSITORY / "docs" / "install.md").read_text(encoding="utf-8")
    named = {word for line in page.splitlines() if line.startswith("| `") for word in re.findall(r"`(\w+)`", line)}
    assert project["optional-dependencies"].keys() - named - {"train", "all"} == set()


#: Options of other programs that messages and commands name: git, launchers, MLflow, mtdata, sacrebleu, Snakemake, ...
FOREIGN = """
--backend-store-uri --bf16 --config --configfile --cores --echo --env-manager --error-unmatch --force-reinstall --fp16
--gpus-per-node --gpus-per-task --id --jobs --langs --list --log --master --master-port --module --no-optional-locks
--nproc --nthreads --num --porcelain --scheduler-file --shm-size --snakefile --untracked-files
"""

#: Options of the steps of the workflow, which Snakemake starts.
STEPS = "--after --bundle --command --language --makes --record --stdout"


@pytest.mark.parametrize("package", ["dstransformer", "data_prep"])
def test_options_that_the_code_names_exist(package: str) -> None:
    ours = set.union(*options(dst.build_parser()).values(), *options(dst_prep.build_parser()).values())
    known = {*ours, "--version", "--local-rank", *FOREIGN.split(), *STEPS.split()}
    wrong = []
    for path in sorted((REPOSITORY / package).rglob("*.py")):
        nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
        docs = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
        texts = [node.value for node in nodes if isinstance(node, ast.Constant) and id(node) not in docs]
        for text in (text for text in texts if isinstance(text, str)):
            named = re.findall(r"(?<![\w-])--[a-z](?:[a-z0-9-]*[a-z0-9])?(?![\w-])", text)
            wrong += [f"{name(path)}: {option} in {text!r}" for option in named if option not in known]
    assert wrong == []


def test_version_and_date_of_the_release_agree() -> None:
    citation = yaml.safe_load((REPOSITORY / "CITATION.cff").read_text(encoding="utf-8"))
    changes = (REPOSITORY / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.findall(r"^## (\S+) \((\S+)\)$", changes, re.MULTILINE)[0] == (
        __version__,
        str(citation["date-released"]),
    )
    assert citation["version"] == __version__


def test_the_notes_of_a_release_need_its_tag() -> None:
    notes, wrong = (
        subprocess.run([REPOSITORY / ".ci/notes", tag], capture_output=True, text=True, check=False)
        for tag in (f"v{__version__}", "v99")
    )
    assert (notes.returncode, notes.stderr) == (0, "")
    assert notes.stdout.strip()
    assert "\n## " not in notes.stdout
    assert (wrong.returncode, wrong.stdout) == (1, "")
    assert wrong.stderr == f"the tag is v99, but dstransformer/__init__.py says {__version__}\n"


def test_the_reference_is_what_the_parsers_and_the_base_preset_generate() -> None:
    generator = load_generator()
    for page, generate in generator.PAGES.items():
        assert (generator.HERE / page).read_text(encoding="utf-8") == generate(), (
            "run python docs/reference/generate.py"
        )


def load_generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate_reference", REPOSITORY / "docs/reference/generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_code_names_documents_that_exist() -> None:
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=REPOSITORY, capture_output=True, text=True, check=False
    ).stdout.split("\0")
    wrong = []
    for file in filter(None, listed):
        path = REPOSITORY / file
        if path.suffix not in (".py", ".yaml", ".sh", ".sbatch", "") or not path.is_file():
            continue
        text = path.read_text(encoding="utf-8", errors="ignore")
        wrong += [f"{file}: {page}" for page in re.findall(r"\b(?:docs|launch)/[\w/.-]+\.md\b", text)]
    assert [line for line in wrong if not (REPOSITORY / line.partition(": ")[2]).exists()] == []
