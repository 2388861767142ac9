"""The code of image jobs: each packs this folder as its snapshot, so a run keeps its code."""
