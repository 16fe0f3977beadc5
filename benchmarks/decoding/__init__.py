"""Translating and parsing with one model."""
