"""Copies of a run's checkpoints at an address, for machines whose disks go away.

The address holds what the run folder holds: ``checkpoints/step-…``, at the end ``bundle``, and the files in
``BESIDE``. A checkpoint is complete there once it has its manifest, which is written last and deleted first, so that a
copy may be killed at any moment.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import threading
import uuid
from collections.abc import Mapping
from pathlib import Path

from dstransformer.config.schema import CheckpointConfig
from dstransformer.errors import ConfigError, DataError, DstError, shown
from dstransformer.io.files import ROOM_ADVICE, is_plain_name, replace_file, replace_folder, storage_errors, sync_tree
from dstransformer.io.json_text import JsonError, parse_json
from dstransformer.io.products import MARKER
from dstransformer.io.remote import RemoteFolder, is_address
from dstransformer.model.bundle import PROVENANCE
from dstransformer.tracking.events import BundleSaved, CheckpointSaved, Event, RunEnd, Tracker
from dstransformer.training.checkpoints.checkpoint_folder import CheckpointFolder
from dstransformer.training.checkpoints.format import MANIFEST, Checkpoint, open_checkpoint

logger = logging.getLogger(__name__)

#: Tells the runs at an address apart: the same file in the run folder.
IDENTITY = "mirror.json"

#: Files of the run folder that go with the checkpoints, so that curves and the run in MLflow go on.
BESIDE = (MARKER, "metrics.jsonl", "tracking.json")

_STEP = re.compile(r"step-\d{8,}")


class Mirror:
    """The copies of the checkpoints of one run.

    Args:
        address: An address of fsspec, such as ``s3://bucket/runs/base``.

    Raises:
        UserError: The protocol is unknown, or its package is not installed.
    """

    def __init__(self, address: str) -> None:
        self._remote = RemoteFolder(address)
        self.name = self._remote.name

    def prepare(self, folder: CheckpointFolder, *, fetch: bool) -> None:
        """Make the address that of this run, and fetch its checkpoints if the run folder has none.

        Args:
            folder: The checkpoints of the run.
            fetch: Whether a run may go on from what is at the address.

        Raises:
            ConfigError: The address holds the checkpoints of another run, or of this one, and ``fetch`` is False.
            DataError: The server cannot be reached or refuses; or every checkpoint there is damaged.
        """
        identity = folder.run / IDENTITY
        there = self._remote.read(IDENTITY)
        if there is not None and (not identity.is_file() or identity.read_bytes() != there):
            if folder.folders() or not fetch:
                raise ConfigError(
                    f"checkpoint.mirror: {self.name} holds the checkpoints of another run than {folder.run}: name "
                    "another address"
                )
            self.fetch(folder)
        if there is None:
            there = (json.dumps({"run": uuid.uuid4().hex}) + "\n").encode()
            self._remote.write(IDENTITY, there)
        with storage_errors(identity):
            replace_file(identity, there)

    def fetch(self, folder: CheckpointFolder) -> Checkpoint | None:
        """Copy the intact checkpoints into the run folder, also those that will be averaged; return the newest.

        Returns:
            None if there is none.

        Raises:
            DataError: The server cannot be reached, or every checkpoint there is damaged.
        """
        newest, damage = None, None
        for name in self.complete():
            try:
                newest = self._fetch(name, folder)
            except DataError as error:
                logger.warning("%s/checkpoints/%s: %s; it is left out", self.name, name, error)
                damage = error
        if newest is None:
            if damage is not None:
                raise DataError(f"no checkpoint of {self.name} can be fetched: {damage}")
            return None
        for beside in BESIDE:
            content = self._remote.read(beside)
            if content is not None and not (folder.run / beside).exists():
                with storage_errors(folder.run / beside):
                    replace_file(folder.run / beside, content)
        logger.warning("fetched the checkpoints of %s, the newest %s", self.name, newest.path.name)
        return newest

    def complete(self) -> list[str]:
        """The names of the checkpoints there that have their manifest, oldest first."""
        names = filter(_STEP.fullmatch, self._remote.names("checkpoints"))
        return [name for name in names if MANIFEST in self._remote.names(f"checkpoints/{name}")]

    def copy(self, folder: CheckpointFolder) -> None:
        """Bring the address up to date: the newest checkpoint first; those that the run has deleted, delete.

        Raises:
            DataError: The server cannot be reached or refuses.
        """
        complete = folder.folders()
        for beside in BESIDE:  # before the checkpoints, so that no record up to them is missing
            if (folder.run / beside).is_file():
                self._remote.upload(folder.run / beside, beside)
        for path in reversed(complete):
            self._copy(path)
        kept = {path.name for path in folder.folders()}
        for name in self._remote.names("checkpoints") if kept else ():  # none: the disk is gone
            if name not in kept:
                self._remote.delete(f"checkpoints/{name}/{MANIFEST}")
                self._remote.delete(f"checkpoints/{name}")

    def copy_bundle(self, bundle: Path) -> None:
        """Copy the final bundle; its provenance, which has the hashes, last.

        Raises:
            DataError: The server cannot be reached or refuses.
        """
        for path in sorted(bundle.iterdir(), key=lambda path: path.name == PROVENANCE):
            self._remote.upload(path, f"bundle/{path.name}")

    def _copy(self, path: Path) -> None:
        """Copy a checkpoint, or what has changed of it. One that the run deletes meanwhile is left incomplete."""
        there = f"checkpoints/{path.name}"
        try:
            manifest = (path / MANIFEST).read_bytes()
            stored = self._remote.read(f"{there}/{MANIFEST}")
            if stored == manifest:
                return
            present = _files(stored)
            for name, digest in _files(manifest).items():
                if present.get(name) != digest:
                    self._remote.upload(path / name, f"{there}/{name}")
            if (path / MANIFEST).read_bytes() == manifest:
                self._remote.write(f"{there}/{MANIFEST}", manifest)
        except FileNotFoundError:
            return

    def _fetch(self, name: str, folder: CheckpointFolder) -> Checkpoint:
        step = int(name.removeprefix("step-"))
        manifest = self._remote.read(f"checkpoints/{name}/{MANIFEST}") or b""
        partial = folder.begin(step)
        with storage_errors(partial, full=ROOM_ADVICE):
            (partial / MANIFEST).write_bytes(manifest)
            for file in _files(manifest):
                if not all(map(is_plain_name, file.split("/"))):
                    raise DataError(f"its manifest names {shown(file)}, which is no file of a checkpoint")
                self._remote.download(f"checkpoints/{name}/{file}", partial / file)
            open_checkpoint(partial)
            sync_tree(partial)
            partial.rename(folder.path / name)
        folder.delete_after(step)
        return open_checkpoint(folder.path / name)


def _files(manifest: bytes | None) -> Mapping[str, str]:
    """The hashes of the files that a manifest names; none if there is no manifest, or a damaged one."""
    try:
        content = parse_json(manifest or b"{}", nan=True)
    except JsonError:
        return {}
    files = content.get("files") if isinstance(content, dict) else None
    return files if isinstance(files, dict) else {}


def fetch_bundle(address: str) -> Path:
    """Fetch a bundle, or that of a checkpoint or of a run (the final one, else the newest), into the user's cache.

    Raises:
        UserError: The protocol is unknown, or its package is not installed.
        DataError: There is no bundle; or the server cannot be reached or refuses.
        StorageError: The cache cannot be written.
    """
    remote = RemoteFolder(address)
    places = ["", "bundle/"]
    places += [f"checkpoints/{name}/bundle/" for name in reversed(Mirror(address).complete())]
    for place in places:
        if (provenance := remote.read(f"{place}{PROVENANCE}")) is not None:
            break
    else:
        raise DataError(f"{remote.name} holds no bundle, checkpoint or run")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "dstransformer", "bundles")
    if place.startswith("checkpoints/"):
        name = place.split("/")[1]
        logger.warning("%s has no final bundle yet: this is its newest checkpoint, %s", remote.name, name)
    target = cache / hashlib.sha256(provenance).hexdigest()[:16]

    def write(folder: Path) -> None:
        folder.mkdir()
        for name in remote.names(place.rstrip("/")):
            if is_plain_name(name):
                remote.download(f"{place}{name}", folder / name)

    if not target.is_dir():
        replace_folder(target, write, full="make room, or set XDG_CACHE_HOME")
    return target


class MirrorTracker(Tracker):
    """Copies the checkpoints of a run in a thread, each time that one is complete, and the final bundle at the end.

    No update waits for it. What fails is a warning, and is done again with the next checkpoint or after
    ``retry_seconds``. The end of the run waits for the last copy.
    """

    name = "the mirror of the checkpoints"

    def __init__(self, mirror: Mirror, folder: CheckpointFolder, retry_seconds: float) -> None:
        self._mirror = mirror
        self._folder = folder
        self._retry_seconds = retry_seconds
        self._bundle: Path | None = None
        self._is_due, self._ended = threading.Event(), False
        self._is_due.set()  # for what an earlier process of the run has not copied
        self._thread = threading.Thread(target=self._work, name="mirror", daemon=True)
        self._thread.start()

    def emit(self, event: Event) -> None:
        """See ``Tracker.emit``."""
        match event:
            case CheckpointSaved():
                self._is_due.set()
            case BundleSaved(bundle):
                self._bundle = bundle
            case RunEnd():
                self._ended = True
                self._is_due.set()
                self._thread.join()

    def _work(self) -> None:
        is_behind = False
        while True:
            self._is_due.wait(self._retry_seconds if is_behind else None)
            self._is_due.clear()
            ended = self._ended
            is_behind = not self._copy()
            if ended:
                return

    def _copy(self) -> bool:
        try:
            self._mirror.copy(self._folder)
            if self._bundle is not None:
                self._mirror.copy_bundle(self._bundle)
        except (DstError, OSError) as error:
            logger.warning("the checkpoints at %s are behind: %s", self._mirror.name, error)
            return False
        return True


def fetch_resumed(resume: str, config: CheckpointConfig, folder: CheckpointFolder) -> str:
    """Fetch the checkpoint to resume from, if it is at an address and not in the run folder. Rank 0 only.

    ``auto`` fetches too, from the mirror that the configuration may name.

    Returns:
        ``resume`` or, of what was fetched, ``auto``.

    Raises:
        ConfigError: ``resume`` is an address and the run has checkpoints of its own, or the mirror is that of another
            run.
        DataError: The server cannot be reached or refuses; there is no checkpoint; or every one is damaged.
    """
    if resume == config.mirror:
        resume = "auto"
    if is_address(resume):
        mirror = Mirror(resume)
        if folder.folders():
            raise ConfigError(
                f"--resume {mirror.name}: {folder.run} has checkpoints of its own: name another --run, or leave out "
                "--resume"
            )
        if mirror.fetch(folder) is None:
            raise DataError(f"--resume {mirror.name}: there is no complete checkpoint")
        resume = "auto"
    if config.mirror is not None:
        Mirror(config.mirror).prepare(folder, fetch=resume == "auto")
    return resume
