"""What ``dst train`` imports; see ``forks``. As there, DeepSpeed's log goes to stderr."""

import contextlib
import os
import sys

os.environ["DS_ACCELERATOR"] = "cpu"  # as the product sets it
with contextlib.redirect_stdout(sys.stderr):
    import datasets  # noqa: F401
    import deepspeed  # noqa: F401
    import mlflow.store.tracking.sqlalchemy_store  # noqa: F401

    import data_prep.cli  # noqa: F401
    import dstransformer.cli
    import dstransformer.decoding.commands
    import dstransformer.evaluation.commands
    import dstransformer.tracking.mlflow_store
    import dstransformer.training.launch
    import dstransformer.training.trainer  # noqa: F401
