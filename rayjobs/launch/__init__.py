"""From a job's attempt to processes on a node."""
