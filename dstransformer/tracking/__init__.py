"""Reports on a run: typed events (``events.py``) go to a tracker, which passes them to the listeners.

The listeners are the terminal (``console.py``), ``metrics.jsonl`` (``metrics_log.py``) and MLflow (``mlflow/``). No
other package imports mlflow, and this one does so lazily.
"""
