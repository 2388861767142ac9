"""The data of a job: given as arguments, pinned at submit."""
