"""Turns a user's command into a durable job."""
