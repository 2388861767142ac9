"""What attempts leave: metrics, logs, files and checkpoints, and what the next attempt resumes."""
