"""Python imports this module when it starts, in every process that tests start.

Importing PyTorch, DeepSpeed and MLflow makes a million objects that stay. Looking for garbage among them takes a fifth
of the time.
"""

import gc

gc.set_threshold(100_000, 20, 100)
