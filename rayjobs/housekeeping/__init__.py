"""Checks, prunes and backs up a workspace, and checks and prunes a machine."""
