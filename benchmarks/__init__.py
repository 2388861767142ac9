"""Measurements of rayjobs and its peers: `python -m benchmarks`; see docs/benchmarks.md."""
