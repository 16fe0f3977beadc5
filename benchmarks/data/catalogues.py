"""Messages of programs in Debian's packages, as a corpus that nobody cleaned: training, validation and test packages.

The packages are files, as ``apt-get download`` leaves them; no text of them is stored here. Their compiled catalogues
of one language go into folders that ``dst-prep`` reads. Validation and test are packages of their own, so that a model
is judged by programs it has not seen.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from benchmarks.lib.tables import format_table


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("packages", type=Path, nargs="+", metavar="DEB", help="Debian's packages")
    parser.add_argument("--lang", required=True, help="the language of the translations: de, ja")
    parser.add_argument("--valid", nargs="+", default=[], metavar="NAME", help="packages for validation")
    parser.add_argument("--test", nargs="+", default=[], metavar="NAME", help="packages for the test")
    parser.add_argument("--out", type=Path, required=True, help="a folder to create: train/, valid/ and test/ in it")


def main(options: argparse.Namespace) -> None:
    if shutil.which("dpkg-deb") is None:
        raise SystemExit("dpkg-deb, which unpacks Debian's packages, is not installed")
    splits = {name: split for split in ("valid", "test") for name in getattr(options, split)}
    unknown = splits.keys() - {name_of(package) for package in options.packages}
    if unknown:
        raise SystemExit(f"{', '.join(sorted(unknown))}: no such package is given")
    options.out.mkdir(parents=True)
    rows = []
    for package in sorted(options.packages):
        name = name_of(package)
        split = splits.get(name, "train")
        found = [*unpack(package, options.lang, options.out / split / name)]
        if found:
            rows.append(f"{split} | {name} | {len(found)} | {sum(found) / 1e6:.2f}")
    print(format_table("split | package | catalogues: | MB:", sorted(rows)))


def name_of(package: Path) -> str:
    """``gimp-data``, of ``gimp-data_2.10.34-1_all.deb``."""
    return package.name.partition("_")[0]


def unpack(package: Path, lang: str, folder: Path) -> Iterator[int]:
    """Write the catalogues of a language to a folder; yield the size of each."""
    with (
        subprocess.Popen(["dpkg-deb", "--fsys-tarfile", package], stdout=subprocess.PIPE) as unpacking,
        tarfile.open(fileobj=unpacking.stdout, mode="r|") as files,
    ):
        for file in files:
            path = PurePosixPath(file.name)
            if not (file.isfile() and path.suffix == ".mo" and path.parts[-3:-1] == (lang, "LC_MESSAGES")):
                continue
            target = folder / lang / "LC_MESSAGES" / path.name
            target.parent.mkdir(parents=True, exist_ok=True)
            content = files.extractfile(file)
            assert content is not None
            target.write_bytes(content.read())
            yield file.size
