"""Preloads the modules that ``dst`` and ``dst-prep`` import, most of them late; see ``forks``."""

import contextlib
import gc
import importlib
import os
import sys

MODULES = (
    "dstransformer.cli",
    "data_prep.cli",
    "datasets",
    "torch._dynamo",  # imported by the first optimizer
    "deepspeed.runtime.zero.muon.muon_optimizer",  # imported by deepspeed.initialize
    "dstransformer.training.run",
    "dstransformer.training.build",
    "dstransformer.decoding.commands",
    "dstransformer.evaluation.testset",
    "dstransformer.tracking.mlflow.store",
    "mlflow.store.tracking.sqlalchemy_store",
)

os.environ["DS_ACCELERATOR"] = "cpu"  # as dst sets it
with contextlib.redirect_stdout(sys.stderr):  # DeepSpeed logs to stdout
    for module in MODULES:
        importlib.import_module(module)

# A collection in a forked process would visit a million objects that never become garbage, and so copy their pages.
gc.collect()
gc.freeze()
