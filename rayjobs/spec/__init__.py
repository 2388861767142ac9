"""Descriptions of jobs: the JobSpec, its file format, and the problems of a spec."""
