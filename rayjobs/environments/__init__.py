"""Environments of jobs: what is asked for, read from files, resolved and built on a node."""
