"""Measurements and checks that need a GPU: `python -m benchmarks.gpu` writes docs/gpu.md."""
