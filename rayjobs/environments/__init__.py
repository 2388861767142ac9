"""Environments of jobs: requests are read from files, resolved and built on a node."""
