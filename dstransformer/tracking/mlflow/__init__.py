"""Tracking in MLflow.

``MlflowTracker`` receives events. A ``Recorder`` turns them into records, which go to the ``Outbox``, a file in the run
folder. A thread with a ``Sender`` sends them to an ``MlflowStore``, which applies them. ``tracked_run.py`` is for other
commands, ``parent_run.py`` for the run above several runs. Only ``store.py`` and ``models.py`` import mlflow at the
top, so they are imported late.
"""
