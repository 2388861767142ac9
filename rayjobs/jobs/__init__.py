"""Records of what happened to jobs, and the consequences."""
