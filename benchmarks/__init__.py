"""Measurements with the peer beside them: `python -m benchmarks`, see docs/benchmarks.md."""
