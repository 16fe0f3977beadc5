"""Checkpoints: format, saver, retention, averaging and resuming."""
