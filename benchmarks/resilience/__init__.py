"""Runs with faults."""
