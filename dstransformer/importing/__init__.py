"""Models of other tools as bundles."""
