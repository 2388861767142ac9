"""The code of image jobs, which pack this folder as their snapshot: a run keeps what it ran."""
