"""Models: their files, names and lineage, the registry, and the requests of scripts."""
