"""Servers and their clients: `dst serve`, MLflow, Chromium."""
