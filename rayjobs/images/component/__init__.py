"""The code of image jobs: this folder is their snapshot, so a run keeps what it ran."""
