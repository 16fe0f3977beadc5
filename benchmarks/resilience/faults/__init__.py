"""A campaign of faults: trainings are killed, stopped, and lose their disk or their newest checkpoint.

It trains a tiny model at each ZeRO stage and precision, once undisturbed and then with
faults, and compares weights, moments and trace bit for bit. The processes are started as the tests start theirs, with
``tests/support``.
"""

import sys
from pathlib import Path

_SUPPORT = str(Path(__file__).parents[3] / "tests")
if _SUPPORT not in sys.path:
    sys.path.append(_SUPPORT)
