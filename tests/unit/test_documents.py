"""Documents: links and anchors lead somewhere, commands have the options they show, the reference is up to date."""

from __future__ import annotations

import importlib.util
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import yaml

from data_prep.cli import commands as dst_prep
from dstransformer import __version__
from dstransformer.cli.program import build_parser
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
def test_commands_have_the_options_that_documents_show(document: Path) -> None:
    known = {"dst": options(build_parser()), "dst-prep": options(dst_prep.build_parser())}
    wrong = []
    for program, command, given in iter_commands(document.read_text(encoding="utf-8")):
        options_of_command = known[program].get(command)
        if options_of_command is None:
            wrong.append(f"{program} {command}")
        else:
            wrong += [f"{program} {command} {option}" for option in given if option not in options_of_command]
    assert wrong == []


def options(parser: CommandParser, prefix: str = "") -> dict[str, set[str]]:
    found = {}
    for command, child in parser.commands.parsers.items() if parser.commands else ():
        words = f"{prefix} {command}".strip()
        found[words] = {flag for action in child._actions for flag in action.option_strings}
        found |= options(child, words)
    return found


def iter_commands(text: str) -> Iterator[tuple[str, str, list[str]]]:
    """Each ``dst`` and ``dst-prep`` command of the shell blocks: program, command, the options given."""
    for language, block in FENCE.findall(text):
        if language not in ("sh", "bash", "console"):
            continue
        for line in block.replace("\\\n", " ").splitlines():
            for part in re.split(r"[|;&]|\$\(", re.sub(r"(^|\s)#.*", "", line)):
                words = part.replace("'", "").replace('"', "").split()
                for i, word in enumerate(words[:-1]):
                    program = {"dst": "dst", "dst-prep": "dst-prep", "dstransformer": "dst", "data_prep": "dst-prep"}
                    if word not in program or not re.match(r"[a-z][\w-]*$", words[i + 1]) or "install" in words[:i]:
                        continue
                    command = " ".join(words[i + 1 : i + (3 if words[i + 1] in ("export", "import") else 2)])
                    yield program[word], command, [w.partition("=")[0] for w in words[i:] if re.match(r"--[a-z]", w)]


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


def test_workflows_name_actions_by_hash_and_version() -> None:
    workflows = "".join(path.read_text(encoding="utf-8") for path in (REPOSITORY / ".github/workflows").glob("*.yaml"))
    uses = re.findall(r"uses: (.*)", workflows)
    assert len(uses) > 5
    assert [one for one in uses if not re.fullmatch(r"[\w/.-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", one)] == []


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
