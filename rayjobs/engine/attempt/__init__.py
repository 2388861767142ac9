"""One attempt of a job: supervised from its allocation to its end."""
