"""Manifests of checkpoints with other content."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dstransformer.training.checkpoints.format import MANIFEST, OWN_HASH, hash_manifest


def change_manifest(checkpoint: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the manifest of a checkpoint, with its hash."""
    path = checkpoint / MANIFEST
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps({**content, OWN_HASH: hash_manifest(content)}))
