"""Models: their files, names and lineage, and what a script asks of the registry."""
