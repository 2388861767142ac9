"""What happened to jobs, and what follows from it."""
