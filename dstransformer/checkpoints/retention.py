"""The former address of :mod:`.checkpoint_folder`."""

from dstransformer.checkpoints.checkpoint_folder import CheckpointFolder

__all__ = ["CheckpointFolder"]
