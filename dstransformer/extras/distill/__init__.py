"""A student from a teacher, or back-translation: a Snakemake workflow of this package's commands, and its report.

It goes if one training script, with the commands as they are, does for users what the workflow does.
"""
