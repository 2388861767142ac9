"""Reads the results of runs: values to compare jobs by, and logs line by line with times."""
