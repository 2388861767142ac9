"""The Azure ML v1 classes, and nothing else."""
