from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from support.training.trained import trained_bundle


@pytest.fixture(scope="session")
def trained(shared_folder: Callable[[str, Callable[[Path], object]], Path], toy_corpus: Path) -> Path:
    """A bundle that has learned the embedded grammar. Tests must not change it."""
    return shared_folder("trained-bundle", lambda folder: trained_bundle(folder, toy_corpus, updates=150))
