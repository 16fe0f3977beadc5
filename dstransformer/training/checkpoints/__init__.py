"""Checkpoints: format, saving, pruning, averaging and resuming."""
