"""Clusters on one machine: two nodes, SLURM, Dask."""
