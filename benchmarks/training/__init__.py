"""The step, the engine and its start."""
