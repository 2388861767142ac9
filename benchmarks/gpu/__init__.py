"""What is measured and shown where a GPU is: `python -m benchmarks.gpu` writes docs/gpu.md."""
