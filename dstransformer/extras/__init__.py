"""Whole capabilities that training, translating and scoring do not need.

Each holds its commands. An extra imports the core, the core never an extra, nor an extra another one: what several of
them use stands beside them, ``figures.py`` and ``child.py``.
"""
