"""Helpers of several tests: targets, nodes, images, packages, and waiting."""
