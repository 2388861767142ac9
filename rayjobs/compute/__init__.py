"""Compute targets: the actor that runs a queue on Ray, its agents, its allocations."""
