"""Checks, prunes and backs up a workspace or machine, and verifies that a script resumes."""
