"""Programs that measure. ``python -m benchmarks`` lists them, ``python -m benchmarks NAME [options]`` runs one."""
