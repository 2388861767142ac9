"""Sweeps: search spaces, samplers, early termination; built on Ray Tune."""
