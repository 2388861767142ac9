"""Tests of the launch plans of jobs."""
