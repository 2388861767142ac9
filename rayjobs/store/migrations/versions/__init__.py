"""One file per step; its number is the schema version that it leads to."""
