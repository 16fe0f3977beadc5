"""Checks of ``dst doctor``: of this machine, of the nodes of a cluster, of the tracking store, and of a run.

Each check gives a :class:`~dstransformer.extras.doctor.finding.Finding`. None changes anything that stays. Those of a
run (``run.py``) import no PyTorch. It goes if the messages of the commands alone say what is wrong.
"""
