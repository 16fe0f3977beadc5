"""The check before training that all nodes share one run folder and run the same experiment."""

from __future__ import annotations

import json
import platform
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from dstransformer import __version__
from dstransformer.config import Config, dump_config
from dstransformer.data import Corpus
from dstransformer.distributed.world import World
from dstransformer.errors import ConfigError
from dstransformer.io.files import hold_lock, replace_file, storage_errors
from dstransformer.io.products import RUN_LOCK

#: Seconds to wait for the lock of a run folder, which whoever asks for its holder takes for an instant.
_LOCK_SECONDS = 0.5


@contextmanager
def lock_run_folder(
    run: Path, config: Config, ds_config: Mapping[str, Any], corpus: Corpus, world: World
) -> Iterator[None]:
    """Create the run folder, lock it and write the resolved configuration into it. Collective.

    Args:
        run: The run folder; need not exist.
        config: The experiment.
        ds_config: The complete DeepSpeed configuration.
        corpus: The corpus.
        world: The process group.

    Raises:
        UserError: Another process is training in the folder.
        ConfigError: A node sees a different folder, or has a different configuration, version or corpus.
        StorageError: The folder cannot be written.
    """
    probe = run / world.broadcast(f".probe-{uuid.uuid4().hex}")
    busy = f"another process is training in {run} ({{owner}}): wait for it, stop it, or choose another --run"
    with ExitStack() as stack:
        with world.collective_errors():
            if world.is_rank0:
                with storage_errors(run):
                    run.mkdir(parents=True, exist_ok=True)
                    stack.enter_context(hold_lock(run / RUN_LOCK, busy, wait=_LOCK_SECONDS, keep=True))
                    probe.touch()
        settings = json.dumps([__version__, config.model_dump(), ds_config], sort_keys=True)
        nodes = world.gather((platform.node(), probe.exists(), settings, corpus.manifest.build_key))
        with world.collective_errors():
            if world.is_rank0:
                probe.unlink()
            _check_nodes_agree(nodes, run, corpus.path)
            if world.is_rank0:
                with storage_errors(run):
                    replace_file(run / "config.yaml", dump_config(config.without_secrets()))
                    replace_file(run / "ds_config.json", json.dumps(ds_config, indent=2) + "\n")
        yield


def _check_nodes_agree(nodes: Sequence[tuple[str, bool, str, str]], run: Path, corpus: Path) -> None:
    hosts, sees_probe, settings, builds = zip(*nodes, strict=True)

    def differing(values: Sequence[object], expected: object) -> str:
        return ", ".join(sorted({host for host, value in zip(hosts, values, strict=True) if value != expected}))

    if hosts_without := differing(sees_probe, True):
        raise ConfigError(
            f"{hosts_without} cannot see what rank 0 on {hosts[0]} writes into {run}: "
            "put --run on a file system that all nodes share"
        )
    if others := differing(settings, settings[0]):
        raise ConfigError(
            f"{others} has a different preset, DeepSpeed JSON or dstransformer version than {hosts[0]}: "
            "use the same on all nodes"
        )
    if others := differing(builds, builds[0]):
        raise ConfigError(
            f"{corpus} on {others} is not the same corpus as on {hosts[0]}: copy one of them to every node"
        )
