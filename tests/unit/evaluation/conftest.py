from __future__ import annotations

from pathlib import Path

import pytest
from support.services.serving import save_small_bundle


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """A bundle with random weights."""
    return save_small_bundle(tmp_path / "bundle", step=7)
