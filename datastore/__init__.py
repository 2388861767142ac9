"""Storage and data: datastores, references, datasets. Knows nothing of jobs."""
