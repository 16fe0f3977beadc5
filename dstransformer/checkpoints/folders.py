"""The former address of :mod:`dstransformer.io.output_folders`."""

from dstransformer.io.output_folders import check_run_folder

__all__ = ["check_run_folder"]
