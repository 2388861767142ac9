"""Environments of jobs: resolves and builds them on a node."""
