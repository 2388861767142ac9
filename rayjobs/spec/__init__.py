"""What to run: the JobSpec, its file form, and what is wrong with it."""
