"""Checkpoints that a job has stored, and what it resumes from."""
