"""``dst plot``: curves of runs, and learning rates of presets.

It goes if MLflow draws them as well.
"""
