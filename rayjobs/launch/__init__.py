"""Turns a job's attempt into processes on its nodes."""
