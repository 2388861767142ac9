"""Helpers that tests share: targets, nodes, images, packages, and waiting."""
