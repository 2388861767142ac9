"""Verifies that a script resumes: kills, comparison and verdict."""
