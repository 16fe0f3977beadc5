"""What ``dst`` and ``dst-prep`` import, most of it late; see ``forks``. As in ``dst``, DeepSpeed logs to stderr."""

import contextlib
import importlib
import os
import sys

MODULES = (
    "dstransformer.cli",
    "data_prep.cli",
    "datasets",
    "torch._dynamo",  # by the first optimizer
    "deepspeed.runtime.zero.muon.muon_optimizer",  # by deepspeed.initialize
    "dstransformer.training.launch",
    "dstransformer.training.trainer",
    "dstransformer.decoding.commands",
    "dstransformer.evaluation.commands",
    "dstransformer.tracking.mlflow_store",
    "mlflow.store.tracking.sqlalchemy_store",
)

os.environ["DS_ACCELERATOR"] = "cpu"  # as the product sets it
with contextlib.redirect_stdout(sys.stderr):
    for module in MODULES:
        importlib.import_module(module)
